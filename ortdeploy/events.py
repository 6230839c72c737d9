"""What is logged: events with fields. Where they go and in which form is for `cli/output/log`; nobody else gets them.

It imports next to nothing: structlog, which renders events on a terminal, brings asyncio and takes longer to import
than a small job to run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Write = Callable[[str, dict[str, Any], Mapping[str, Any]], None]
"""Takes an event's level, its fields with the name under `event`, and the fields of the block that it happened in."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_context: ContextVar[Mapping[str, Any]] = ContextVar("context", default={})  # noqa: B039  never changed


class Log:
    """Takes events, and drops them while nothing is there to write them."""

    def __init__(self) -> None:
        """Begin without anything that writes."""
        self._write: Write | None = None
        self._least = 0

    @property
    def is_sent(self) -> bool:
        """Whether events go anywhere."""
        return self._write is not None

    @contextmanager
    def sent_to(self, write: Write, level: str = "debug") -> Iterator[None]:
        """Hand the events of a level and above to `write` inside the block."""
        before = self._write, self._least
        self.send_to(write, level)
        try:
            yield
        finally:
            self._write, self._least = before

    def send_to(self, write: Write | None, level: str = "debug") -> None:
        """Hand the events of a level and above to `write` from now on; None: to nobody."""
        self._write, self._least = write, _LEVELS[level]

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only a search for a reason needs."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happens as it should."""
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what somebody should look at."""
        self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what has ended something."""
        self._log("error", event, fields)

    def _log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if self._write is not None and _LEVELS[level] >= self._least:
            self._write(level, {**fields, "event": event}, _context.get())


log = Log()


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Give fields to all events inside the block, of this thread and of those that take its context."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)
