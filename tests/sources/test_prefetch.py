"""Rows that are slow to decode are decoded on several threads: in their order, in their blocks, within the memory."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.memory_budget import PROCESS, RoomError, check_room, on_memory_pressure
from ortdeploy.process import daemon_threads
from ortdeploy.sources import image, prefetch
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.prefetch import DecodedAhead, room_of_one, rows_at_once
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import TOO_LARGE, Found, RowError, decode_row

PATIENCE = 60.0
ROWS = 9


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every row count as slow to decode."""
    monkeypatch.setattr(prefetch, "SLOW", 0.0)


def raw_rows(count: int = ROWS) -> Iterator[RawRow]:
    return (RawRow(f"{number}.png", "", number) for number in range(count))


def decoded(decode: Callable[[RawRow], Found], threads: int) -> DecodedAhead:
    return DecodedAhead(raw_rows(), decode, threads, memory_limit=None, decoding=1.0)


def numbers(rows: DecodedAhead) -> list[Any]:
    return [values["n"] for _, (values, _) in rows.rows() if not isinstance(values, RowError)]


def run_out_of_memory() -> None:
    raise RowError("it needs more memory than there is") from MemoryError()


@pytest.mark.usefixtures("slow")
def test_slow_rows_are_decoded_at_once_and_keep_their_order() -> None:
    together = threading.Barrier(4)

    def decode(raw: RawRow) -> Found:
        if raw.value:  # the first one tells that they are slow
            together.wait(PATIENCE)
        return {"n": raw.value}, 1

    assert numbers(decoded(decode, 4)) == list(range(ROWS))


def test_quick_rows_are_decoded_by_the_thread_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "SLOW", PATIENCE)
    seen = set()

    def decode(raw: RawRow) -> Found:
        seen.add(threading.get_ident())
        return {"n": raw.value}, 1

    assert numbers(decoded(decode, 4)) == list(range(ROWS))
    assert seen == {threading.get_ident()}


