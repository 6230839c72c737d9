"""Diagnostics: what is wrong, where, how bad and how sure. Every stage returns them, and only views print them.

Problems in a user's file are values (`Diagnostic`); an expected failure during work is `OrtdeployError`. Anything else
that is raised is a bug of ortdeploy and is reported as one.
"""

import errno
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import force_setattr

from ortdeploy.redaction import without_secrets

_PLAIN_KEY = r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z_][\w./-]*"


def as_key(name: str) -> str:
    """Return a name of a model as a key for the manifest, in a message that says what to write: quoted if need be."""
    if re.fullmatch(_PLAIN_KEY, name, re.ASCII | re.IGNORECASE):
        return name
    import json  # noqa: PLC0415  for few names

    return json.dumps(name, ensure_ascii=False)


class Severity(StrEnum):
    """How bad: an error stops before anything runs, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Certainty(StrEnum):
    """How sure a finding is."""

    FILES = "proven-from-files"
    MACHINE = "proven-on-this-machine"
    ASSUMED = "assumed"


class Span(Struct, frozen=True, kw_only=True, eq=False):
    """A place in a file; line and column count from 1.

    `end` is the column behind it, None if that is unknown or on another line. It does not tell two places apart.
    """

    path: str
    line: int
    column: int
    end: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[str, int, int]:
        return self.path, self.line, self.column


class Diagnostic(Struct, frozen=True, kw_only=True):
    """One complaint: a fixed summary that people learn to recognise, and full sentences about this case.

    What it says holds no secret, however it came by its words. `devices` are those that it is about, of several that
    were planned for; none: all.
    """

    rule: str
    severity: Severity
    summary: str
    detail: str
    span: Span
    certainty: Certainty = Certainty.FILES
    model: str | None = None
    job: str | None = None
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take secrets out of the sentences."""
        force_setattr(self, "detail", without_secrets(self.detail))


class OrtdeployError(Exception):
    """An expected failure during work: a disk is full, a file vanished, ONNX Runtime refused a batch.

    Its message holds no secret: it goes to the terminal, into logs, the ledger and reports.
    """

    def __init__(self, *words: object) -> None:
        super().__init__(*(without_secrets(one) if isinstance(one, str) else one for one in words))


def failure_at(place: object, error: Exception) -> str:
    """Return a failure in words: of the system with its file, or a `place` if the call named none, as a write."""
    if not isinstance(error, OSError):
        return str(error)
    where = error.filename or place
    said = f"{where}: {error.strerror or error}"
    if error.errno in {errno.EMFILE, errno.ENFILE}:  # then no module can be read either
        return said
    from ortdeploy.files.disk import advice_on_disk  # noqa: PLC0415  only where something fails

    return f"{said}{advice_on_disk(error.errno or 0, Path(str(where)))}"


class ProviderFailedError(OrtdeployError):
    """An execution provider failed while it ran: not the row's fault, so another session may do better."""


class TransientError(OrtdeployError):
    """Something failed that may pass when it is tried again: a busy device, a network file system."""


class TimedOutError(TransientError):
    """A run took longer than the job allows and was ended."""


class OutOfMemoryError(OrtdeployError):
    """A run needs more memory than there is; a smaller batch may pass."""


class StoppedError(OrtdeployError):
    """The run was asked to stop, such as by a signal."""


class LockedError(OrtdeployError):
    """The state is held by another live run; if it holds an output, `output` is the ledger's name of that."""

    def __init__(self, words: str, output: str | None = None) -> None:
        super().__init__(words)
        self.output = output


class OvertakenError(OrtdeployError):
    """Input files have changed or gone since the plan was made: another plan reads what is there."""


class RefusedError(OrtdeployError):
    """Something was refused here, and doing it again would not change that: a scheduler need not try again."""


class UsageError(OrtdeployError):
    """The command line asks for something that does not exist."""


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Order by file, place and rule, without repetitions."""
    unique = dict.fromkeys(diagnostics)
    return tuple(sorted(unique, key=lambda d: (d.span.path, d.span.line, d.span.column, d.rule, d.detail)))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of them stops the work."""
    return any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)


def errors_in(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return those that stop the work."""
    return [one for one in diagnostics if one.severity is Severity.ERROR]


_SLIP, _LIKE = 0.8, 0.6
"""From which likeness on a name is another one with a slip of the finger, and from which on it is a guess."""
_SHORT = 4


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like another; None if none is.

    A name that has the other as one of its words comes before names that only look a little like it: somebody who
    writes `crop` means `center_crop` rather than `op`. Many names look a little like a short one, so of these only
    those with its first letter are guessed.
    """
    import difflib  # noqa: PLC0415  only after a mistake

    folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    alike = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_SLIP)
    holding = [candidate for candidate in folded if name.casefold() in candidate.split("_")]
    likely = [one for one in folded if len(name) > _SHORT or one[:1] == name[:1].casefold()]
    found = alike or holding or difflib.get_close_matches(name.casefold(), likely, n=1, cutoff=_LIKE)
    return folded[found[0]] if found else None


def _clear(name: str) -> str:
    """Return a name of a list, in quotes if nobody would see where it ends."""
    return name if name.isprintable() and name == name.strip() and name and "," not in name else f'"{name}"'


def with_article(noun: str) -> str:
    """Return a noun with its article: `a sequence`, `an optional`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def did_you_mean(name: str, known: Iterable[str], most: int = 15) -> str:
    """Return a sentence that names the nearest known name, or lists `most` of those that there are."""
    names = sorted(known)
    found = nearest(name, names)
    if found is not None:
        return f'Did you mean "{found}"?'
    if not names:
        return "There is none to choose from."
    shown = ", ".join(map(_clear, names[:most])) + (f", and {len(names) - most:,} more" if len(names) > most else "")
    return f"Known: {shown}."
