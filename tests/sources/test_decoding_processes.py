"""Small files are decoded in other processes too: the same rows, in their order, whatever becomes of a process."""

import signal
import wave
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from ortdeploy.process.child import Child
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sources import decoding_processes, prefetch
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.decoding_processes import DecodingProcesses
from ortdeploy.sources.prefetch import DecodedAhead
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import TOO_LARGE, Found, RowError

FILES = 40


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes decode after a few rows, in small chunks, and as much as they can."""
    for name, value in {"ENOUGH": 3, "WORTH": 0.0, "BUSY": 0.0, "SLOW": 60.0}.items():
        monkeypatch.setattr(prefetch, name, value)
    monkeypatch.setattr(decoding_processes, "_ROWS", 8)


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """Pictures of several sizes and modes, some of which cannot be read."""
    random = np.random.default_rng(1)
    for number in range(FILES):
        shape = (2 + number % 3, 3, 3) if number % 5 else (4, 4)
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "07.png").write_bytes(b"nothing")
    (tmp_path / "21.png").unlink()
    content = (tmp_path / "33.png").read_bytes()
    (tmp_path / "33.png").write_bytes(content[:40])
    return [str(tmp_path / f"{number:02}.png") for number in range(FILES)]


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The processes that were started."""
    started: list[Child] = []
    enter = Child.__enter__

    def begin(child: Child) -> Child:
        started.append(child)
        return enter(child)

    monkeypatch.setattr(Child, "__enter__", begin)
    return started


def read(form: str, files: Sequence[str], wanted: Wanted, sizes: Sequence[int] = (5, 1, 9)) -> list[tuple[Any, ...]]:
    """Return what blocks hold, in values that can be compared."""
    with SOURCES[form].open_source(files, str(Path(files[0]).parent), wanted) as source:
        return [_plain(block) for block in source.blocks(wanted.first_row, cycle(sizes))]


def _plain(block: Block) -> tuple[Any, ...]:
    columns = {name: [_cell(cell) for cell in column] for name, column in block.columns.items()}
    noted = None if block.contents is None else ([*block.contents.states()], bytes(block.contents.digests))
    return block.start, block.count, list(block.rows), columns, [_told(row) for row in block.failed], noted


def _cell(cell: Any) -> Any:
    return (type(cell), cell.dtype, cell.tolist()) if isinstance(cell, np.ndarray | np.generic) else cell


def _told(row: FailedRow) -> tuple[Any, ...]:
    return row.row, row.source, row.code, row.message, row.key, row.attempts


def images(**changes: Any) -> Wanted:
    plain = Wanted(dtypes={"pixels": None}, keys=("path", "height"), threads=3)
    return replace(plain, **changes)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("processes", [1, 2])
def test_pictures_are_those_of_one_process(pictures: list[str], began: list[Child], processes: int) -> None:
    expected = read("image", pictures, images())
    assert not began
    assert read("image", pictures, images(processes=processes)) == expected
    assert len(began) == processes
    assert all(child.wait() == 0 for child in began)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("only", [[2, 3, 7, 8, 21, 22, 30, 39], range(4, 37)])
def test_some_rows_are_those_of_one_process(pictures: list[str], began: list[Child], only: Sequence[int]) -> None:
    assert read("image", pictures, images(only=only, processes=1)) == read("image", pictures, images(only=only))
    assert began


