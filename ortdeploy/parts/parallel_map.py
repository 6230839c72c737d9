"""Asks a place about many things at the same time: a store is far, and answers many requests as quickly as one."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_TOGETHER = 1000
"""Things that wait for a thread."""


def in_threads(do: Callable[[T], R], things: Iterable[T], at_once: int) -> Iterator[R]:
    """Yield the result of `do` for each thing, in order; `at_once` of them run at the same time."""
    if at_once == 1:
        yield from map(do, things)
        return
    left = iter(things)
    with ThreadPoolExecutor(at_once) as pool:
        while some := tuple(islice(left, _TOGETHER)):
            yield from pool.map(do, some)
