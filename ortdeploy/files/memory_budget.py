"""Limits the memory of one thing that must be read whole: a line, an archive, a picture, a page of a table.

The limit follows from the job's `limits: {memory}` and from the free memory of the machine or the control group.
"""

from collections.abc import Callable
from contextvars import ContextVar

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.memory import available_memory, memory_of_the_group
from ortdeploy.process.memory_limit import make_room
from ortdeploy.units import format_size

PROCESS = 105 * 1024 * 1024
"""A process that has planned and runs a job of a few bytes: CPython 3.11, numpy, onnx, onnxruntime."""

_LEAST = 8 * 1024 * 1024
"""If the limit leaves nothing beside the process, the plan refuses it anyway; small files can be looked at."""

LINE_OF_TEXT = 4
"""What a line of text takes while it is decoded, in units of its bytes."""

LINE_OF_VALUES = 24
"""What a line of JSON or CSV takes at most while its values are Python objects, in units of its bytes."""


_share: ContextVar[int | None] = ContextVar("share of the room", default=None)
_let_go: ContextVar[Callable[[], None]] = ContextVar("how others let go of memory", default=lambda: None)


class RoomError(OrtdeployError):
    """There is too little memory for something; with more, or a higher limit, it can be read."""


def room(limit: int | None) -> int:
    """Return the bytes that one thing may take, beside the memory of the process. `limit` is the job's, in bytes."""
    bounds = [None if limit is None else limit - PROCESS, available_memory(), memory_of_the_group(), _share.get()]
    known = [bound for bound in bounds if bound is not None]
    return max(min(known, default=1 << 62), _LEAST)


def limit_budget(size: int) -> None:
    """Let one thing take no more bytes than these in this context, because others are read at the same time."""
    _share.set(size)


def on_memory_pressure(let_go: Callable[[], None]) -> None:
    """Have this called in this context if something lacks memory: it returns when others have let go of theirs."""
    _let_go.set(let_go)


def release_others() -> None:
    """Have others let go of their memory, for something that has lacked it and is tried again."""
    _let_go.get()()
    make_room()


def check_room(size: int, what: str | Callable[[], str], limit: int | None) -> None:
    """Raise OrtdeployError if something that must be read whole needs more room than there is.

    A name that is only made when there is too little can be given as a function.
    """
    if size <= _LEAST:  # there is always room for that, and a look at the machine takes longer than a small picture
        return
    most = room(limit)
    if size > most:
        name = what if isinstance(what, str) else what()
        raise RoomError(f"{name} takes {format_size(size)} of memory, and {allowed(most, limit)}")


def allowed(most: int, limit: int | None) -> str:
    """Say in words how much memory is allowed, and what sets the limit."""
    if limit is None or most < limit - PROCESS:
        return f"this machine, or the control group of this process, has {format_size(most)} for it"
    return f"limits: {{memory: {format_size(limit)}}} leaves {format_size(most)} for it"
