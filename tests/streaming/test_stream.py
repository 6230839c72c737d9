"""What a run does when memory is too small, when something hangs, and when signals say how urgent an end is."""

import _thread
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.fakes import FakeRuntime, double
from support.forks import Fork
from support.jobs import (
    changed,
    execute,
    failed,
    plan_for,
    plan_with_all,
    report,
    rows,
    save,
)
from support.logs import capture_logs
from support.waiting import wait_for

from ortdeploy import retries
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import OutOfMemoryError, TransientError
from ortdeploy.durations import LATE
from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.in_flight import MOST
from ortdeploy.files.memory_budget import release_others
from ortdeploy.jobs import job_context
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.results import Status
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sessions.opening import OpenedModel
from ortdeploy.sources.arrays import ArraySource
from ortdeploy.streaming import stall_watch, stream
from ortdeploy.streaming.block_sizes import TARGET_SECONDS
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.streaming.member import Promise

PATIENCE = 60.0

Feeds = Mapping[str, np.ndarray]


def test_a_batch_that_memory_is_too_small_for_is_halved_for_the_rest_of_the_job(tmp_path: Path) -> None:
    save(tmp_path, range(64))

    def at_most_five(feeds: Feeds) -> Feeds:
        if len(feeds["x"]) > 5:
            raise OutOfMemoryError("Failed to allocate memory for requested buffer of size 99")
        return double(feeds)

    runtime = FakeRuntime(at_most_five)
    with capture_logs() as events:
        result = execute(tmp_path, plan_for(tmp_path, 64, size=16, rows_per_part=64), runtime)
    assert (result.status, result.committed, result.failed) == (Status.DONE, 64, 0)
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(64)]
    assert [(e["rows"], e["before"]) for e in events if e["event"] == "batch.halved"] == [(8, 16), (4, 8)]
    sizes = [len(batch["x"]) for batch in runtime.sessions[0].batches]
    assert set(sizes) == {4, 8, 16}
    assert sizes[-8:] == [4] * 8
    assert report(tmp_path)["sessions"][0]["batch_size"] == 4


def test_who_wants_to_know_is_told_of_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(24))
    told, real = list[tuple[float, float, int]](), stream.Stream

    def telling(job: RunJob, opened: OpenedModel, hooks: Hooks) -> stream.Stream:
        return real(job, opened, replace(hooks, on_batch=lambda *span: told.append(span)))

    monkeypatch.setattr(job_context, "Stream", telling)
    execute(tmp_path, plan_for(tmp_path, 24, size=8, rows_per_part=24), FakeRuntime(double))
    assert [rows for _, _, rows in told] == [8, 8, 8]
    assert all(began <= ended for began, ended, _ in told)


def test_padded_batches_are_padded_to_the_smaller_size(tmp_path: Path) -> None:
    save(tmp_path, range(21))

    def at_most_two(feeds: Feeds) -> Feeds:
        if len(feeds["x"]) > 2:
            raise MemoryError
        return double(feeds)

    runtime = FakeRuntime(at_most_two)
    result = execute(tmp_path, plan_for(tmp_path, 21, size=4, last="pad"), runtime)
    assert (result.status, result.committed) == (Status.DONE, 21)
    assert {len(batch["x"]) for batch in runtime.sessions[0].batches[-4:]} == {2}


def test_one_row_that_memory_is_too_small_for_fails_alone(tmp_path: Path) -> None:
    save(tmp_path, range(8))

    def not_the_third(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 3).any():
            raise OutOfMemoryError("Failed to allocate memory")
        return double(feeds)

    result = execute(tmp_path, plan_for(tmp_path, 8, max_failed=1), FakeRuntime(not_the_third))
    assert (result.status, result.committed) == (Status.DONE, 7)
    assert [(row["row"], row["stage"], row["code"]) for row in failed(tmp_path)] == [(3, "run", "out-of-memory")]


