"""The process in which a worker makes parts: however it ends, the driver gets an answer, and the next part is made."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.forks import children_as_forks

from ortdeploy.application.worker_process import WorkerProcess

pytestmark = pytest.mark.process
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    started: list[WorkerProcess] = []

    def begin(parts: Mapping[int, str] | None = None, **request: Any) -> WorkerProcess:
        asked = {"job": "j", "parts": {str(part): how for part, how in (parts or {}).items()}, **request}
        started.append(WorkerProcess("support.fake_worker", asked))
        return started[-1]

    with children_as_forks():
        yield begin
    for one in started:
        one.end()


def test_one_process_makes_part_after_part_and_what_it_logs_comes_with_the_answers(start: Start) -> None:
    worker = start()
    assert worker.begin() == {"kind": "ready", "facts": {"fatal": [], "closely": False}, "log": ["opened"]}
    assert worker.begin() == {"kind": "ready", "facts": None, "log": []}
    for part in (3, 5):
        assert worker.make(part) == {"kind": "decided", "part": part, "rows": 8, "failed": 0, "log": [f"made {part}"]}


def test_a_process_that_aborts_is_told_of_and_another_makes_the_next_part(start: Start) -> None:
    worker = start({1: "abort"})
    worker.begin()
    died = worker.make(1)
    assert (died["kind"], died["reason"]) == (
        "failed",
        'its process was ended by SIGABRT. It printed: "assertion failed: x > 0".',
    )
    assert worker.make(2)["kind"] == "decided"


@pytest.mark.parametrize(("how", "kind"), [("fail", "failed"), ("pause", "paused"), ("close", "closed")])
def test_a_job_that_ends_is_told_of(start: Start, how: str, kind: str) -> None:
    worker = start({1: how})
    worker.begin()
    ended = worker.make(1)
    assert (ended["kind"], ended["reason"]) == (kind, f"{how} it")
    assert worker.make(2)["kind"] == "decided"


@pytest.mark.parametrize(("begin", "kind"), [("refused", "refused"), ("bug", "bug"), ("failed", "refused")])
def test_a_process_that_does_not_get_ready_is_told_of(start: Start, begin: str, kind: str) -> None:
    said = start(begin=begin).begin()
    assert (said["kind"], said["reason"]) == (kind, "not here")


def test_rows_that_crash_native_code_are_looked_for_and_left_out(start: Start) -> None:
    worker = start({4: "crash", 5: "abort"})
    worker.begin()
    made = worker.make(4)
    assert (made["kind"], made["part"]) == ("decided", 4)
    warned = [json.loads(line) for line in made["log"] if line.startswith("{")]
    assert [(one["event"], one.get("first"), one.get("last")) for one in warned] == [
        ("run.watched", None, None),
        ("run.crashed", 4, 5),
        ("run.crashed", 5, 5),
    ]
    assert {one["reason"] for one in warned} == {"its process was ended by SIGSEGV."}
    died = worker.make(5)
    assert (died["kind"], "SIGABRT" in died["reason"]) == ("failed", True), "it crashed without a row that it ran"


def test_rows_that_crash_again_although_they_are_known_fail_the_part(start: Start) -> None:
    worker = start({4: "crash-again"})
    worker.begin()
    said = worker.make(4)
    assert (said["kind"], said["reason"]) == ("failed", "its process was ended by SIGSEGV.")


def test_rows_that_only_the_end_of_the_process_ends_are_left_out_the_second_time(start: Start) -> None:
    worker = start({4: "stick"})
    worker.begin()
    assert worker.make(4)["kind"] == "decided"


def test_rows_that_hang_again_although_they_are_left_out_fail_the_part(start: Start) -> None:
    worker = start({4: "stick-again"})
    worker.begin()
    said = worker.make(4)
    assert (said["kind"], said["reason"]) == ("failed", "rows hang")
