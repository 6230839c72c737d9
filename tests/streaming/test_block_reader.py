"""Blocks that are slow to prepare are prepared on several threads: in their order, and what goes wrong in its turn."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper
from PIL import Image
from support.effort import effort
from support.fakes import FakeRuntime, double
from support.jobs import changed, execute, failed, plan_for, rows, save
from support.models import save_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.feeds import row_sources
from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.in_flight import InFlight
from ortdeploy.files.memory_budget import on_memory_pressure, release_others
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, PlannedStep, RunJob
from ortdeploy.process import daemon_threads
from ortdeploy.results.results import Status
from ortdeploy.results.rows import Block, StageError
from ortdeploy.sources import image, prefetch
from ortdeploy.sources import rows as read_rows_module
from ortdeploy.sources.pixels import pixels_of
from ortdeploy.streaming import block_reader
from ortdeploy.streaming.block_reader import BlockReader
from ortdeploy.streaming.block_sizes import BlockSizes
from ortdeploy.streaming.stall_watch import StallWatch
from ortdeploy.tensors.columns import size_bytes

PATIENCE = 60.0
BLOCKS = 9


@pytest.fixture
def job(tmp_path: Path) -> RunJob:
    save(tmp_path, range(4))
    (found,) = run_jobs(plan_for(tmp_path, 4))
    return found


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every block count as slow to prepare, and four be prepared at once."""
    monkeypatch.setattr(block_reader, "SLOW", 0.0)
    monkeypatch.setattr(block_reader, "prepared_at_once", lambda _job, _bytes: 4)


def block(number: int) -> Block:
    return Block(start=number, count=1, rows=[number], columns={"array": np.full((1, 2), number)}, failed=[])


def blocks(count: int = BLOCKS) -> Iterator[Block]:
    return map(block, range(count))


class Steps:
    """Prepare steps that do what `work` does with the number of a block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
        def prepare(_: Feeder, block: Block) -> dict[str, Any]:
            work(block.start)
            return {"x": block.columns["array"]}

        monkeypatch.setattr(Feeder, "prepare_block", prepare)


def reader(job: RunJob, *, are_waiting: bool = True) -> BlockReader:
    return BlockReader(job, {}, StallWatch(None, []), lambda: are_waiting)


def numbers(reader: BlockReader, read: Iterator[Block]) -> list[int]:
    found: list[int] = []
    while (taken := reader.next(read)) is not None:
        assert taken[0].feeds is not None
        assert taken[0].feeds["x"][0, 0] == taken[0].block.start
        found.append(taken[0].block.start)
    reader.close()
    return found


@pytest.mark.usefixtures("four")
def test_slow_blocks_are_prepared_at_once_and_keep_their_order(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4)
    Steps(monkeypatch, lambda number: number and together.wait(PATIENCE))  # the first one tells that they are slow
    assert numbers(reader(job), blocks()) == list(range(BLOCKS))


@pytest.mark.parametrize("settings", [{"are_waiting": False}, {}])
def test_one_thread_prepares_what_is_quick_or_not_waited_for(
    job: RunJob, monkeypatch: pytest.MonkeyPatch, settings: dict[str, bool]
) -> None:
    monkeypatch.setattr(block_reader, "SLOW", 0.0 if settings else PATIENCE)
    monkeypatch.setattr(block_reader, "prepared_at_once", lambda _job, _bytes: 4)
    seen: set[int] = set()
    Steps(monkeypatch, lambda _: seen.add(threading.get_ident()))
    assert numbers(reader(job, **settings), blocks()) == list(range(BLOCKS))
    assert seen == {threading.get_ident()}


SCALE = PlannedStep(name="scale", options={"scale": 2.0}, dtype="float32", shape=("batch", 2), layout=None, results=())


def with_steps(plan: Plan) -> Plan:
    """Return a plan whose one job scales its rows before it runs them."""
    (job,) = run_jobs(plan)
    return changed(plan, inputs=tuple(replace(one, steps=(SCALE,)) for one in job.inputs))


@pytest.mark.parametrize("told", [False, True])
def test_a_job_that_is_told_of_each_run_prepares_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """So a crash can only be that run's."""
    seen: set[str] = set()
    real = Feeder.prepare_block

    def noted(self: Feeder, block: Block) -> Any:
        seen.add(threading.current_thread().name)
        return real(self, block)

    monkeypatch.setattr(Feeder, "prepare_block", noted)
    monkeypatch.setattr(block_reader, "SLOW", 0.0)
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    monkeypatch.setattr(InFlight, "lacks_blocks", lambda _: True)
    save(tmp_path, range(40))
    plan = with_steps(plan_for(tmp_path, 40))
    execute(tmp_path, plan, FakeRuntime(double), on_run=(lambda _job, _rows: None) if told else None)
    assert ("ortdeploy-preparer" in seen) is not told
    assert [value for _, value in rows(tmp_path)] == [4.0 * number for number in range(40)]


