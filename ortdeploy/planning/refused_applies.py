"""Notes for `status` that the last apply of a manifest, or a job of it, was refused: the ledger has only what ran.

A note is written only into a state folder that is there: without one nothing has run, and `status` says so. It has the
form of the notes of `on_end`, with the manifest at its end, so that `cache prune` frees it with its manifest. It says
too whether the last good version runs in the place of the manifest. Why versions of bundles were refused is in their
record (`versions.installed`), because that decides about their next try.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.files.atomic import open_whole
from ortdeploy.files.names import STATE_DIR, TOLD
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.records import output_file

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

_SUFFIX = ".refused"
PATTERN = f"*{_SUFFIX}"
"""What matches the notes in their folder."""
_ALONE, _REPLACED = "refused", "replaced"


class Refusal(Struct, frozen=True, kw_only=True):
    """What was refused, since when, and why the last time: a manifest, or a version of a bundle by name and number.

    If the last good version of a manifest runs in its place, `good` is when that was kept, and `specs` are its specs.
    `runs` is the number of the version that runs in the place of a bundle's.
    """

    manifest: str
    since: str
    reason: str
    good: str | None = None
    runs: int | None = None
    specs: "tuple[Spec, ...]" = ()

    @property
    def text(self) -> str:
        """The refusal as one sentence."""
        if self.runs is not None:
            why = f"is refused since {self.since}: {self.reason}"
            return f"{self.manifest} {why}; version {self.runs} runs in its place"
        if self.good is None:
            why = f"apply has failed since {self.since} ({self.reason.rstrip('.')})"
            return f"{self.manifest}: {why}; what did not run is as before"
        why = f"is refused since {self.since} ({self.reason})"
        return f"{self.manifest} {why}; what ran on {self.good} runs in its place"


def note_refusal(manifest: str, state_dir: Path, reason: str, now: str, *, replaced: bool = False) -> str:
    """Note that an apply was refused, and whether a last good version runs instead; return since when that is so.

    If it cannot be written, `status` does not say it.
    """
    note, before = _note_of(manifest, state_dir), _read(manifest, state_dir)
    since = now if before is None else before[0]
    line = f"{since} {_REPLACED if replaced else _ALONE} {' '.join(reason.split())}"
    with suppress(OSError):
        if state_dir.is_dir() and (before is None or " ".join(before) != line):
            note.parent.mkdir(exist_ok=True)
            with open_whole(note) as file:
                file.write(os.fsencode(f"{line}\n{_full(manifest)}\n"))
    return since


def forget_refusal(manifest: str, state_dir: Path) -> None:
    """Note that an apply was not refused."""
    with suppress(OSError):
        _note_of(manifest, state_dir).unlink(missing_ok=True)


def refused_applies(
    manifests: Sequence[str], state_dir: str | None, *, replaced: bool | None = None
) -> tuple[Refusal, ...]:
    """Return the manifests whose last apply was refused; `replaced`: those in whose place another version runs."""
    found = []
    for manifest in manifests:
        note = _read(manifest, Path(state_dir) if state_dir else Path(_full(manifest)).parent / STATE_DIR)
        if note is not None and (replaced is None or replaced == (note[1] == _REPLACED)):
            found.append(Refusal(manifest=manifest, since=note[0], reason=note[2]))
    return tuple(found)


def _read(manifest: str, state_dir: Path) -> tuple[str, str, str] | None:
    """Return since when a manifest is refused, how, and why; None if it is not."""
    with suppress(OSError, ValueError):
        line = os.fsdecode(read_whole(_note_of(manifest, state_dir))).partition("\n")[0]
        since, how, reason = line.split(" ", 2)
        return since, how, reason
    return None


def _note_of(manifest: str, state_dir: Path) -> Path:
    return output_file(state_dir, TOLD, _full(manifest), _SUFFIX)


def _full(manifest: str) -> str:
    return os.path.abspath(manifest)  # noqa: PTH100  keeps links
