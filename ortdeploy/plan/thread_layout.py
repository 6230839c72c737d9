"""Thread layouts: ways to use the cores, by the names under which plans, outputs and reports know them."""

import re

from msgspec import Struct

_FOR_EACH_CORE = "a caller for each core"
_NAME = re.compile(
    r"(?P<sessions>\d+) sessions? of (?P<threads>\d+|all) threads?"
    rf"(?: with (?:(?P<callers>\d+) callers|{_FOR_EACH_CORE}))?"
)


class ThreadLayout(Struct, frozen=True, kw_only=True):
    """One way to use threads: the number of sessions, of the batches that each runs at once, of threads in its pool.

    0 `callers` are one for each core of the machine on which the sessions are opened. 0 `threads` are as many as
    ONNX Runtime takes by itself.
    """

    sessions: int = 1
    callers: int = 1
    threads: int = 1

    @property
    def name(self) -> str:
        """`2 sessions of 1 thread`; `1 session of 1 thread with a caller for each core`; `1 session of all threads`."""
        threads = _count(self.threads, "thread") if self.threads else "all threads"
        callers = f"{self.callers} callers" if self.callers else _FOR_EACH_CORE
        text = f"{_count(self.sessions, 'session')} of {threads}"
        return text if self.callers == 1 else f"{text} with {callers}"


BY_RULE = ThreadLayout(callers=0)
"""The layout of jobs whose rows give the same results in any order, if the manifest fixes none.

Whatever the number of cores, each run has one thread, so results have the same bits.
"""


def layout_of_name(name: str) -> ThreadLayout | None:
    """Return the layout that has a name; None if no layout has it."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    sessions, threads, callers = found.group("sessions", "threads", "callers")
    at_once = int(callers) if callers else 0 if name.endswith(_FOR_EACH_CORE) else 1
    return ThreadLayout(sessions=int(sessions), callers=at_once, threads=0 if threads == "all" else int(threads))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
