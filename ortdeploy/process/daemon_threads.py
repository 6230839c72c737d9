"""Threads that work beside the one that reads. Nobody waits for them at the end, because one may hang on a file.

`concurrent.futures` has a pool too, whose threads are waited for when the process ends.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Timed(Struct, Generic[T], frozen=True):
    """What some work gave, and the seconds that it took, also of the processor if that was another thread's."""

    value: T
    seconds: float
    cpu: float = 0.0


class DaemonThreads:
    """Threads that are started when they are needed."""

    def __init__(self, name: str) -> None:
        """Begin without threads; each is called `name`."""
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Callable[[], T], under_way: int) -> "Future[Timed[T]]":
        """Let a thread do some work, in the context of this one, beside those that are `under_way`.

        If no thread can be started, it is done when this returns.
        """
        from concurrent.futures import Future  # noqa: PLC0415  only for what is slow

        future: Future[Timed[T]] = Future()
        context = copy_context()
        if len(self._threads) <= under_way:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            with suppress(RuntimeError):  # a job near its memory limit may have no room for a thread's stack
                thread.start()
                self._threads.append(thread)
        measured = self._measured if self._threads else timed

        def run() -> None:
            try:
                future.set_result(context.run(measured, work))
            except BaseException as error:  # noqa: BLE001  whoever wants the result raises it
                future.set_exception(error)

        if self._threads:
            self._waiting.put(run)
        else:
            run()
        return future

    def close(self) -> None:
        """Let the threads end, after what they were given."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run()
            del run  # with what it has made

    def _measured(self, work: Callable[[], T]) -> Timed[T]:
        begin = time.thread_time()
        done = timed(work)
        return Timed(done.value, done.seconds, time.thread_time() - begin)


def timed(work: Callable[[], T]) -> Timed[T]:
    """Do some work in this thread."""
    begin = time.perf_counter()
    value = work()
    return Timed(value, time.perf_counter() - begin)