@pytest.mark.process
def test_what_may_pass_is_tried_again_and_what_may_not_is_not(tmp_path: Path) -> None:
    save(tmp_path, range(8))
    calls = dict.fromkeys((2, 5), 0)

    def busy(feeds: Feeds) -> Feeds:
        for row in calls:
            if (feeds["x"] == row).any():
                calls[row] += len(feeds["x"]) == 1
                if row == 5 or calls[row] < 3:
                    raise TransientError("the device is busy")
        return double(feeds)

    result = execute(tmp_path, changed(plan_for(tmp_path, 8, max_failed=1), errors={"retries": 2}), FakeRuntime(busy))
    assert (result.status, result.committed) == (Status.DONE, 7)
    assert [(row["row"], row["attempts"]) for row in failed(tmp_path)] == [(5, 3)]
    assert report(tmp_path)["retries"] == 4


def test_so_many_failures_one_after_the_other_end_the_job(tmp_path: Path) -> None:
    def refuse(feeds: Feeds) -> Feeds:
        if (feeds["x"] < 0).any():
            raise TransientError("no")
        return double(feeds)

    scattered = [-1.0 if row % 2 else float(row) for row in range(20)]
    (tmp_path / "a").mkdir()
    save(tmp_path / "a", scattered)
    plan = changed(plan_for(tmp_path / "a", 20, max_failed=20), errors={"max_consecutive": 3})
    assert execute(tmp_path / "a", plan, FakeRuntime(refuse)).status is Status.DONE
    (tmp_path / "b").mkdir()
    save(tmp_path / "b", [*range(6), *[-1.0] * 4, *range(10)])
    plan = changed(plan_for(tmp_path / "b", 20, max_failed=20), errors={"max_consecutive": 3})
    result = execute(tmp_path / "b", plan, FakeRuntime(refuse))
    assert result.status is Status.FAILED
    assert "4 rows failed one after the other and errors: {max_consecutive: 3}" in (result.reason or "")


@pytest.fixture(name="hang")
def hanging() -> "threading.Event":
    """An event on which things hang until the test is over."""
    return threading.Event()


def test_a_session_that_hangs_is_named_and_what_is_through_is_committed(tmp_path: Path, hang: threading.Event) -> None:
    save(tmp_path, range(40))

    def hang_on_20(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 20).any():
            hang.wait(20)
        return double(feeds)

    result = execute(
        tmp_path, changed(plan_for(tmp_path, 40), errors={"progress_timeout": 2.0}), FakeRuntime(hang_on_20)
    )
    hang.set()
    assert result.status is Status.FAILED
    assert "no batch was completed for 2 s: session m runs rows 16 to 23" in (result.reason or "").replace(
        "20 to 23", "16 to 23"
    )
    assert [row for row, _ in rows(tmp_path)] in (list(range(16)), list(range(20)))
    assert execute(tmp_path, plan_for(tmp_path, 40), FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(40)]


def test_the_rows_of_a_session_that_hangs_go_to_another(tmp_path: Path, hang: threading.Event) -> None:
    save(tmp_path, range(40))
    first = iter([True])

    def hang_once(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 20).any() and next(first, False):
            hang.wait(20)
        return double(feeds)

    plan = changed(plan_with_all(tmp_path, 40, on_unavailable="next"), errors={"progress_timeout": 2.0})
    result = execute(tmp_path, plan, FakeRuntime(hang_once))
    hang.set()
    assert (result.status, result.committed) == (Status.DONE, 40)
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(40)]
    failures = [one["failure"] for one in report(tmp_path)["sessions"] if one["failure"]]
    assert len(failures) == 1
    assert "runs rows 20 to 23" in failures[0]


def test_an_input_that_hangs_is_named(tmp_path: Path, hang: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(40))
    monkeypatch.setattr(ArraySource, "blocks", lambda *_: iter(lambda: hang.wait(20), None))
    result = execute(tmp_path, changed(plan_for(tmp_path, 40), errors={"progress_timeout": 0.2}), FakeRuntime(double))
    hang.set()
    assert result.status is Status.FAILED
    assert "the input is read for" in (result.reason or "")


