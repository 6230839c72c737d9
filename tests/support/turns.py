"""Threads that stand for processes and take turns: each stops before every step that another one could notice."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from support.fuse import BEGIN, watching
from support.jobs import Killed


class Process(threading.Thread):
    """Does something up to its next step whenever it is its turn. `killed_at`: it ends before its step of a number."""

    def __init__(self, name: str, do: Callable[[], Any], killed_at: int | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._do, self._left = do, killed_at
        self._may_go, self.waits = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.pause()
            self.result = self._do()
        except Killed:
            self.result = "killed"
        except BaseException as error:  # noqa: BLE001  raised where all are over
            self.error = error
        self.is_over = True
        self.waits.release()

    def pause(self) -> None:
        """Wait for the next turn."""
        self.waits.release()
        self._may_go.acquire()
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise Killed

    def turn(self) -> None:
        """Let it go on to its next step, or to its end."""
        self._may_go.release()
        assert self.waits.acquire(timeout=60), f"{self.name} hangs"


def take_turns(processes: Sequence[Process], draw: random.Random) -> None:
    """Run processes to their ends; often one of them gets many turns, as if the others slept."""
    for one in processes:
        one.start()
        assert one.waits.acquire(timeout=60)
    while left := [one for one in processes if not one.is_over]:
        one = draw.choice(left)
        for _ in range(draw.choice([1, 1, 2, 5, 40])):
            if not one.is_over:
                one.turn()
    for one in processes:
        one.join()
        if one.error is not None:
            raise one.error


@contextmanager
def steps(*methods: tuple[Any, str]) -> Iterator[None]:
    """Have calls of these methods, by their owners, and transactions be steps of the processes that make them."""

    def pause() -> None:
        process = threading.current_thread()
        if isinstance(process, Process):
            process.pause()

    def stopping(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            pause()
            return method(*arguments, **more)

        return call

    def at(event: str) -> None:
        if event == BEGIN:  # not at the commit, for which others would wait
            pause()

    with watching(at), pytest.MonkeyPatch.context() as patch:
        for owner, name in methods:
            patch.setattr(owner, name, stopping(getattr(owner, name)))
        yield
