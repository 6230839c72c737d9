"""Writes events once it is set up: JSON lines, and readable lines on a terminal. No other room writes logs.

On a terminal without log flags, only warnings and errors are shown, and all events are kept in a file.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

from ortdeploy.events import Write, log
from ortdeploy.files.disk import make_folders
from ortdeploy.redaction import masked
from ortdeploy.terminal_text import printable


class LogStream(Protocol):
    """A stream that logs are written to."""

    def write(self, text: str, /) -> int:
        """Write a line."""

    def flush(self) -> None:
        """Flush the stream."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""


def log_warning(category: str, text: str, place: str) -> None:
    """Log a warning of Python or of a library."""
    log.warning("python.warning", category=category, text=text, place=place)


FOLDER = "logs"
"""In the state folder: one file of JSON lines for each command that ran jobs on a terminal."""

_MOST_FILES = 50
_WARNINGS = frozenset({"warning", "error"})


class KeptLog:
    """All events, held in memory until a command says in which state folder to keep them.

    Events that cannot be written are dropped: no run ends because of its log.
    """

    def __init__(self) -> None:
        """Hold events in memory."""
        self._held: list[str] = []
        self._file: TextIO | None = None

    def write(self, text: str) -> int:
        """Write a line, to memory or to the file."""
        if self._file is None:
            self._held.append(text)
        else:
            with suppress(OSError):
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the file, if there is one."""
        if self._file is not None:
            with suppress(OSError):
                self._file.flush()

    def isatty(self) -> bool:
        """Return False."""
        return False

    def keep_in(self, state_dir: Path) -> None:
        """Write events to a file in the state folder from now on, and delete the oldest files beyond fifty."""
        folder = state_dir / FOLDER
        with suppress(OSError):
            make_folders(folder)
            files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
            for path in files[: max(len(files) + 1 - _MOST_FILES, 0)]:
                path.unlink(missing_ok=True)
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.jsonl"
            self._file = (folder / name).open("a", encoding="utf-8")
            self._file.writelines(self._held)
        self._held.clear()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def configure_logging(
    *, form: str | None, stream: LogStream, level: str, color: bool, kept: KeptLog | None = None
) -> None:
    """Set up logging to one stream. `form` is console or json; None: console on a terminal, else json.

    With `kept`, that takes every event, and the stream gets only warnings and errors.
    """
    console = form == "console" or (form is None and stream.isatty())
    write = _lines_to(stream, _for_people(color=color) if console else _as_json)
    log.send_to(write if kept is None else _kept_and_warned(_lines_to(kept, _as_json), write), level)


def _kept_and_warned(keep: Write, warn: Write) -> Write:
    """Return a function that keeps every event, and shows warnings and errors."""

    def write(level: str, event: dict[str, Any], context: Mapping[str, Any]) -> None:
        keep(level, event, context)
        if level in _WARNINGS:
            warn(level, event, context)

    return write


def _lines_to(stream: LogStream, line_of: Callable[[dict[str, Any]], str]) -> Write:
    """Return a function that writes an event as one line, without secrets; its fields win over those of the block."""
    lock = threading.Lock()

    def write(level: str, event: dict[str, Any], context: Mapping[str, Any]) -> None:
        whole = {**event, **{key: value for key, value in context.items() if key not in event}, "level": level}
        line = line_of({key: masked(key, value) for key, value in whole.items()})
        with lock:
            stream.write(f"{line}\n")
            stream.flush()

    return write


def _as_json(event: dict[str, Any]) -> str:
    stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({**event, "timestamp": stamp}, default=repr)


def _for_people(*, color: bool) -> Callable[[dict[str, Any]], str]:
    """Return a function that renders an event for a terminal."""
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415  brings asyncio, for terminals only

    render = ConsoleRenderer(colors=color)

    def line(event: dict[str, Any]) -> str:
        shown = {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}
        return str(render(None, event["level"], {**shown, "timestamp": time.strftime("%H:%M:%S")}))

    return line