@pytest.mark.usefixtures("four")
def test_what_preparing_raises_is_raised_in_its_turn(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        if number == 5:
            raise KeyError(number)

    Steps(monkeypatch, work)
    one, read = reader(job), blocks()
    assert [one.next(read)[0].block.start for _ in range(5)] == [0, 1, 2, 3, 4]  # type: ignore[index]
    with pytest.raises(KeyError):
        one.next(read)


@pytest.mark.usefixtures("four")
def test_an_input_that_breaks_off_ends_the_blocks_in_its_turn(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Block]:
        yield from blocks(5)
        raise OrtdeployError("the share is gone")

    Steps(monkeypatch, lambda _: None)
    one, read = reader(job), broken()
    assert [one.next(read)[0].block.start for _ in range(5)] == [0, 1, 2, 3, 4]  # type: ignore[index]
    with pytest.raises(OrtdeployError, match="the share is gone"):
        one.next(read)


@pytest.mark.usefixtures("four")
def test_a_block_that_has_too_little_memory_beside_others_is_prepared_alone(
    job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    tried: list[int] = []

    def work(number: int) -> None:
        if threading.get_ident() != here and number in {3, 4}:
            tried.append(number)
            raise MemoryError

    Steps(monkeypatch, work)
    assert numbers(reader(job), blocks()) == list(range(BLOCKS))
    assert tried.count(3) == 1
    assert len(tried) <= 2


@pytest.mark.usefixtures("four")
def test_a_block_that_never_fits_ends_the_job(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        if number == 2:
            raise MemoryError

    Steps(monkeypatch, work)
    one, read = reader(job), blocks()
    assert [one.next(read)[0].block.start for _ in range(2)] == [0, 1]  # type: ignore[index]
    with pytest.raises(MemoryError):
        one.next(read)


@pytest.mark.usefixtures("four")
def test_a_prepared_block_does_not_wait_until_later_ones_are_read(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a slow disk would look like a job that hangs."""
    read: list[int] = []
    one = reader(job)

    def slowly() -> Iterator[Block]:
        for number in range(BLOCKS):
            if ahead := one._ahead:  # noqa: SLF001  reading takes longer than preparing
                first = ahead[0][2]
                assert first is not None
                first.result(PATIENCE)
            read.append(number)
            yield block(number)

    Steps(monkeypatch, lambda _: None)
    blocks_read = slowly()
    for number in range(BLOCKS):
        taken = one.next(blocks_read)
        assert taken is not None
        assert taken[0].block.start == number
        assert len(read) <= number + 2
    one.close()


def test_no_block_is_read_behind_one_that_is_to_be_prepared_alone(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reader, "SLOW", 0.0)
    monkeypatch.setattr(block_reader, "prepared_at_once", lambda _job, size: 1 if size > 16 else 4)
    Steps(monkeypatch, lambda _: None)
    large, seen = {4, 5}, list[int]()

    def read() -> Iterator[Block]:
        for number in range(BLOCKS):
            seen.append(number)
            rows = 2 if number in large else 1
            yield replace(block(number), columns={"array": np.full((rows, 2), number)})

    one, blocks_read = reader(job), read()
    for number in range(BLOCKS):
        one.next(blocks_read)
        assert number not in large or seen[-1] == number
    one.close()


@pytest.mark.usefixtures("four")
def test_blocks_that_are_ahead_are_passed_on_before_one_that_lacks_memory_is_read(
    job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    Steps(monkeypatch, lambda _: None)
    monkeypatch.setattr(BlockReader, "_is_first_prepared", lambda _: False)
    one, passed_on = reader(job), list[int]()

    def let_go() -> None:
        while (taken := one.next_ahead()) is not None:
            passed_on.append(taken[0].block.start)

    def read() -> Iterator[Block]:
        for number in range(BLOCKS):
            if number == 4:
                on_memory_pressure(let_go)
                release_others()
            yield block(number)

    def found() -> list[int]:
        blocks_read = read()
        while (taken := one.next(blocks_read)) is not None:
            passed_on.append(taken[0].block.start)
        return passed_on

    assert copy_context().run(found) == list(range(BLOCKS))
    one.close()


def test_a_thread_that_finds_all_steps_in_use_makes_its_own(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(list[Feeder]):
        """Another thread takes the last one at the same time."""

        def __bool__(self) -> bool:
            self.clear()
            return True

    Steps(monkeypatch, lambda _: None)
    one = reader(job)
    one._feeders = Taken()  # noqa: SLF001  two threads do not meet there at will
    assert numbers(one, blocks(2)) == [0, 1]


@pytest.mark.parametrize(("said", "told"), [(["Unable to allocate 9 GiB"], " (Unable to allocate 9 GiB)"), ([], "")])
def test_memory_that_runs_out_in_preparing_ends_the_job_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], told: str
) -> None:
    def run_out(_: int) -> None:
        raise MemoryError(*said)

    Steps(monkeypatch, run_out)
    save(tmp_path, range(4))
    result = execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(double))
    assert (result.status, result.reason) == (
        Status.FAILED,
        f"memory ran out; a smaller batch or rows_per_part, or fewer threads, need less{told}",
    )


class Noting(StallWatch):
    """Notes what the reader says of its work."""

    def __init__(self) -> None:
        self.noted: list[bool] = []
        super().__init__(None, [])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "reading":
            self.noted.append(value is not None)


@pytest.mark.usefixtures("four")
def test_the_reader_is_at_work_while_it_waits_for_a_thread(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it reads nothing, because fewer blocks are wanted than are on their way."""
    stall, four_read = Noting(), threading.Event()
    monkeypatch.setattr(block_reader, "prepared_at_once", lambda _job, _bytes: 1 if four_read.is_set() else 4)
    Steps(monkeypatch, lambda number: number and four_read.wait(PATIENCE))

    def and_tell() -> Iterator[Block]:
        for number in range(BLOCKS):
            if number == 4:
                four_read.set()
            yield block(number)

    one, read = BlockReader(job, {}, stall, lambda: True), and_tell()
    one.next(read)
    one.next(read)
    stall.noted.clear()
    one.next(read)
    assert stall.noted == [True, False]
    one.close()


class Clock(threading.local):
    """The clock of one thread, which goes on when the thread prepares."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter


@pytest.mark.usefixtures("four")
def test_the_processor_seconds_of_other_threads_count(job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (block_reader, daemon_threads):
        monkeypatch.setattr(module, "time", clock)

    def work(number: int) -> None:
        clock.now += 1.0 + number

    Steps(monkeypatch, work)
    one, read = reader(job), blocks()
    found = [one.next(read)[1] for _ in range(BLOCKS)]  # type: ignore[index]
    assert found == [1.0 + number for number in range(BLOCKS)]
    assert one.cpu_seconds == sum(found)
    assert (one.prepare_times.count, one.prepare_times.total, one.prepare_times.cpu) == (BLOCKS, sum(found), sum(found))
    assert one.read_times.cpu == 0


@settings(max_examples=effort(5, 100))
@given(broken=st.sets(st.integers(0, 39)), stop_after=st.integers(1, 40), size=st.integers(1, 5))
def test_rows_are_those_of_one_thread(
    tmp_path_factory: pytest.TempPathFactory, broken: set[int], stop_after: int, size: int
) -> None:
    """Rows that cannot be fed fail alone, and a run that was stopped goes on where it was."""
    real = Feeder._prepare  # noqa: SLF001

    def refuse(self: Feeder, block: Block, rows: Sequence[int]) -> dict[str, Any]:
        if broken.intersection(block.rows[row] for row in rows):
            raise StageError("prepare", "broken", "it is broken")
        return real(self, block, rows)

    def made(threads: int) -> tuple[list[tuple[int, float]], list[int]]:
        folder = tmp_path_factory.mktemp("job")
        save(folder, range(40))
        plan = plan_for(folder, 40, size=size, max_failed="100%")
        done: list[int] = []

        def double_and_count(feeds: Any) -> Any:
            done.append(len(feeds["x"]))
            return double(feeds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block_reader, "SLOW", 0.0)
            patch.setattr(block_reader, "prepared_at_once", lambda _job, _bytes: threads)
            patch.setattr(Feeder, "_prepare", refuse)
            execute(folder, plan, FakeRuntime(double_and_count), stop=lambda: sum(done) >= stop_after)
            execute(folder, plan, FakeRuntime(double))
        return rows(folder), [one["row"] for one in failed(folder)]

    assert made(4) == made(1)


PICTURES = """\
version: 1
models:
  m: {path: m.onnx}
jobs:
  run:
    model: m
    input: {path: pictures, key: [path]}
    prepare: {x: [{resize: [4, 4]}, {scale: 0.00392}, {layout: NCHW}]}
    batch: {size: 2}
    limits: {threads: THREADS}
    output: {path: out}
"""


def save_pictures(folder: Path, heights: Sequence[int]) -> None:
    """Write pictures seven pixels wide, and a model that takes them once they are resized."""
    (folder / "pictures").mkdir()
    random = np.random.default_rng(0)
    for number, height in enumerate(heights):
        pixels = random.integers(0, 255, (height, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"pictures/{number:02}.png")
    save_model(
        folder / "m.onnx",
        [helper.make_node("Flatten", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ["batch", 3, 4, 4])},
        {"y": (TensorProto.FLOAT, ["batch", 48])},
    )


def test_pictures_give_the_same_rows_on_every_number_of_threads(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_reader, "SLOW", 0.0)
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    save_pictures(tmp_path, range(5, 17))
    found = []
    for threads in (1, 4):
        (tmp_path / "m.yaml").write_text(PICTURES.replace("THREADS", str(threads)))
        assert cli("apply", tmp_path / "m.yaml", "--new-run").code == 0
        found.append(read_rows(tmp_path / "out"))
    assert found[0] == found[1]
    assert len(found[0]) == 12


class Memory:
    """Room for the pixels of some pictures. It is looked for where threads of a job decode and prepare them."""

    def __init__(self, heights: int) -> None:
        self.room = heights * 7 * 3
        self._taken = 0
        self._lock = threading.RLock()

    def given_back(self, size: int) -> None:
        with self._lock:
            self._taken -= size

    def take(self, made: Any, *, check: bool = True) -> Any:
        with self._lock:
            is_job = threading.current_thread() is not threading.main_thread()
            if check and is_job and made.nbytes and self._taken + made.nbytes > self.room:
                raise MemoryError
            self._taken += made.nbytes
            weakref.finalize(made, self.given_back, made.nbytes)
        return made


@pytest.mark.parametrize("scratch", [0, 1], ids=["decoding", "preparing"])
def test_what_fits_into_memory_on_one_thread_fits_on_four(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: int
) -> None:
    """A large picture among small ones leaves room for three small blocks."""
    heights = [90 if number in {7, 14} else 10 for number in range(20)]
    save_pictures(tmp_path, heights)
    for module in (block_reader, prefetch):
        monkeypatch.setattr(module, "SLOW", 0.0)
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    monkeypatch.setattr(block_reader, "prepared_at_once", lambda _job, taken: 1 if taken > 50 * 21 else 4)
    monkeypatch.setattr(prefetch, "rows_at_once", lambda taken, *_: 1 if taken > 50 * 21 else 4)
    monkeypatch.setattr(BlockSizes, "learn", lambda *_: None)  # blocks of one batch
    memory = Memory((1 + scratch) * (90 + 10) + 3 * 20)
    pixels, stack, prepare = pixels_of, read_rows_module.stack, Feeder.prepare_block

    def stacked(column: list[Any]) -> Any:
        made = stack(column)
        return memory.take(made, check=False) if isinstance(made, np.ndarray) and made.ndim > 1 else made

    def prepared(self: Feeder, block: Block) -> Any:
        taken = memory.take(np.empty(scratch * size_bytes(block.columns), np.uint8))
        found = prepare(self, block)
        del taken
        return found

    monkeypatch.setattr(image, "pixels_of", lambda *picture: memory.take(pixels(*picture)))
    monkeypatch.setattr(read_rows_module, "stack", stacked)
    monkeypatch.setattr(Feeder, "prepare_block", prepared)
    (tmp_path / "m.yaml").write_text(PICTURES.replace("THREADS", "4"))
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    assert len(read_rows(tmp_path / "out")) == len(heights)