def test_a_block_none_of_whose_rows_can_be_read_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(24))
    real = ArraySource.blocks

    def unreadable(self: ArraySource, start: int, sizes: Any) -> Iterator[Block]:
        for block in real(self, start, sizes):
            if block.start < 8:
                bad = [FailedRow(row=row, source="a", stage="read", code="bad", message="bad") for row in block.rows]
                none = {name: column[:0] for name, column in block.columns.items()}
                yield Block(start=block.start, count=block.count, rows=[], columns=none, failed=bad)
            else:
                yield block

    monkeypatch.setattr(ArraySource, "blocks", unreadable)
    result = execute(tmp_path, plan_for(tmp_path, 24, max_failed=9), FakeRuntime(double))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 16, 8)
    assert [row for row, _ in rows(tmp_path)] == list(range(8, 24))


def test_a_process_that_was_stopped_meanwhile_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP, or a frozen container: all threads stop, and the clock goes on."""
    save(tmp_path, range(40))
    clock, wait, frozen = time.perf_counter, Promise.result, 0.0
    running, waited_again = threading.Event(), threading.Event()

    def result(self: Promise, timeout: float | None = None) -> Any:
        nonlocal frozen
        assert running.wait(20)
        if not self.done():
            if frozen:
                waited_again.set()
            frozen = 100.0
        return wait(self, timeout)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + frozen)
    monkeypatch.setattr(Promise, "result", result)

    def wait_on_20(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 20).any() and not running.is_set():
            running.set()
            waited_again.wait(20)
        return double(feeds)

    ended = execute(
        tmp_path, changed(plan_for(tmp_path, 40), errors={"progress_timeout": 10.0}), FakeRuntime(wait_on_20)
    )
    waited_again.set()
    assert ended.status is Status.DONE, ended.reason


class Hours:
    """A clock that tests move on by hours, and runs that last until they were looked after.

    What waits for a run looks after it at once, and again and again, not after the seconds that it may be patient.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed, self._looked = 0.0, threading.Event()
        clock, wait = time.perf_counter, Promise.result

        def result(future: Promise, timeout: float | None = None) -> Any:
            try:
                return wait(future, None if timeout is None else 0.001)
            except TimeoutError:
                self._looked.set()
                raise

        monkeypatch.setattr(time, "perf_counter", lambda: clock() + self._passed)
        monkeypatch.setattr(Promise, "result", result)
        monkeypatch.setattr(stall_watch, "LATE", 3600.0)  # that the clock is moved on is no sleep of the process

    def go_by(self, hours: float) -> None:
        self._passed += hours * 3600

    def double_after(self, hours: float) -> Callable[[Feeds], Feeds]:
        """Return a run that takes so long, and is looked after while it lasts."""

        def run(feeds: Feeds) -> Feeds:
            self.go_by(hours)
            self._looked.clear()
            assert self._looked.wait(20)
            return double(feeds)

        return run


def test_a_run_that_ends_with_the_patience_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(12))
    wait = Promise.result

    def result(future: Promise, timeout: float | None = None) -> Any:
        done = wait(future)
        if timeout is not None:
            raise TimeoutError
        return done

    monkeypatch.setattr(Promise, "result", result)
    plan = changed(plan_for(tmp_path, 12), errors={"progress_timeout": 60})
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE


def test_slow_is_not_hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(12))
    plan = changed(plan_for(tmp_path, 12, rows_per_part=12), errors={"progress_timeout": 2.5 * 3600})
    runtime = FakeRuntime(Hours(monkeypatch).double_after(1))
    assert execute(tmp_path, plan, runtime).status is Status.DONE


ALARM = 600
"""Seconds after which a program that should have ended counts as one that hangs, on the slowest machine."""


