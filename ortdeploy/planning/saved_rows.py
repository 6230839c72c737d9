"""Writes into a plan file where rows begin in text files, so that machines without a common state folder read less.

A shard trusts the plan file in this, because checking it would mean to read everything. So these indexes are kept apart
from those that a machine has made itself, and only shards of such plans use them.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.saved_plan import SavedPlan
from ortdeploy.sources.catalogue import at_hand, indexes_of
from ortdeploy.sources.files import InputPaths, full_path

if TYPE_CHECKING:
    from ortdeploy.sources.row_index import KeptIndexes, Mark

_MOST = 1024**3
"""Bytes that the indexes of one job may take unpacked."""

_OF_A_PART = 8
"""The most marks in a plan file for the rows of a part: a shard skips less than an eighth of a part by reading it."""


def rows_of_plan(plan: Plan, state_dir: Path) -> dict[str, str]:
    """Return the packed indexes of text files by job: the number of rows and some marks of each file, or null."""
    found = {}
    for step in run_jobs(plan):
        indexes = indexes_of(step.input.format, state_dir, plan.folder)
        if indexes is not None and step.input.upstream is None:
            text = json.dumps(list(_known(step, plan.folder, indexes)), separators=(",", ":"))
            found[step.job] = b64encode(zlib.compress(text.encode())).decode()
    return found


def _known(step: RunJob, folder: str, indexes: "KeptIndexes") -> Iterator[Any]:
    files = InputPaths(folder, step.input.files)
    apart = max(step.batching.rows_per_part // _OF_A_PART, 1)
    with at_hand(step.input.format, files, step.input.patterns, step.input.files) as there:
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
    """Put the indexes of a plan file into the state folder. Raises OrtdeployError if they are damaged."""
    folder = str(Path(saved.manifest).parent)
    formats = {step["job"]: step["input"]["format"] for step in saved.made["steps"] if "job" in step}
    for job, packed in saved.rows.items():
        indexes = indexes_of(formats.get(job, ""), state_dir, folder)
        if indexes is None:
            continue
        from ortdeploy.sources.row_index import as_index  # noqa: PLC0415  only for text files

        try:
            told = json.loads(_unpacked(packed))
            for file, one in zip(saved.inputs.get(job, ()), told, strict=True):
                if one is not None:
                    indexes.tell(full_path(folder, file.path), (file.size, file.mtime_ns), as_index(*one))
        except (ValueError, TypeError, zlib.error, RecursionError) as error:
            raise OrtdeployError(f"{saved.at}.rows of job {job} are damaged ({error}). Make the plan again") from error


def _unpacked(text: str) -> bytes:
    """Return the unpacked JSON of a job's indexes. Raises ValueError, zlib.error."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(b64decode(text, validate=True), _MOST)
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ValueError("they are cut off, or too many")
    return data
