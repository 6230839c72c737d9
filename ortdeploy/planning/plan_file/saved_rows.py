"""Writes into a plan file where rows begin in text files, so that machines without a common state folder read less.

A shard compares these indexes only with the rows that it reads; all shards together read everything. So they are kept
apart from those that a machine has made itself, and only shards of such plans use them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import PLAIN, Dialect, FileState
from ortdeploy.plan.plan_file import decode
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.plan_file.saved_plan import SavedPlan
from ortdeploy.planning.plan_file.saved_tables import pack_lines, read_lines
from ortdeploy.sources.catalogue import at_hand, indexes_of
from ortdeploy.sources.files import InputPaths, full_path

if TYPE_CHECKING:
    from ortdeploy.sources.row_index import KeptIndexes, Mark

_OF_A_PART = 8
"""The most marks in a plan file for the rows of a part: a shard skips less than an eighth of a part by reading it."""


def rows_of_plan(plan: Plan, state_dir: Path) -> dict[str, bytes]:
    """Return the packed indexes of text files by job: a line for each file, with its rows and some marks, or null."""
    found = {}
    present = {one.job: one.files for one in plan.inputs}
    for step in run_jobs(plan):
        indexes = indexes_of(step.input.format, state_dir, plan.folder, step.input.settings, dialect=step.input.dialect)
        if indexes is not None and step.input.upstream is None:
            found[step.job] = b"".join(pack_lines(_known(step, present[step.job], plan.folder, indexes)))
    return found


def _known(step: RunJob, files: Sequence[FileState], folder: str, indexes: "KeptIndexes") -> Iterator[Any]:
    apart = max(step.batching.rows_per_part // _OF_A_PART, 1)
    with at_hand(step.input.format, InputPaths(folder, files), step.input.patterns, files) as there:
        for path in there:
            index = indexes.of(path)
            yield None if index.rows is None else [index.rows, list(_apart(index.marks, apart))]


def _apart(marks: "tuple[Mark, ...]", rows: int) -> "Iterator[Mark]":
    """Yield marks that are at least this number of rows apart."""
    last = 0
    for mark in marks:
        if mark.row >= last + rows:
            yield mark
            last = mark.row


def keep_rows(saved: SavedPlan, state_dir: Path) -> None:
    """Put the indexes of a plan file into the state folder. Raises OrtdeployError if they are damaged, or not there."""
    folder = str(Path(saved.manifest).parent)
    inputs = {step["job"]: step["input"] for step in saved.made["steps"] if "job" in step}
    for job, packed in saved.rows.items():
        written = inputs.get(job, {})
        dialect = decode(Dialect, written["dialect"]) if "dialect" in written else PLAIN
        indexes = indexes_of(written.get("format", ""), state_dir, folder, written, dialect=dialect)
        if indexes is None:
            continue
        from ortdeploy.sources.row_index import as_index  # noqa: PLC0415  only for text files

        files = saved.inputs.get(job, ())
        try:
            for file, one in zip(files, read_lines(Path(saved.file), packed, len(files)), strict=True):
                if one is not None:
                    indexes.tell(full_path(folder, file.path), (file.size, file.mtime_ns), as_index(*one))
        except OrtdeployError as error:
            raise OrtdeployError(f"{saved.at}.rows of job {job}: {error}") from error
        except (ValueError, TypeError) as error:
            raise OrtdeployError(
                f"{saved.at}.rows of job {job}: they are damaged ({error}). Make the plan again"
            ) from error