@pytest.mark.usefixtures("eager")
def test_recordings_and_other_files_are_those_of_one_process(tmp_path: Path, began: list[Child]) -> None:
    for number in range(FILES):
        with wave.open(str(tmp_path / f"{number:02}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(range(2 * number + 2)))
    files = sorted(map(str, tmp_path.iterdir()))
    for form, names in {"wav": ("samples", "rate"), "audio": ("samples", "rate"), "bytes": ("data", "size")}.items():
        wanted = Wanted(dtypes=dict.fromkeys(names), keys=("path",), threads=2)
        assert read(form, files, replace(wanted, processes=1)) == read(form, files, wanted)
    assert len(began) == 3


@pytest.mark.usefixtures("eager")
def test_what_decoding_warns_of_is_said_in_the_process_that_reads(pictures: list[str], began: list[Child]) -> None:
    """Pillow warns of a palette with transparency as bytes: once for each place, so one process alone shows it."""
    for number in range(20, 30):
        picture = Image.fromarray(np.arange(9, dtype=np.uint8).reshape(3, 3)).convert("P")
        picture.save(pictures[number], transparency=bytes(range(9)))
    with pytest.warns(UserWarning, match="Transparency") as shown:
        read("image", pictures, images(processes=1))
    assert {one.category for one in shown} == {UserWarning}
    assert began


@pytest.mark.usefixtures("eager")
def test_names_may_be_any_bytes(tmp_path: Path, began: list[Child]) -> None:
    names = [f"{number:02}\udcff\n\u2028ä.bin" for number in range(FILES)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode(errors="surrogateescape"))
    wanted = Wanted(dtypes={"data": None}, keys=("path",), threads=2)
    files = [str(tmp_path / name) for name in names]
    assert read("bytes", files, replace(wanted, processes=1)) == read("bytes", files, wanted)
    assert began


@pytest.mark.usefixtures("eager")
@pytest.mark.quick("1")
@pytest.mark.parametrize("answers", [0, 1])
def test_what_a_process_leaves_is_decoded_when_it_is_killed(
    pictures: list[str], began: list[Child], monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    expected = read("image", pictures, images())
    messages = Child.messages

    def killed(child: Child) -> Iterator[dict[str, Any]]:
        for number, message in enumerate(messages(child)):
            if number == answers:
                child.send_signal(signal.SIGKILL)
                return
            yield message

    monkeypatch.setattr(Child, "messages", killed)
    assert read("image", pictures, images(processes=1)) == expected
    assert [child.wait() for child in began] == [-signal.SIGKILL]


@pytest.mark.usefixtures("eager")
def test_all_is_decoded_where_a_process_does_not_come_so_far(
    pictures: list[str], began: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read("image", pictures, images())
    monkeypatch.setattr(decoding_processes, "__name__", "support.nothing_there")
    assert read("image", pictures, images(processes=1)) == expected
    assert [child.wait() for child in began] == [1]


@pytest.mark.usefixtures("eager")
def test_all_is_decoded_where_no_process_can_be_started(pictures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read("image", pictures, images())

    def refuse(_child: Child) -> Child:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Child, "__enter__", refuse)
    assert read("image", pictures, images(processes=2)) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_large_files_are_left_to_the_process_that_reads(
    tmp_path: Path, began: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [10] * 20 + [3 << 20] * 12 + [10] * 200
    for number, size in enumerate(sizes):
        (tmp_path / f"{number:03}.bin").write_bytes(bytes(size))
    files = sorted(map(str, tmp_path.iterdir()))
    told: list[str] = []
    tell = Child.tell

    def hear(child: Child, **message: Any) -> None:
        told.extend(message.get("paths", ()))
        tell(child, **message)

    monkeypatch.setattr(Child, "tell", hear)
    wanted = Wanted(dtypes={"data": None}, threads=2, processes=1)
    with SOURCES["bytes"].open_source(files, str(tmp_path), wanted) as source:
        read = [len(cell) for block in source.blocks(0, cycle([3])) for cell in block.columns["data"]]
    assert read == sizes
    assert told
    assert files[-1] not in told, "after some large files, none is given away"
    assert [child.wait() for child in began] == [0]


@pytest.mark.parametrize(("seconds", "rows"), [(1e-9, 256), (0.0001, 100), (0.001, 10), (0.1, 4)])
def test_a_chunk_has_as_many_rows_as_are_decoded_in_good_time(seconds: float, rows: int) -> None:
    processes = DecodingProcesses("bytes", Wanted(dtypes={}, processes=1), None, lambda _: None, seconds)
    assert processes.rows_of_a_chunk == rows


def test_no_process_is_started_where_memory_is_short(monkeypatch: pytest.MonkeyPatch, began: list[Child]) -> None:
    monkeypatch.setattr(decoding_processes, "room", lambda _limit: 500 << 20)
    raw_rows = (RawRow(str(number), "", str(number)) for number in range(9))
    processes = DecodingProcesses("bytes", Wanted(dtypes={}, processes=2), None, lambda _: None, 0.0001)
    assert list(processes.rows(raw_rows, lambda _: ({}, 1))) == []
    assert next(raw_rows).value == "0", "no row was taken"
    assert not began


class Clock:
    """A clock that goes on when a row is decoded, and when a session is waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("count", "decoding", "waiting", "asked_after"),
    [
        (100_000, 0.0001, 0.0, 1000),
        (100_000, 0.0001, 0.00009, 1000),
        (100_000, 0.0001, 0.00011, None),  # the sessions take longer
        (20_500, 0.0001, 0.0, None),  # 1.95 s are left
        (21_500, 0.0001, 0.0, 1000),
    ],
)
def test_processes_are_asked_for_where_they_help(
    monkeypatch: pytest.MonkeyPatch, count: int, decoding: float, waiting: float, asked_after: int | None
) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    asked: list[tuple[int, float]] = []
    taken = 0

    def decode(raw: RawRow) -> Found:
        clock.now += decoding
        return {"n": raw.value}, 1

    def beside(raw_rows: Iterator[RawRow], decode: Callable[[RawRow], Found], seconds: float) -> Iterator[Any]:
        asked.append((taken, seconds))
        yield from ((raw, decode(raw)) for raw in islice(raw_rows, 500))

    raw_rows = (RawRow("", "", number) for number in range(5000))
    for raw, (values, _) in DecodedAhead(raw_rows, decode, 2, None, 1.0, beside=beside, count=count).rows():  # type: ignore[arg-type]
        assert raw.value == values["n"] == taken  # type: ignore[index]
        taken += 1
        clock.now += waiting
    assert taken == 5000
    assert [after for after, _ in asked] == ([] if asked_after is None else [asked_after])
    assert [seconds for _, seconds in asked] == pytest.approx([decoding] * len(asked))


def test_rows_that_seem_slow_now_and_then_do_not_hide_that_most_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    asked: list[float] = []

    def decode(raw: RawRow) -> Found:
        clock.now += 0.0001 if raw.value % 300 else 0.003  # a thread waits for Python as long as others have it
        return {"n": raw.value}, 1

    def beside(raw_rows: Iterator[RawRow], decode: Callable[[RawRow], Found], seconds: float) -> Iterator[Any]:
        asked.append(seconds)
        yield from ((raw, decode(raw)) for raw in raw_rows)

    raw_rows = (RawRow("", "", number) for number in range(5000))
    rows = DecodedAhead(raw_rows, decode, 2, None, 1.0, beside=beside, count=100_000).rows()  # type: ignore[arg-type]
    assert [raw.value for raw, _ in rows] == list(range(5000))
    assert len(asked) == 1


def test_a_row_that_lacked_memory_beside_others_is_decoded_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    lacking = {500, 1500}

    def decode(raw: RawRow) -> Found:
        clock.now += 0.0001
        if raw.value in lacking:
            lacking.remove(raw.value)
            return RowError("it takes 9 GiB", TOO_LARGE), 1
        return {"n": raw.value}, 1

    def beside(raw_rows: Iterator[RawRow], decode: Callable[[RawRow], Found], _seconds: float) -> Iterator[Any]:
        yield from ((raw, decode(raw)) for raw in raw_rows)

    raw_rows = (RawRow("", "", number) for number in range(2000))
    rows = DecodedAhead(raw_rows, decode, 2, None, 1.0, beside=beside, count=100_000).rows()  # type: ignore[arg-type]
    assert [found for _, found in rows] == [({"n": number}, 1) for number in range(2000)]
    assert not lacking
