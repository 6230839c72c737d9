"""Configures structlog, once: console rendering on a terminal, JSON lines otherwise. The only room that does."""

import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

_SECRET = re.compile(r"(password|passwd|secret|token|api_?key|auth|credential|private)", re.IGNORECASE)
MASK = "***"


def mask_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values whose name says that they are secret, at any depth."""
    return {key: masked(key, value) for key, value in event.items()}


def masked(key: str, value: Any) -> Any:
    """Return a value, or the mask in its place when its name says that it is secret."""
    if isinstance(value, dict):
        return {inner: masked(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", item) for item in value]
    return MASK if _SECRET.search(key) and value is not None else value


def configure_logging(*, form: str | None, stream: TextIO, level: str, color: bool) -> None:
    """Set up logging to one stream. `form` is console or json; None decides by whether the stream is a terminal."""
    console = form == "console" or (form is None and stream.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(colors=color) if console else structlog.processors.JSONRenderer()
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            mask_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def wants_color(stream: TextIO, *, forbidden: bool) -> bool:
    """Whether to color: on a terminal that is not dumb, unless --no-color or NO_COLOR says otherwise."""
    if forbidden or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and sys.platform != "win32"
