"""What keeps a file from being used, and the packages that would help."""

from msgspec import Struct

from ortdeploy.files.path_suggestions import advice_on_path


class Package(Struct, frozen=True, kw_only=True):
    """A Python package that only some deployments need: what is imported, what is installed, and the extra with it."""

    module: str
    name: str
    extra: str


WAITING = "waiting"
"""The kind of a problem that is none: an input that has nothing to read yet, as its manifest allows."""

ELSEWHERE = "elsewhere"
"""The kind of a problem that is none: a plan for another machine, whose data was not looked at on this one."""

CARRIED_AWAY = "carried-away"
"""The kind of an input of another job's rows, some of which went before this job had them."""

CHANGED = "changed"
"""The kind of an input whose files are not what an earlier run has taken up."""


class Problem(Struct, frozen=True, kw_only=True):
    """Why a file cannot be used: a kind that rules know, and a sentence for people."""

    kind: str
    detail: str


def unreadable(shown: str, error: OSError) -> Problem:
    """Return the problem of a file that cannot be read; `shown` is its name in text."""
    if isinstance(error, FileNotFoundError):
        advice = advice_on_path(shown, error.filename) if isinstance(error.filename, str) else ""
        return Problem(kind="missing", detail=f"There is no file {shown}. Paths are relative to the manifest.{advice}")
    return Problem(kind="unreadable", detail=f"{shown} cannot be read: {error.strerror}.")


def changed_while_read(shown: str) -> Problem:
    """Return the problem of a file of which two reads may have seen two versions."""
    return Problem(kind="unreadable", detail=f"{shown} was changed while it was read. Wait until its writer is done.")


def unnameable(path: str, shown: str) -> Problem | None:
    """Return the problem of a path that ONNX Runtime cannot be told: Python's binding takes text, which is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        detail = f"ONNX Runtime opens only files whose path is UTF-8, and that of {shown} is not: {path}. Rename it."
        return Problem(kind="unreadable", detail=detail)
    return None
