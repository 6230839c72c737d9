"""Checks what a job has committed: the ledger's record against itself, against the files and the input."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol

from ortdeploy.diagnostics import OrtdeployError, OvertakenError
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.digests import file_digest
from ortdeploy.files.gate import PathGuard
from ortdeploy.ledger.damage import undamaged
from ortdeploy.ledger.integrity import find_damage
from ortdeploy.ledger.records import OutputRecord, Part
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.plan.steps import RunJob
from ortdeploy.reports.statistics import check_statistics
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.files import find_changed, full_path


class DeclaredOutput(Protocol):
    """What is to be known of an output before its files are touched."""

    @property
    def format(self) -> str:
        """The format of its parts."""

    @property
    def removable(self) -> bool:
        """Whether its parts may be gone, because they were carried away."""

    @property
    def shown(self) -> str:
        """What messages call it."""


def committed_parts(output: OpenOutput) -> tuple[Part, ...]:
    """Return the parts that are committed."""
    record = output.record()
    return record.parts if record else ()


def check_record(output: OpenOutput, declared: DeclaredOutput, known: OutputRecord) -> None:
    """Raise OrtdeployError if the ledger contradicts itself about the output."""
    from ortdeploy.ledger.check import check_output  # noqa: PLC0415  only where a job continues

    check_output(output.ledger, known, SINKS[declared.format].SUFFIX)
    with undamaged():
        check_statistics(known.statistics)


def check_files(output: OpenOutput, declared: DeclaredOutput, when: str = "") -> None:
    """Raise OrtdeployError if a committed part of an output is not what was written."""
    output.check_alone()
    digests = DigestCache(output.ledger.state_dir)
    record = output.record()
    parts, rewrites = (record.parts, record.rewrites) if record else ((), ())
    damage = find_damage(output.folder, parts, digests.digest, rewrites=rewrites, removable=declared.removable)
    if damage is not None:
        raise OrtdeployError(f"{declared.shown}/{damage}{when}. Restore it from a copy")


def taken_bytes(folder: Path, parts: Iterable[Part]) -> int:
    """Return the bytes of the files of parts; those that were carried away have none."""
    return sum(file.bytes for part in parts for file in part.files if (folder / str(file.file)).exists())


class TakenBytes:
    """How many bytes an output takes to which one run adds parts, and from which others may carry parts away.

    The parts are looked at when the run begins, and again only if what was there and what came since would be too much.
    """

    def __init__(self, output: OpenOutput) -> None:
        """Take the output; nothing is looked at yet."""
        self._output = output
        self._most: int | None = None  # so much or less: parts that were carried away since are in it

    def with_file(self, size: int, limit: int) -> int:
        """Return how many bytes the output would take with one more file: at most that many, or more than `limit`."""
        if self._most is None or self._most + size > limit:
            self._most = taken_bytes(self._output.folder, committed_parts(self._output))
        return self._most + size

    def add(self, size: int) -> None:
        """Note that a file of this size is committed."""
        if self._most is not None:
            self._most += size


def _check_delivered(step: RunJob, folder: str) -> None:
    """Raise OrtdeployError if a file that another job committed has other content; its time may differ, as a copy's."""
    for state, digest in zip(
        step.input.files, step.input.upstream.digests if step.input.upstream else (), strict=False
    ):
        path = Path(full_path(folder, state.path))
        if path.stat().st_size != state.size or (digest is not None and file_digest(path) != digest):
            raise OrtdeployError(
                f"{state.path} is not what was committed: it changed while it was read. Restore it from a copy"
            )


_AGAIN = "Apply again: that runs what is there then, and committed rows stay"


def states_of(files: Sequence[FileState], paths: AbstractSet[str]) -> list[FileState]:
    """Return the states of some of many files, whose names are compared many at a time."""
    found: list[FileState] = []
    for names, sizes, times in FileStates.of(files).by_column():
        listed = names.split("\0")
        if not paths.isdisjoint(listed):
            columns = zip(listed, sizes, times, strict=True)
            found += [FileState(*cells) for cells in columns if cells[0] in paths]
    return found


def check_inputs(
    step: RunJob, folder: str, guard: PathGuard | None = None, only: Sequence[FileState] | None = None
) -> None:
    """Raise OvertakenError if an input file is gone or has changed since the plan, OrtdeployError if it cannot be read.

    Raises PathEscapesError if one is outside of a guard. `only`: the files to look at, if not all of the job's.
    """
    files = step.input.files if only is None else only
    try:
        changed = find_changed(files, folder, step.input.patterns, guard)
    except OrtdeployError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise OvertakenError(f"{error}. It was there when the plan was made. {_AGAIN}") from error
        raise
    if changed is not None and step.input.upstream is not None:
        _check_delivered(step, folder)
    elif changed is not None:
        raise OvertakenError(
            f"{changed} is not what it was when the plan was made: it changed while it was read. {_AGAIN}. "
            "If somebody still writes it, stable_for: 5s under input: leaves it for a later run"
        )
