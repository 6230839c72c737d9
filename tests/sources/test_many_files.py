"""What is done once for many files: looks, names and suffixes, all as they would be told of each file alone."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.contents import ContentPacker
from ortdeploy.files import compact_list, memory_budget
from ortdeploy.files.digests import content_digest
from ortdeploy.files.gate import PathEscapesError, PathGuard
from ortdeploy.files.urls import is_url
from ortdeploy.results.rows import Block
from ortdeploy.sources import whole_files
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.compression import format_suffix, is_compressed, one_of_each_suffix
from ortdeploy.sources.files import file_states, find_changed, full_path, one_of_each_folder, shown, states_digest
from ortdeploy.sources.protocol import Wanted


def test_a_look_within_a_fence_tells_what_a_look_without_one_does(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").write_bytes(b"four")
    (tmp_path / "in/b").symlink_to(tmp_path / "in/a")
    paths = [f"{tmp_path}/in/{name}" for name in "ab"]
    within = file_states(paths, str(tmp_path), (), PathGuard([str(tmp_path)]))
    assert within == file_states(paths, str(tmp_path))
    assert [(one.path, one.size) for one in within] == [("in/a", 4), ("in/b", 4)]


@pytest.mark.parametrize("name", ["link", "folder/passwd", "in/../../x"])
def test_what_leads_out_of_a_fence_is_refused(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "folder").symlink_to("/etc")
    (tmp_path / "x").touch()
    told = " leads" if name.startswith("in") else " is a link, or lies behind one, that leads"
    with pytest.raises(
        PathEscapesError, match=f"{name}{told} out of the manifest's folder tree".replace("in/../../", "")
    ):
        file_states([f"{tree}/in/../in", f"{tree}/{name}"], str(tree), (), PathGuard([str(tree)]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["/in", "/in/in", "/i", "/", "", "/in//"]), st.text("a/.", max_size=4)), min_size=1
    )
)
def test_one_path_of_each_folder_is_looked_at(parts: list[tuple[str, str]]) -> None:
    paths = [f"{folder}/{name}" for folder, name in parts]
    found = one_of_each_folder(paths, "\0".join((*paths, "")))
    assert {path.rpartition("/")[0] for path in found} == {path.rpartition("/")[0] for path in paths}
    assert {*found} <= {*paths}


def test_a_file_that_went_is_said_to_be_unreadable_within_a_fence_too(tmp_path: Path) -> None:
    with pytest.raises(OrtdeployError, match="gone cannot be read"):
        file_states([f"{tmp_path}/gone"], str(tmp_path), (), PathGuard([str(tmp_path)]))


def test_many_looks_at_once_tell_what_each_alone_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_list, "OF_A_BLOCK", 2)  # plain files fill blocks, and share them with each other kind
    names = ["a", "b", "c", "deep/a", "deep/er/b", "e:f", "g", "my-url=h", "link", "z"]
    (tmp_path / "deep/er").mkdir(parents=True)
    for size, name in enumerate(set(names) - {"link"}):
        (tmp_path / name).write_bytes(b"." * size)
    (tmp_path / "link").symlink_to("deep/a")
    paths = [tmp_path / name for name in names]
    fence = PathGuard([str(tmp_path)])
    states = file_states([str(path) for path in paths], str(tmp_path), (), fence)
    assert list(states) == [
        (name, (tmp_path / name).stat().st_size, (tmp_path / name).stat().st_mtime_ns) for name in names
    ]
    assert find_changed(states, str(tmp_path), (), fence) is None
    for path, (name, _, mtime_ns) in zip(paths, states, strict=True):
        os.utime(path, ns=(mtime_ns, mtime_ns + 1))
        assert find_changed(states, str(tmp_path), (), fence) == ("deep/a" if name == "link" else name)
        os.utime(path, ns=(mtime_ns, mtime_ns))
    (tmp_path / "c").unlink()
    with pytest.raises(OrtdeployError, match="c cannot be read"):
        find_changed(states, str(tmp_path), (), fence)
    os.utime(tmp_path / "b")
    assert find_changed(states, str(tmp_path), (), fence) == "b"


@pytest.mark.parametrize(
    "names",
    [
        ["a.png", "b.png", "c.PNG", "d.jpg"],
        ["x/.png", "x/a.png"],
        ["a.csv.gz", "b.jsonl.gz", "c.gz"],
        ["v1.2/a", "v1.2/b.csv", "a.", "..npy", "none", ".hidden"],
        ["in/a.png", "in/b.png", "in/c.png", "in/.png", "in/png", "in/d.png", "in/e.png.gz"],
    ],
)
@pytest.mark.parametrize("block", [1, 2, 1024])
def test_one_of_each_suffix_stands_for_all(names: list[str], monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(compact_list, "OF_A_BLOCK", block)
    for at in range(len(names)):
        turned = names[at:] + names[:at]
        some = list(one_of_each_suffix(turned))
        told = {(format_suffix(name), is_compressed(name)) for name in turned}
        assert {(format_suffix(name), is_compressed(name)) for name in some} == told
        assert some == sorted(some, key=turned.index)
        assert some[0] == turned[0]


def test_ten_thousand_files_of_one_kind_are_a_handful() -> None:
    assert len(one_of_each_suffix([f"in/{number}.png" for number in range(10_000)])) == 10


@pytest.mark.parametrize("folder", ["/", "/data", "/data/in:1"])
@pytest.mark.parametrize(
    "path",
    [
        "a.png",
        "in/a.png",
        "/else/a.png",
        "../a.png",
        "a:b.png",
        "url=x/a.png",
        "url=a.png",
        "in/url=http%3A%2F%2Fx%2Fa",
    ],
)
def test_paths_are_joined_and_shown_as_ever(folder: str, path: str) -> None:
    full = full_path(folder, path)
    assert full == os.path.join(folder, path)  # noqa: PTH118  the same text
    assert shown(os.path.normpath(full), folder) == os.path.relpath(full, folder)
    assert full_path(folder, "s3://bucket/a.png") == shown("s3://bucket/a.png", folder) == "s3://bucket/a.png"


@pytest.mark.parametrize("name", ["data:x.png", "ab::c.png", "http::x"])
def test_a_file_called_like_a_url_is_found_again(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (state,) = file_states([str(tmp_path / name)], str(tmp_path), (), PathGuard([str(tmp_path)]))
    assert state.path == f"./{name}"
    assert not is_url(state.path)
    assert Path(full_path(str(tmp_path), state.path)).exists()
    assert find_changed([state], str(tmp_path), (), PathGuard([str(tmp_path)])) is None


def test_the_digest_of_states_tells_any_difference(tmp_path: Path) -> None:
    for name in (b"a", b"b\xff", b"c"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    packed_states = file_states(sorted(str(path) for path in tmp_path.iterdir()), str(tmp_path))
    states = [*packed_states]
    first = states[0]
    others = [
        states[:2],
        states[::-1],
        [first._replace(path="d"), *states[1:]],
        [first._replace(size=1), *states[1:]],
        [first._replace(mtime_ns=-1), *states[1:]],
        [first._replace(size=first.mtime_ns, mtime_ns=first.size), *states[1:]],
        [],
    ]
    digests = [states_digest(one) for one in (states, *others)]
    assert len({*digests}) == len(digests)
    assert states_digest(packed_states) == states_digest(tuple(states)) == digests[0]


def test_for_what_always_has_room_the_machine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "room", lambda _limit: 8 * 1024 * 1024)
    memory_budget.check_room(8 * 1024 * 1024, "a line", 1)
    with pytest.raises(OrtdeployError, match="a long line takes"):
        memory_budget.check_room(8 * 1024 * 1024 + 1, lambda: "a long line", 1)


@pytest.mark.parametrize("sides", [(), ("width",), ("height", "width")])
def test_the_sides_of_a_picture_are_read_where_they_are_wanted(tmp_path: Path, sides: tuple[str, ...]) -> None:
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / "a.png")
    wanted = Wanted(dtypes={"pixels": None}, keys=("path", *sides))
    with SOURCES["image"].open_source([str(tmp_path / "a.png")], str(tmp_path), wanted) as source:
        (block,) = source.blocks(0, iter([4]))
    assert {side: int(np.asarray(block.columns[side][0])) for side in sides} == {
        side: {"height": 2, "width": 3}[side] for side in sides
    }


_XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'


@pytest.mark.parametrize("told_in", ["exif", "xmp", "nothing"])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_picture_is_turned_as_pillow_turns_it(tmp_path: Path, kind: str, told_in: str) -> None:
    picture = Image.fromarray(np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3))
    path = tmp_path / f"a.{kind}"
    exif = Image.Exif()
    exif[0x0112] = 6
    if told_in == "exif":
        picture.save(path, exif=exif)
    elif told_in == "xmp" and kind == "png":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", _XMP)
        picture.save(path, pnginfo=text)
    elif told_in == "xmp":
        picture.save(path, xmp=_XMP.encode())
    else:
        picture.save(path)
    with Image.open(path) as opened:
        wanted = np.asarray(ImageOps.exif_transpose(opened))
    assert wanted.shape == ((8, 16, 3) if told_in == "nothing" else (16, 8, 3))
    (block,) = read_pictures([path], tmp_path)
    np.testing.assert_array_equal(np.asarray(block.columns["pixels"])[0], wanted)


def read_pictures(paths: list[Path], folder: Path) -> list[Block]:
    wanted = Wanted(dtypes={"pixels": None})
    with SOURCES["image"].open_source([str(path) for path in paths], str(folder), wanted) as source:
        return list(source.blocks(0, iter([4, 4])))


def test_large_pictures_are_read_as_small_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(whole_files, "_AT_ONCE", 8)
    (block,) = read_pictures([tmp_path / "a.png"], tmp_path)
    assert np.asarray(block.columns["pixels"]).shape == (1, 2, 3, 3)
    assert not block.contents


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_pillow_tries_one_format_on_a_picture_of_a_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / "a.gif", kind)
    Image.preinit()
    monkeypatch.setattr(Image, "ID", sorted(Image.ID, key=kind.upper().__eq__))
    others: list[str] = []
    for name in {*Image.OPEN} - {kind.upper()}:
        monkeypatch.setitem(Image.OPEN, name, (Image.OPEN[name][0], lambda _prefix, name=name: others.append(name)))
    (block,) = read_pictures([tmp_path / "a.gif"], tmp_path)
    assert not block.failed
    assert not others


def test_a_picture_that_is_read_whole_comes_with_the_digest_of_its_file(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"none at all")
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    (block,) = read_pictures(paths, tmp_path)
    states = file_states([*map(str, paths)], str(tmp_path))
    digests = [content_digest(str(path), state.size, state.mtime_ns) for path, state in zip(paths, states, strict=True)]
    assert block.contents is not None
    contents = ContentPacker()
    contents.add(block.contents)
    assert [*contents.packed()] == [*zip(states, digests, strict=True)]


def test_a_picture_that_changes_while_it_is_read_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "a.png", os.read
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(path)

    def changing(descriptor: int, size: int) -> bytes:
        os.utime(path, ns=(1, 1))
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", changing)
    (block,) = read_pictures([path], tmp_path)
    assert block.count == 1
    assert not block.contents


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "; it is empty"),
        (b"<!DOCTYPE html><html>404", "; it is a web page. Download the file itself"),
        (b"version https://git-lfs.github.com/spec/v1", "; it is a Git-LFS pointer. Run git lfs pull"),
        (b"\x89PNG\r\n\x1a\n", "Pillow cannot tell its format"),
    ],
)
def test_advice_is_about_the_one_file_that_is_no_picture(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.png").write_bytes(content)
    assert read_pictures([tmp_path / "a.png"], tmp_path)[0].failed[0].message.endswith(said)


def test_what_is_no_picture_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"none at all")
    (block,) = read_pictures([tmp_path / "a.png"], tmp_path)
    assert block.failed[0].source == "a.png"
    assert block.failed[0].message.endswith(
        "Pillow cannot tell its format; it is text. Replace the file. If the whole input "
        "is like this, write format: csv, jsonl or text"
    )
    assert [row.code for row in read_pictures([tmp_path / "gone.png"], tmp_path)[0].failed] == ["vanished-file"]