def be_signalled(folder: Path, *, endless: bool, stuck: bool, rows_per_part: int) -> None:
    """Run a job whose sixth batch hangs, say what happens, and end this process as signals have asked."""
    for_ever, signalled = threading.Event(), threading.Event()

    def say(what: str) -> None:
        os.write(2, f"{what}\n".encode())  # whole, and not among the log lines

    def slow(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 20).any():
            say("hangs")
            (for_ever if endless else signalled).wait()
        return double(feeds)

    def heard(_number: int) -> None:
        signalled.set()  # before the next signal is asked for: its handler would wait for the lock that this one holds
        say("signal")

    def stick(*_: Any, **__: Any) -> None:
        say("stuck")
        for_ever.wait()

    stop = StopFlag(heard)
    signal.alarm(ALARM)  # a program that does not end is ended, by another signal than the test expects
    with pytest.MonkeyPatch.context() as patch, stop.installed():
        if stuck:
            patch.setattr(Ledger, "end", stick)
        result = execute(folder, plan_for(folder, 4000, rows_per_part=rows_per_part), FakeRuntime(slow), stop=stop)
    say(f"{result.status} {result.committed}")
    os._exit(stop.exit_code)


def run_signalled(
    folder: Path, signals: int, *, endless: bool = True, stuck: bool = False, rows_per_part: int = 4000
) -> tuple[int, str]:
    """Run a job whose sixth batch hangs; send SIGINT when it is there; return exit code and last line.

    The batch hangs until the first signal has come, or is `endless`; the ledger is `stuck` at the end or not. Each
    signal is sent when the one before has come: the system makes one of two that wait.
    """
    save(folder, range(4000))
    process = Fork(
        lambda: be_signalled(folder, endless=endless, stuck=stuck, rows_per_part=rows_per_part),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    last = ""
    with process.stderr as said:
        for line in map(str.strip, said):
            last = last if line == "signal" else line
            signals -= line == "signal"
            if line in {"hangs", "stuck"} or (line == "signal" and signals > 0):
                process.send_signal(signal.SIGINT)
    return process.wait(), last


def test_a_stop_does_not_wait_for_a_block_that_is_still_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will run it. Large pictures take seconds to resize."""
    save(tmp_path, range(64))
    monkeypatch.setattr(stall_watch, "_LONGEST", 0.01)
    monkeypatch.setattr(stream, "PATIENCE", 0.01)
    asked, ended = threading.Event(), threading.Event()
    prepared: list[bool] = []
    real = Feeder.prepare_block

    def slowly(self: Feeder, block: Block) -> Any:
        if block.start >= 32:
            asked.set()
            prepared.append(ended.wait(PATIENCE / 4))
        return real(self, block)

    monkeypatch.setattr(Feeder, "prepare_block", slowly)
    result = execute(tmp_path, plan_for(tmp_path, 64), FakeRuntime(double), stop=asked.is_set)
    assert (result.status, prepared) == (Status.INTERRUPTED, [])
    ended.set()
    assert execute(tmp_path, plan_for(tmp_path, 64), FakeRuntime(double)).committed == 64


def test_the_first_signal_finishes_what_runs_and_commits_the_parts_that_are_whole(tmp_path: Path) -> None:
    code, last = run_signalled(tmp_path, signals=1, endless=False, rows_per_part=8)
    assert code == 130
    status, committed = last.split()
    assert status == "interrupted"
    assert 24 <= int(committed) < 4000
    assert int(committed) % 8 == 0
    assert [row for row, _ in rows(tmp_path)] == list(range(int(committed)))


def test_the_second_signal_gives_up_what_runs(tmp_path: Path) -> None:
    assert run_signalled(tmp_path, signals=2) == (130, "interrupted 0")
    assert not list((tmp_path / "out").glob("part-*"))
    assert execute(tmp_path, plan_for(tmp_path, 4000, rows_per_part=4000), FakeRuntime(double)).status is Status.DONE


def test_the_third_signal_exits_at_once(tmp_path: Path) -> None:
    assert run_signalled(tmp_path, signals=2, stuck=True) == (130, "stuck")
    assert os.path.exists(tmp_path / ".ortdeploy/state.db")  # noqa: PTH110


def idle_member() -> Any:
    """Return a session's thread that has run nothing yet."""
    runs = SimpleNamespace(seconds_left=None, restart_timer=lambda: None)
    return SimpleNamespace(rows=SimpleNamespace(progressed=0.0, runs=runs))


def test_a_thread_that_was_woken_late_in_between_finds_what_hangs_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = stall_watch.StallWatch(10.0, [idle_member()])

    def late(seconds: float) -> None:
        now[0] += seconds + (2 * LATE if now[0] < 9 else 0)
        raise TimeoutError

    for _ in range(4):
        with pytest.raises(TimeoutError):
            watch.patiently(late)
    assert (now[0], watch.is_stalled) == (10.0, True)


def test_a_process_that_was_stopped_past_its_patience_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = stall_watch.StallWatch(10.0, [idle_member()])

    def stopped(_seconds: float) -> None:
        now[0] += 600.0
        raise TimeoutError

    with pytest.raises(TimeoutError):
        watch.patiently(stopped)
    assert not watch.is_stalled


def test_a_signal_that_comes_just_before_a_wait_is_heard(tmp_path: Path) -> None:
    save(tmp_path, range(4000))
    heard, main = threading.Event(), threading.get_ident()

    def interrupt(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 20).any():
            wait_for(lambda: sys._current_frames()[main].f_code is Promise.result.__code__)  # noqa: SLF001
            _thread.interrupt_main()  # notes a signal as Python does, and does not wake the thread that waits
            assert heard.wait(PATIENCE)
        return double(feeds)

    stop = StopFlag(lambda _number: heard.set())
    with stop.installed():
        result = execute(tmp_path, plan_for(tmp_path, 4000), FakeRuntime(interrupt), stop=stop)
    assert (result.status, result.failed) == (Status.INTERRUPTED, 0)


def test_a_slow_disk_is_no_session_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(80))
    real, hours = Ledger.commit_part, Hours(monkeypatch)

    def slowly(self: Ledger, *arguments: Any, **options: Any) -> None:
        hours.go_by(3)
        real(self, *arguments, **options)

    monkeypatch.setattr(Ledger, "commit_part", slowly)
    plan = changed(plan_for(tmp_path, 80, rows_per_part=40), errors={"progress_timeout": 2.5 * 3600})
    assert execute(tmp_path, plan, FakeRuntime(hours.double_after(0.01))).status is Status.DONE


