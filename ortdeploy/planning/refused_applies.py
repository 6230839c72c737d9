"""Notes for `status` that the last apply of a manifest, or a job of it, was refused: the ledger has only what ran.

A note is written only into a state folder that is there: without one nothing has run, and `status` says so. It has the
form of the notes of `on_end`, with the manifest at its end, so that `cache prune` frees it with its manifest.
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


class Refusal(Struct, frozen=True, kw_only=True):
    """What was refused, since when, and why the last time: a manifest, or a version of a bundle by name and number.

    If the last good version of a manifest runs in its place, `good` is when that was kept, and `specs` are its specs.
    """

    manifest: str
    since: str
    reason: str
    good: str | None = None
    specs: "tuple[Spec, ...]" = ()

    @property
    def text(self) -> str:
        """The refusal as one sentence."""
        if self.good is None:
            why = f"apply has failed since {self.since} ({self.reason.rstrip('.')})"
            return f"{self.manifest}: {why}; what did not run is as before"
        why = f"is refused since {self.since} ({self.reason})"
        return f"{self.manifest} {why}; what ran on {self.good} runs in its place"


def note_refusal(manifest: str, state_dir: Path, reason: str, now: str) -> None:
    """Note that an apply was refused; if that cannot be written, `status` does not say it."""
    note, before = _note_of(manifest, state_dir), _read(manifest, state_dir)
    line = " ".join(reason.split())
    with suppress(OSError):
        if state_dir.is_dir() and (before is None or before.reason != line):
            note.parent.mkdir(exist_ok=True)
            with open_whole(note) as file:
                since = now if before is None else before.since
                file.write(os.fsencode(f"{since} {line}\n{_full(manifest)}\n"))


def forget_refusal(manifest: str, state_dir: Path) -> None:
    """Note that an apply was not refused."""
    with suppress(OSError):
        _note_of(manifest, state_dir).unlink(missing_ok=True)


def refused_applies(manifests: Sequence[str], state_dir: str | None) -> tuple[Refusal, ...]:
    """Return the manifests whose last apply was refused."""
    folders = [(one, Path(state_dir) if state_dir else Path(_full(one)).parent / STATE_DIR) for one in manifests]
    return tuple(found for one, folder in folders if (found := _read(one, folder)) is not None)


def _read(manifest: str, state_dir: Path) -> Refusal | None:
    with suppress(OSError):
        since, _, reason = os.fsdecode(read_whole(_note_of(manifest, state_dir))).partition("\n")[0].partition(" ")
        return Refusal(manifest=manifest, since=since, reason=reason)
    return None


def _note_of(manifest: str, state_dir: Path) -> Path:
    return output_file(state_dir, TOLD, _full(manifest), _SUFFIX)


def _full(manifest: str) -> str:
    return os.path.abspath(manifest)  # noqa: PTH100  keeps links
