"""A block's promise: one session or nobody takes it, and its result, or its error, reaches the thread that waits."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ortdeploy.streaming.member import Finished, Promise

NOTHING: Any = None
FINISHED = Finished(block=NOTHING, outcome=NOTHING, seconds=1.0)


def settle(promise: Promise) -> None:
    promise.set_result(FINISHED)


def fail(promise: Promise) -> None:
    promise.set_exception(TimeoutError("the run itself"))


@pytest.mark.parametrize("end", [settle, fail])
def test_who_waits_gets_what_ended_the_run(end: Callable[[Promise], None]) -> None:
    promise, got = Promise(), list[Any]()

    def wait() -> None:
        try:
            got.append(promise.result(20))
        except TimeoutError as error:
            got.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert not promise.done()
    end(promise)
    thread.join(20)
    assert promise.done()
    assert got == [FINISHED if end is settle else "the run itself"]


def test_what_is_settled_is_returned_as_often_as_it_is_asked_for() -> None:
    promise = Promise()
    settle(promise)
    assert [promise.result(), promise.result(0.0), promise.result(1.0)] == [FINISHED] * 3


def test_who_waits_is_told_when_the_time_is_up() -> None:
    promise = Promise()
    with pytest.raises(TimeoutError):
        promise.result(0.001)
    assert not promise.done()
    settle(promise)
    assert promise.result(0.001) is FINISHED


def test_only_the_first_claims_it() -> None:
    promise, got, all_there = Promise(), list[bool](), threading.Barrier(8)

    def claim() -> None:
        all_there.wait(20)
        got.append(promise.claim())

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(got) == [False] * 7 + [True]
    assert not promise.claim()