def test_blocks_that_take_the_processor_long_to_read_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, range(400))
    clock = count()
    monkeypatch.setattr(time, "thread_time", lambda: next(clock) * TARGET_SECONDS)
    with capture_logs() as events:
        execute(tmp_path, plan_for(tmp_path, 400, rows_per_part=400), FakeRuntime(double))
    assert [one["rows"] for one in events if one["event"] == "block.finished"] == [4] * 100


def test_what_a_block_held_and_gave_is_let_go_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, range(400))
    clock, real = count(), Feeder.prepare_block
    read: list[weakref.ref[Any]] = []
    given: list[weakref.ref[Any]] = []
    held: list[tuple[bool, bool]] = []

    def prepare(self: Feeder, block: Block) -> dict[str, Any] | None:
        read.append(weakref.ref(block.columns["array"]))
        return real(self, block)

    def run(feeds: Feeds) -> Feeds:
        results = double(feeds)
        given.append(weakref.ref(results["y"]))
        held.append((read[0]() is not None, given[0]() is not None))
        return results

    monkeypatch.setattr(time, "thread_time", lambda: next(clock) * TARGET_SECONDS)  # so that blocks stay small
    monkeypatch.setattr(Feeder, "prepare_block", prepare)
    execute(tmp_path, plan_for(tmp_path, 400, rows_per_part=400), FakeRuntime(run))
    assert len(read) == len(given) == 100
    assert held[0] == (True, True)
    assert set(held[2 * MOST :]) == {(False, False)}  # although their part is still being written


