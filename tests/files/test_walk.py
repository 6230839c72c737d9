"""What is opened lies below a root, whatever the names on the way are, and become while they are looked up."""

import os
import random
import re
from pathlib import Path

import pytest

from ortdeploy.files import walk
from ortdeploy.files.opening import NoRegularFileError
from ortdeploy.files.walk import LeavesRootsError, held_file, held_folder

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows opens no folder within another one")
CAN_WALK = walk._CAN_WALK  # noqa: SLF001
NAMES = [
    "a",
    "A",
    "root",
    "root2",
    "a\n",
    "a\r",
    "\x1b[2J",
    "\u202e",
    "x" * 200,
    ".",
    "..",
    "",
    "\udcff",
    "é",
    " ",
    "~",
]


@pytest.fixture(params=[True, False], ids=["walk", "look"])
def walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether folders are opened one within the other; else paths are looked at, as on other systems."""
    monkeypatch.setattr(walk, "_CAN_WALK", request.param and CAN_WALK)
    return bool(request.param)


def content_of(path: "Path | str", roots: list[str]) -> bytes | type[OSError]:
    try:
        with held_file(path, roots) as held:
            return held.read_bytes()
    except OSError as error:
        return type(error)


@pytest.mark.usefixtures("walks")
def test_a_sibling_whose_name_begins_like_the_root_is_outside(tmp_path: Path) -> None:
    for name in ("root", "root2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(name.encode())
    (tmp_path / "root/link").symlink_to("../root2/f")
    (tmp_path / "root/folder").symlink_to("../root2")
    roots = [str(tmp_path / "root")]
    assert content_of(tmp_path / "root/f", roots) == b"root"
    for way in ("root2/f", "root/../root2/f", "root/link", "root/folder/f"):
        assert content_of(tmp_path / way, roots) is LeavesRootsError
        assert content_of(tmp_path / way, [*roots, str(tmp_path / "root2")]) == b"root2"


@pytest.mark.usefixtures("walks")
def test_links_that_stay_or_come_back_are_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in/f").write_bytes(b"f")
    (root / "relative").symlink_to("in")
    (root / "absolute").symlink_to(root / "relative/f")
    (tmp_path / "back").symlink_to("root/in")
    (root / "around").symlink_to("../back")
    for way in ("root/relative/f", "root/absolute", "root/around/f", "back/f", "root/in/../relative/f"):
        assert content_of(tmp_path / way, [str(root)]) == b"f", way


@pytest.mark.usefixtures("walks")
def test_what_is_no_file_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    roots = [str(tmp_path)]
    found = [content_of(tmp_path / name, roots) for name in ("folder", "gone", "gone/f", "pipe", "folder/f")]
    assert found == [IsADirectoryError, FileNotFoundError, FileNotFoundError, NoRegularFileError, FileNotFoundError]
    assert content_of(tmp_path / "loop", roots) is OSError
    with pytest.raises(OSError, match="pipe") as raised, held_file(tmp_path / "pipe", roots):
        pass
    assert raised.value.filename == str(tmp_path / "pipe")


@POSIX
def test_missing_folders_are_made_but_never_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    roots = [str(tmp_path / "root")]
    with held_folder(tmp_path / "root/a/b", roots, make=True) as held:
        (held / "f").write_bytes(b"f")
    assert (tmp_path / "root/a/b/f").read_bytes() == b"f"
    with pytest.raises(OSError, match=r"outside|link"), held_folder(tmp_path / "root/link/c", roots, make=True):
        pass
    (tmp_path / "outside").mkdir()
    with pytest.raises(LeavesRootsError, match="--allow-root"), held_folder(tmp_path / "root/link", roots, make=True):
        pass
    assert list((tmp_path / "outside").iterdir()) == []


@POSIX
@pytest.mark.parametrize("turn", range(6))
def test_a_folder_that_is_exchanged_for_a_link_at_any_moment_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """The exchange comes before the call of that number that opens something below the root."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, content in ((root / "a/b", b"in"), (outside / "b", b"out")):
        folder.mkdir(parents=True)
        (folder / "f").write_bytes(content)
    (outside / "f").write_bytes(b"out")
    seen = 0
    real = os.open

    def opening(name: str, *arguments: object, **more: object) -> int:
        nonlocal seen
        if name in {"a", "b", "f"}:
            if seen == turn:
                (root / "a").rename(root / "aside")
                (root / "a").symlink_to(outside)
            seen += 1
        return real(name, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opening)
    found = content_of(root / "a/b/f", [str(root)])
    assert found in {b"in", LeavesRootsError}
    assert found == LeavesRootsError or turn > 0
    assert found == b"in" or turn < 3


