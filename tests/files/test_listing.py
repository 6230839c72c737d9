"""Files by pattern are those that Python's glob finds."""

import glob
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.files.listing import expand, folders_like, in_full, links_below

_NAMES = ("a.npy", "b.npy", ".a.npy", "B.NPY", "a[1].npy", "sub", "é.npy", "a\nb.npy")
_PATTERNS = (
    "*",
    "*.npy",
    "?.npy",
    "a*",
    ".*",
    "[ab].npy",
    "[!a]*",
    "a[[]1].npy",
    "**",
    "*/x.npy",
    "s*/*.npy",
    "**/*.npy",
    "no/*.npy",
    "a.npy/*",
    "a.npy/**/*.npy",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listing")
    for name in _NAMES:
        (folder / name).mkdir() if name == "sub" else (folder / name).touch()
    (folder / "sub/x.npy").touch()
    (folder / "link.npy").symlink_to(folder / "a.npy")
    (folder / "broken.npy").symlink_to(folder / "nowhere")
    (folder / "loop.npy").symlink_to("loop.npy")
    return folder


def found_by_glob(full: str) -> list[str]:
    return sorted(path for path in glob.glob(full, recursive=True) if not os.path.isdir(path))  # noqa: PTH112, PTH207


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_patterns_are_globs(folder: Path, pattern: str) -> None:
    assert expand(f"{folder}/{pattern}") == found_by_glob(f"{folder}/{pattern}")


def test_a_folder_that_goes_meanwhile_has_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever collects an inbox by day may remove a day's folder at any time."""
    found = expand(f"{folder}/*/*.npy")
    assert found == [f"{folder}/sub/x.npy"]
    scandir = os.scandir

    def list_others(path: str) -> object:
        if str(path).rstrip("/").endswith("sub"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", list_others)
    assert expand(f"{folder}/*/*.npy") == []


def test_folders_of_a_drive_that_numbers_none_are_all_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npy").touch()
    look = os.stat

    def without_number(path: str, **how: bool) -> os.stat_result:
        mode, _, *others = look(path, **how)
        return os.stat_result((mode, 0, *others))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", without_number)
        found = expand(f"{tmp_path}/*/*.npy")
    assert found == [f"{tmp_path}/a/x.npy", f"{tmp_path}/b/x.npy"]


def test_a_name_behind_a_pattern_lists_no_folder_that_may_hold_very_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, scandir = set[str](), os.scandir

    def note(path: str) -> object:
        listed.add(os.path.normpath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", note)
    assert expand(f"{folder}/s*/x.npy") == [f"{folder}/sub/x.npy"]
    assert listed == {f"{folder}"}


@given(
    pattern=st.text(st.sampled_from("ab*?[]!.né-1"), min_size=1, max_size=6).filter(lambda text: set(text) & set("*?["))
)
def test_any_pattern_is_a_glob(folder: Path, pattern: str) -> None:
    full = f"{folder}/{pattern}"
    assert expand(full) == ([full] if os.path.lexists(full) else found_by_glob(full))


@pytest.mark.parametrize("name", ["x[1]", "[!a]", "a*", "?", "[[]1]"])
@pytest.mark.parametrize("pattern", [*_PATTERNS, ".", "a[1].npy", "none.npy", "sub/../*.npy"])
def test_signs_in_the_path_of_a_manifest_s_folder_mean_themselves(tmp_path: Path, name: str, pattern: str) -> None:
    for path in (
        f"{name}/in/a.npy",
        f"{name}/in/a[1].npy",
        f"{name}/in/sub/x.npy",
        "x1/in/other.npy",
        "ab/in/other.npy",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "plain").symlink_to(name)
    folders = {folder: f"{tmp_path}/{folder}/in" for folder in (name, "plain")}
    found = {
        one: [os.path.relpath(path, folder) for path in expand(in_full(folder, pattern))]
        for one, folder in folders.items()
    }
    assert found[name] == found["plain"]
    below = [folders_like(in_full(folder, "s*")) for folder in folders.values()]
    assert [list(map(os.path.basename, one)) for one in below] == [["sub"], ["sub"]]


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_patterns_begin_where_the_program_was_called(
    folder: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert expand(pattern) == found_by_glob(pattern)


def test_a_folder_stands_for_its_files(folder: Path) -> None:
    assert [Path(path).name for path in expand(str(folder))] == sorted(
        ["a.npy", "b.npy", "B.NPY", "a[1].npy", "é.npy", "a\nb.npy", "link.npy", "broken.npy", "loop.npy"]
    )


def test_what_has_no_sign_is_a_name(folder: Path) -> None:
    assert expand(f"{folder}/a[1].npy") == [f"{folder}/a[1].npy"]
    assert expand(f"{folder}/none.npy") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(20, 300), deadline=None)
@given(
    paths=st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), max_size=8),
    kinds=st.lists(st.sampled_from(["file", "folder", "up", "beside", "nowhere"]), min_size=8, max_size=8),
    skipped=st.sampled_from(["", "a"]),
)
def test_links_are_found_at_any_depth_and_not_followed(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], kinds: list[str], skipped: str
) -> None:
    folder = tmp_path_factory.mktemp("links")
    expected = set()
    for path, kind in zip(sorted(paths), kinds, strict=False):
        made = folder / path
        if any(one.is_symlink() or one.is_file() for one in made.parents):
            continue
        made.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            made.touch()
        elif kind == "folder":
            made.mkdir()
        else:
            made.symlink_to({"up": "..", "beside": ".", "nowhere": "gone"}[kind])
            expected.add(str(made))
    expected = {path for path in expected if not skipped or not path.startswith(f"{folder}/{skipped}/")}
    assert set(links_below(str(folder), skipped)) == expected


def test_a_folder_that_is_not_there_has_no_links(tmp_path: Path) -> None:
    assert list(links_below(str(tmp_path / "gone"))) == []


@pytest.mark.parametrize("pattern", ["**/*.npy", "**", "**/x.npy", "s*/**/*.npy", "**/deep", "**/sub/*", "**/**/x.npy"])
def test_a_link_back_to_a_folder_on_the_way_is_not_followed(tmp_path: Path, pattern: str) -> None:
    for name in ("a.npy", "sub/x.npy", "sub/deep/y.npy", ".hidden/z.npy", "aside/w.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sub/far").symlink_to("../aside")
    without = found_by_glob(f"{tmp_path}/{pattern}")
    if not pattern.startswith("s"):  # else it is found under its own name
        without = [one for one in without if "/far/" not in one]
    for name in ("one", "other", "sub/deep/third"):
        (tmp_path / name).symlink_to(tmp_path)
    assert expand(f"{tmp_path}/{pattern}") == sorted(set(without))


@pytest.mark.parametrize("pattern", ["**/*.npy", "*/*.npy", "**/b*/*.npy", "*/**/*.npy", "**/**/*.npy", "**/day/*.npy"])
def test_files_behind_a_linked_folder_have_one_name(tmp_path: Path, pattern: str) -> None:
    for name in ("b-monday/x.npy", "z/day/y.npy", "../elsewhere/w.npy"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    for name, target in {
        "b": "b-monday", "a/day": "../z/day", "bb": "../elsewhere", "c": "../elsewhere", "b-monday/back": "../z"
    }.items():  # fmt: skip
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).symlink_to(target)
    own = ["b-monday/x.npy", "z/day/y.npy", "bb/w.npy"]
    found = [os.path.relpath(one, tmp_path / "in") for one in expand(f"{tmp_path}/in/{pattern}")]
    assert set(found) <= set(own)
    assert len(set(found)) == len(found) > 0