@pytest.mark.usefixtures("slow")
def test_what_decoding_raises_is_raised_in_its_turn() -> None:
    def decode(raw: RawRow) -> Found:
        if raw.value == 5:
            raise KeyError(raw.value)
        return {"n": raw.value}, 1

    rows = decoded(decode, 3).rows()
    assert [next(rows)[0].value for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(rows)


@pytest.mark.usefixtures("slow")
def test_a_file_that_cannot_be_fetched_ends_the_rows_in_its_turn() -> None:
    def fetched() -> Iterator[RawRow]:
        yield from raw_rows(5)
        raise OrtdeployError("the store has no 5.png")

    rows = DecodedAhead(fetched(), lambda raw: ({"n": raw.value}, 1), 3, memory_limit=None, decoding=1.0).rows()
    assert [next(rows)[0].value for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OrtdeployError):
        next(rows)


@pytest.mark.usefixtures("slow")
def test_a_row_that_cannot_be_read_changes_nothing_for_the_others() -> None:
    def decode(raw: RawRow) -> Found:
        return (RowError("broken"), 2) if raw.value % 3 == 1 else ({"n": raw.value}, 1)

    found = [found for _, found in decoded(decode, 3).rows()]
    assert [attempts for _, attempts in found] == [1, 2, 1] * 3


@pytest.mark.usefixtures("slow")
def test_a_thread_that_hangs_is_not_waited_for() -> None:
    hang, begun = threading.Event(), threading.Event()

    def decode(raw: RawRow) -> Found:
        if raw.value == 2:
            begun.set()
            hang.wait()
        return {"n": raw.value}, 1

    rows = decoded(decode, 2).rows()
    assert next(rows)[0].value == 0
    assert next(rows)[0].value == 1
    assert begun.wait(PATIENCE)
    rows.close()
    hang.set()


@pytest.mark.usefixtures("slow")
def test_rows_are_decoded_although_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    spent: list[float] = []
    rows = DecodedAhead(raw_rows(), lambda raw: ({"n": raw.value}, 1), 4, None, 1.0, spent=spent.append)
    assert numbers(rows) == list(range(ROWS))
    assert sum(spent) == 0  # it is the reader's own time


@pytest.mark.usefixtures("slow")
def test_threads_have_the_context_of_the_one_that_reads() -> None:
    told: ContextVar[str] = ContextVar("told", default="nothing")
    token = told.set("how often to try")
    try:
        assert numbers(decoded(lambda _: ({"n": told.get()}, 1), 3)) == ["how often to try"] * ROWS
    finally:
        told.reset(token)


class Clock(threading.local):
    """The clock of one thread, which goes on when the thread decodes."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter

    def tell(self, patch: pytest.MonkeyPatch) -> None:
        """Be the clock of whatever decodes."""
        for module in (prefetch, daemon_threads):
            patch.setattr(module, "time", self)


@given(
    costs=st.lists(st.sampled_from([0.0, 1.0]), max_size=40),
    broken=st.sets(st.integers(0, 39)),
    large=st.sets(st.integers(0, 39)),
    too_large=st.sets(st.integers(0, 39)),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    threads=st.integers(2, 5),
)
def test_rows_are_those_of_one_thread(
    costs: list[float], broken: set[int], large: set[int], too_large: set[int], sizes: list[int], threads: int
) -> None:
    """`large` are rows for which there is too little memory beside others, `too_large` those that never fit."""
    clock = Clock()

    def blocks(threads: int) -> list[tuple[Any, ...]]:
        whole: dict[str, tuple[int, int, bytes]] = {}

        def decode(raw: RawRow) -> dict[str, Any]:
            row = int(raw.value)
            clock.now += costs[row]
            whole[raw.path] = (row, 0, bytes(16))
            is_beside = threading.current_thread().name == "ortdeploy-decoder"
            if row in too_large or (row in large and is_beside):
                raise RowError("it takes 9 GiB", TOO_LARGE)
            if row in broken:
                raise RowError("broken", known={"n": row})
            return {"n": np.asarray(row)}

        files = [str(row) for row in range(len(costs))]
        source = FilePerRow(
            files, "", Wanted(dtypes={"n": None}, keys=("path",), threads=threads), decode, "bytes", whole
        )
        found = [
            (block.start, block.count, list(block.rows), list(block.columns["n"]), block.failed, block.contents.names)
            for block in source.blocks(0, cycle(sizes))
            if block.contents is not None
        ]
        assert not whole
        return found

    with pytest.MonkeyPatch.context() as patch:
        clock.tell(patch)
        assert blocks(threads) == blocks(1)


def test_a_block_tells_the_processor_seconds_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.tell(monkeypatch)

    def decode(raw: RawRow) -> dict[str, Any]:
        clock.now += 1.0 + int(raw.value)
        return {"n": np.asarray(0)}

    wanted = Wanted(dtypes={"n": None}, threads=3)
    source = FilePerRow([str(row) for row in range(ROWS)], "", wanted, decode, "bytes")
    found = [block.decoding_cpu for block in source.blocks(0, repeat(4))]
    assert found == [2.0 + 3.0 + 4.0, 5.0 + 6.0 + 7.0 + 8.0, 9.0], "and the first row was decoded by the reader"


@pytest.mark.parametrize("only", [[2, 3, 5, 8, 12], range(2, 13)])
@pytest.mark.usefixtures("slow")
def test_some_rows_are_decoded_ahead_of_their_blocks_too(only: Sequence[int]) -> None:
    decoders = set()

    def decode(raw: RawRow) -> dict[str, Any]:
        decoders.add(threading.current_thread().name)
        return {"n": np.asarray(int(raw.value), np.float32)}

    wanted = Wanted(dtypes={"n": None}, only=only, threads=3)
    source = FilePerRow([str(row) for row in range(10)], "", wanted, decode, "bytes")
    found = [(block.start, block.count, list(block.columns["n"])) for block in source.blocks(2, repeat(1))]
    assert found == [(row, 1, [row]) if row < 10 else (row, 0, []) for row in only]
    assert "ortdeploy-decoder" in decoders


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_that_was_taken_is_let_go_of_before_the_next_one_is_decoded(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(prefetch, "SLOW", PATIENCE)
    decoded: list[weakref.ref[Any]] = []

    def decode(_raw: RawRow) -> dict[str, Any]:
        assert not any(row() is not None for row in decoded)
        values = np.zeros(2, np.float32)
        decoded.append(weakref.ref(values))
        return {"n": values}

    wanted = Wanted(dtypes={"n": None}, threads=threads)
    for block in FilePerRow(["0", "1", "2"], "", wanted, decode, "bytes").blocks(0, repeat(1)):
        assert (block.rows, block.failed) == ([block.start], [])
    assert len(decoded) == 3


@pytest.mark.usefixtures("slow")
def test_a_row_much_larger_than_those_before_it_is_decoded_by_the_thread_that_reads() -> None:
    memory = 1 << 30
    large = {4, 5, 8}
    seen: dict[int, str] = {}

    def decode(raw: RawRow) -> Found:
        try:
            check_room(memory // 2 if raw.value in large else 9 << 20, "a row", memory + PROCESS)
        except RoomError as error:
            return RowError(str(error), TOO_LARGE), 1
        seen[raw.value] = threading.current_thread().name
        return {"n": np.zeros(1 << 20, np.uint8)}, 1

    rows = DecodedAhead(raw_rows(), decode, 4, memory + PROCESS, 2.0).rows()
    assert [raw.value for raw, (row, _) in rows if not isinstance(row, RowError)] == list(range(ROWS))
    assert {row for row, thread in seen.items() if thread != "ortdeploy-decoder"} == {0, *large}


@pytest.mark.usefixtures("slow")
def test_a_row_that_has_too_little_memory_beside_others_is_decoded_alone() -> None:
    at_work: list[int] = []
    tried: list[int] = []
    together = threading.Barrier(4)

    def decode(raw: RawRow) -> Found:
        if threading.current_thread().name != "ortdeploy-decoder":
            tried.append(raw.value)
            if tried == [0, 2]:
                return (RowError("it takes 9 GiB beside what is ahead", TOO_LARGE), 1)
            return {"n": raw.value, "beside": list(at_work)}, 1
        at_work.append(raw.value)
        if raw.value <= 4:
            together.wait(PATIENCE)
        at_work.remove(raw.value)
        return (RowError("it takes 9 GiB", TOO_LARGE), 1) if raw.value == 2 else ({"n": raw.value, "beside": []}, 1)

    rows = decoded(decode, 4).rows()
    found = [next(rows)[1][0] for _ in range(3)]
    rows.close()
    assert found == [{"n": number, "beside": []} for number in range(3)]


@pytest.mark.usefixtures("slow")
def test_rows_ahead_are_let_go_of_before_one_that_leaves_them_no_room_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetch, "rows_at_once", lambda size, *_: 1 if size == 9 else 4)
    made: dict[int, weakref.ref[Any]] = {}

    def decode(raw: RawRow) -> Found:
        values = np.zeros(9 if raw.value == 4 else 1, np.uint8)
        made[raw.value] = weakref.ref(values)
        return {"n": values}, 1

    yielded = []
    for raw, _ in decoded(decode, 4).rows():
        yielded.append(raw.value)
        if raw.value == 4:
            assert [number for number, one in made.items() if number > 4 and one() is not None] == []
    assert yielded == list(range(ROWS))
    assert made.keys() == {*range(ROWS)}


@pytest.mark.parametrize("is_slow", [False, True])
def test_others_let_go_of_memory_before_a_row_fails_for_lack_of_it(
    monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    monkeypatch.setattr(prefetch, "SLOW", 0.0 if is_slow else PATIENCE)
    let_go: list[int] = []

    def decode(raw: RawRow) -> Mapping[str, Any]:
        if raw.value == 4 and not let_go:
            run_out_of_memory()
        return {"n": raw.value}

    def found() -> list[Any]:
        on_memory_pressure(lambda: let_go.append(1))
        return numbers(decoded(partial(decode_row, decode=decode, wanted=Wanted(dtypes={})), 4))

    assert copy_context().run(found) == list(range(ROWS))
    assert let_go == [1]


def test_a_row_that_has_failed_keeps_nothing_of_what_was_decoded() -> None:
    made: list[weakref.ref[Any]] = []

    def decode(_raw: RawRow) -> Mapping[str, Any]:
        pixels = np.zeros(9, np.uint8)
        made.append(weakref.ref(pixels))
        run_out_of_memory()
        return {"n": pixels}

    found, _ = decode_row(RawRow("a.png", "", 0), decode, Wanted(dtypes={}))
    assert str(found) == "it needs more memory than there is"
    assert made[0]() is None


@given(size=st.integers(0, 10**9), decoding=st.floats(0, 4), threads=st.integers(1, 64), memory=st.integers(0, 10**11))
def test_rows_at_once_take_no_more_than_their_share_beyond_the_first(
    size: int, decoding: float, threads: int, memory: int
) -> None:
    count = rows_at_once(size, decoding, threads, memory)
    assert 1 <= count <= threads
    assert (count - 1) * size * (1 + decoding) <= memory * prefetch.SHARE * 1.001
    assert count == threads or count * size * (1 + decoding) * 1.001 >= memory * prefetch.SHARE
    assert count == 1 or 2 * size * (1 + decoding) <= room_of_one(memory, count) * 1.001 + 2, "its like have room"
    assert count == 1 or count * room_of_one(memory, count) <= memory / 2


@pytest.mark.usefixtures("slow")
def test_what_files_held_is_in_the_block_of_their_rows(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.png") for number in range(ROWS)]
    for number, file in enumerate(files):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(file)
    Path(files[4]).write_bytes(b"no picture")
    wanted = Wanted(dtypes={"pixels": "uint8"}, threads=4)
    with image.open_source(files, str(tmp_path), wanted) as source:
        blocks = list(source.blocks(0, repeat(2)))
    held = [block.contents.names for block in blocks if block.contents is not None]
    assert held == [["0.png", "1.png"], ["2.png", "3.png"], ["4.png", "5.png"], ["6.png", "7.png"], ["8.png"]]
    assert [list(block.rows) for block in blocks] == [[0, 1], [2, 3], [5], [6, 7], [8]]
    reds = [np.asarray(block.columns["pixels"])[:, 0, 0, 0].tolist() for block in blocks]
    assert reds == [[0, 1], [2, 3], [5], [6, 7], [8]]
