"""Objects that are read in place: any byte is reached without those before it, and an object that changes is refused."""

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import web

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files import in_place as in_place_module
from ortdeploy.files.in_place import in_place
from ortdeploy.files.object_store import state_of
from ortdeploy.files.stored_file import StoredFile, open_plain
from ortdeploy.sources.compressed import open_compressed

URL = "memory:///in/a.txt"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def asked(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each request asks for; a request is small, and an object holds several."""
    from fsspec.implementations.memory import MemoryFile  # noqa: PLC0415  an extra

    monkeypatch.setattr(in_place_module, "_LEAST", 64)
    monkeypatch.setattr(in_place_module, "_MOST", 256)
    store.pipe_file("/in/a.txt", CONTENT)
    found, read = [], MemoryFile.read

    def counted(self: Any, size: int = -1) -> bytes:
        found.append(size)
        return bytes(read(self, size))

    monkeypatch.setattr(MemoryFile, "read", counted)
    return found


def test_requests_grow_with_what_is_read_and_begin_small_behind_a_jump(asked: list[int]) -> None:
    with in_place([URL], [URL]) as files, open_plain(files[0]) as file:
        assert (files[0], isinstance(files[0], StoredFile), asked) == (URL, True, [])
        assert file.read(300) == CONTENT[:300]
        assert asked == [64, 128, 128]
        file.seek(5000)
        assert file.readline() == CONTENT[5000 : CONTENT.index(b"\n", 5000) + 1]
        assert (file.seek(-3, io.SEEK_END), file.read()) == (len(CONTENT) - 3, CONTENT[-3:])
    assert sum(asked) < len(CONTENT) / 4


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, len(CONTENT) + 9), st.integers(0, 700)), max_size=6))
def test_it_reads_like_a_file_here(asked: list[int], places: list[tuple[int, int]]) -> None:
    here = io.BytesIO(CONTENT)
    with in_place([URL], [URL]) as files, open_plain(files[0]) as file:
        for start, length in places:
            here.seek(start)
            file.seek(start)
            assert file.read(length) == here.read(length)
    assert asked or not any(length and start < len(CONTENT) for start, length in places)


def test_a_compressed_object_is_unpacked_as_it_comes(store: Any) -> None:
    store.pipe_file("/in/a.gz", gzip.compress(CONTENT))
    with in_place(["memory:///in/a.gz"], ["memory://in/a.gz"]) as files, open_compressed(files[0], ".gz") as file:
        assert file.read() == CONTENT


@pytest.mark.usefixtures("asked")
def test_an_object_that_is_not_as_planned_is_not_read(store: Any) -> None:
    states = [(URL, *state_of(URL))]
    with in_place([URL], [URL], states) as files:
        assert files[0].state == states[0][1:]  # type: ignore[attr-defined]
        open_plain(files[0]).close()
        store.pipe_file("/in/a.txt", CONTENT + b"more")
        with pytest.raises(OrtdeployError, match=r"a\.txt is not what it was when the plan was made"):
            open_plain(files[0])
        store.rm_file("/in/a.txt")
        with pytest.raises(OrtdeployError, match="there is no such file"):
            open_plain(files[0])


@pytest.mark.usefixtures("asked")
def test_an_object_that_ends_early_is_no_end_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFile  # noqa: PLC0415  an extra

    with in_place([URL], [URL]) as files, open_plain(files[0]) as file:
        assert file.read(10) == CONTENT[:10]
        monkeypatch.setattr(MemoryFile, "read", lambda *_: b"")
        with pytest.raises(OrtdeployError, match=r"cannot be read: it ended behind 64 of 10240 bytes"):
            file.read(100)


def test_files_here_stay_what_they_are_and_slices_keep_what_they_know(tmp_path: Path, store: Any) -> None:
    store.pipe_file("/in/a.txt", b"there")
    (tmp_path / "b.txt").write_bytes(b"here")
    names = [str(tmp_path / "b.txt"), URL]
    with in_place(names, ["b.txt", URL], [(names[0], 4, 0), (URL, *state_of(URL))]) as files:
        assert [type(one) for one in files] == [str, StoredFile]
        assert [open_plain(one).read() for one in files[1:]] == [b"there"]
        assert files[1:][0].state == state_of(URL)  # type: ignore[attr-defined]


def test_a_file_of_a_web_server_is_fetched_whole_and_once() -> None:
    with web.running() as server:
        server.replies["/a.txt"] = (200, {}, CONTENT)
        url = server.url("/a.txt")
        with in_place([url], [url]) as files:
            assert server.asked == []
            for _ in range(2):
                with open_plain(files[0]) as file:
                    file.seek(100)
                    assert file.read(3) == CONTENT[100:103]
        assert [method for method, _, _ in server.asked] == ["GET"]
