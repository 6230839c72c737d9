"""Limits the memory of one thing that must be read whole: a line, an archive, a picture, a page of a table.

It follows from the job's `limits: {memory}`, and from what the machine or the process's control group has left.
"""

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.memory import available_memory, memory_of_the_group
from ortdeploy.units import format_size

PROCESS = 102 * 1024 * 1024
"""A process that has planned and runs a job of a few bytes: CPython 3.11, numpy, onnx, onnxruntime."""

_LEAST = 8 * 1024 * 1024
"""Where the limit leaves nothing beside the process, the plan refuses it anyway; small files can be looked at."""

LINE_OF_TEXT = 4
"""What a line of text takes while it is decoded, in units of its bytes."""

LINE_OF_VALUES = 24
"""What a line of JSON or CSV takes at most while its values are Python objects, in units of its bytes."""


def room(limit: int | None) -> int:
    """Return the bytes that what is read whole may take beside the process. `limit` is the job's, in bytes."""
    bounds = [None if limit is None else limit - PROCESS, available_memory(), memory_of_the_group()]
    known = [bound for bound in bounds if bound is not None]
    return max(min(known, default=1 << 62), _LEAST)


def check_room(size: int, what: str, limit: int | None) -> None:
    """Raise OrtdeployError if something that must be read whole needs more room than there is."""
    most = room(limit)
    if size > most:
        raise OrtdeployError(f"{what} takes {format_size(size)} of memory, and {allowed(most, limit)}")


def allowed(most: int, limit: int | None) -> str:
    """Say how much there may be, and where the number comes from."""
    if limit is None or most < limit - PROCESS:
        return f"this machine, or the control group of this process, has {format_size(most)} for it"
    return f"limits: {{memory: {format_size(limit)}}} leaves {format_size(most)} for it"
