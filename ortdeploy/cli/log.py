"""Configures structlog, once: console rendering on a terminal, JSON lines otherwise. The only room that does."""

from collections.abc import MutableMapping
from typing import Any, Protocol, TextIO, cast

import structlog

from ortdeploy.redaction import masked


def mask_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace what is secret by its name, or by its place in a URL, at any depth."""
    return {key: masked(key, value) for key, value in event.items()}


class LogStream(Protocol):
    """What logs are written to."""

    def write(self, text: str, /) -> int:
        """Take a line."""

    def flush(self) -> None:
        """Let nothing wait."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""


def log_warning(category: str, text: str, place: str) -> None:
    """Log a warning of Python's or of a library's."""
    structlog.get_logger().warning("python.warning", category=category, text=text, place=place)


def configure_logging(*, form: str | None, stream: LogStream, level: str, color: bool) -> None:
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
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", stream)),
        cache_logger_on_first_use=False,
    )