def test_what_lacks_memory_is_read_again_once_all_blocks_before_it_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, range(64))
    ran: list[int] = []
    before: list[tuple[int, int]] = []
    real = ArraySource.blocks

    def short_of_memory(self: ArraySource, start: int, sizes: Any) -> Iterator[Block]:
        for block in real(self, start, sizes):
            if block.start >= 32 and not before:
                release_others()
                before.append((block.start, sum(ran)))
            yield block

    def run(feeds: Feeds) -> Feeds:
        ran.append(len(feeds["x"]))
        return double(feeds)

    monkeypatch.setattr(ArraySource, "blocks", short_of_memory)
    assert execute(tmp_path, plan_for(tmp_path, 64), FakeRuntime(run)).status is Status.DONE
    ((start, rows_before),) = before
    assert rows_before == start


def test_rows_of_the_next_part_run_while_a_part_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(80))
    real, run, is_next = Ledger.commit_part, 0, threading.Event()

    def count(feeds: Feeds) -> Feeds:
        nonlocal run
        run += len(feeds["x"])
        if run > 8:
            is_next.set()
        return double(feeds)

    def wait_for_the_next(self: Ledger, *arguments: Any, **options: Any) -> None:
        assert is_next.wait(PATIENCE), "nothing ran meanwhile"
        real(self, *arguments, **options)

    monkeypatch.setattr(Ledger, "commit_part", wait_for_the_next)
    assert execute(tmp_path, plan_for(tmp_path, 80), FakeRuntime(count)).status is Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(80)]


@pytest.mark.parametrize("last", ["short", "pad"])
def test_memory_that_others_give_back_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    monkeypatch.setattr(retries, "_wait", lambda _seconds, _stop: None)
    save(tmp_path, range(8))
    short = iter(range(100))

    def not_yet(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 5).any() and (len(feeds["x"]) > smallest or next(short) < 2):
            raise OutOfMemoryError("Failed to allocate memory")
        return double(feeds)

    smallest = 4 if last == "pad" else 1
    monkeypatch.setattr(Feeder, "fixed", property(lambda _: last == "pad"))  # of a graph with a fixed batch
    plan = changed(plan_for(tmp_path, 8, size=4, last=last), errors={"retries": 2})
    assert execute(tmp_path, plan, FakeRuntime(not_yet)).status is Status.DONE
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(8)]
    assert report(tmp_path)["retries"] == 2


def test_a_stop_ends_the_waiting_and_what_was_waited_for_has_not_failed(
    tmp_path: Path,
) -> None:
    save(tmp_path, range(8))
    busy = threading.Event()

    def never(feeds: Feeds) -> Feeds:
        if (feeds["x"] == 5).any():
            busy.set()
            raise TransientError("the device is busy")
        return double(feeds)

    plan = changed(plan_for(tmp_path, 8, size=1, max_failed=1), errors={"retries": 3})
    result = execute(tmp_path, plan, FakeRuntime(never), stop=busy.is_set)
    assert (result.status, result.failed) == (Status.INTERRUPTED, 0)
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(8)]


def test_a_table_on_a_share_that_goes_away_for_a_moment_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_wait", lambda _seconds, _stop: None)
    save(tmp_path, range(21))
    columns, calls = ArraySource.columns, iter(range(100))

    def away_now_and_then(source: ArraySource, *arguments: Any) -> Any:
        if next(calls) in {0, 3, 4}:
            raise OSError(errno.EIO, "Input/output error")
        return columns(source, *arguments)

    monkeypatch.setattr(ArraySource, "columns", away_now_and_then)
    with capture_logs() as logs:
        plan = changed(plan_for(tmp_path, 21), errors={"retries": 2})
        assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(21)]
    told = [one for one in logs if one["event"] == "attempt.failed"]
    assert [(one["what"], one["attempt"]) for one in told] == [("reading the input", number) for number in (1, 1, 2)]