@POSIX
def test_a_held_folder_stays_this_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    with held_folder(root / "a", [str(root)]) as held:
        (root / "a").rename(root / "moved")
        (root / "a").symlink_to(outside)
        (held / "new").write_bytes(b"new")
    assert (root / "moved/new").exists()
    assert not (outside / "new").exists()


def make_tree(folder: Path, pick: random.Random) -> list[str]:
    """Make folders, files and links with hostile names, inside and outside of the roots; return ways through them."""
    folders = [folder / one for one in ("base", "base/root", "base/root2", "base/allowed")]
    for one in folders:
        one.mkdir(parents=True)
    for _ in range(12):
        name = pick.choice([one for one in NAMES if one not in {"", ".", ".."}])
        place = pick.choice(folders) / name
        if os.path.lexists(place):
            continue
        kind = pick.randrange(4)
        if kind == 0:
            place.mkdir()
            folders.append(place)
        elif kind == 1:
            place.write_bytes(os.fsencode(place))
        else:
            target = pick.choice([*folders, folder / "base/root2/gone", place])
            inner = target / pick.choice(["", "..", ".", "f", "a"])
            place.symlink_to(inner if pick.random() < 0.5 else os.path.relpath(inner, place.parent))
    for one in folders:
        if not os.path.lexists(one / "f"):
            (one / "f").write_bytes(os.fsencode(one))
    begin = ["base/root", "base/root/.", "base/root2", "base/root/../root2", "base", "base/allowed"]
    found = sorted(os.path.relpath(path, folder) for path in folder.rglob("*"))
    ways = [
        f"{pick.choice([*begin, *found])}/{'/'.join(pick.choices([*NAMES, 'f', 'f'], k=pick.randrange(4)))}"
        for _ in range(60)
    ]
    return [*found, *ways]


def expected(path: str, roots: list[str]) -> bytes | None:
    """The content of what a path leads to, by `realpath` alone; None if it is no file below a root."""
    real = os.path.realpath(path)
    inside = any(real == one or real.startswith(one + os.sep) for one in map(os.path.realpath, roots))
    try:
        return Path(path).read_bytes() if inside and os.path.isfile(path) else None  # noqa: PTH113  text
    except OSError:
        return None


def compared(folder: Path, seed: int) -> int:
    """Compare all ways through a tree with the model; return how many there are."""
    pick = random.Random(seed)  # noqa: S311
    ways = make_tree(folder, pick)
    roots = [str(folder / "base/root"), str(folder / "base/allowed")]
    for way in ways:
        path = re.sub("/+", "/", f"{folder}/{way}").rstrip("/")
        wanted, found = expected(path, roots), content_of(path, roots)
        assert (found if isinstance(found, bytes) else None) == wanted, (seed, way, found)
        real = os.path.realpath(path)
        inside = any(real == one or real.startswith(one + os.sep) for one in map(os.path.realpath, roots))
        try:
            with held_folder(path, roots) as held:
                assert held.samefile(real)
                assert inside
        except OSError:
            assert not (inside and os.path.isdir(path)), (seed, way)  # noqa: PTH112  text
    return len(ways)


@POSIX
@pytest.mark.usefixtures("walks")
def test_ways_through_hostile_trees_end_where_realpath_says(tmp_path: Path) -> None:
    assert sum(compared(tmp_path / str(seed), seed) for seed in range(6)) > 300


@POSIX
@pytest.mark.slow
def test_thousands_of_ways_through_hostile_trees(tmp_path: Path) -> None:
    count = int(os.environ.get("ORTDEPLOY_PATHS", "2000"))
    done, seed = 0, 1000
    while done < count:
        done += compared(tmp_path / str(seed), seed)
        seed += 1
    print(f"{done} ways through {seed - 1000} trees")  # noqa: T201


def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"f")
    (tmp_path / "link").symlink_to("/")
    folder = Path("/proc/self/fd")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    for name in ("f", "link/etc", "gone"):
        content_of(tmp_path / name, [str(tmp_path)])
    assert (len(list(folder.iterdir())) if folder.is_dir() else 0) == count


@POSIX
def test_errors_name_what_was_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, held_folder(tmp_path, [str(tmp_path)]) as held:
        (held / "gone").read_bytes()
    assert raised.value.filename == str(tmp_path / "gone")
