"""Turns Python's warnings into log events, because a plain line would break a log of JSON lines."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Emit = Callable[[str, str, str], None]
"""Takes a warning's category, its text, and the line of code that gave it."""


@contextmanager
def warnings_to(emit: Emit) -> Iterator[None]:
    """Pass every Python warning inside the block to `emit`, instead of printing it to stderr."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001  the signature of warnings.showwarning
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        emit(category.__name__, str(message), f"{filename}:{lineno}")

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
