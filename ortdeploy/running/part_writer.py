"""Writes one part: blocks of results into a file that appears under its name whole, or not at all."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.durations import Histogram, timed
from ortdeploy.files.atomic import Hashing, Written, open_whole, sync_folder
from ortdeploy.ledger.ledger import Part
from ortdeploy.plan.steps import RunJob
from ortdeploy.running.stream import Finished
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.png import write_pictures
from ortdeploy.sinks.protocol import Sink
from ortdeploy.tensors.columns import Column


class PartWriter:
    """Writes the parts of one job into its folder."""

    def __init__(self, job: RunJob, folder: Path, origin: Mapping[str, Any]) -> None:
        """Take the folder; `origin` goes into every part whose format has a place for it."""
        self._job = job
        self._folder = folder
        shapes = dict(zip(job.columns, job.row_shapes, strict=True))
        self._columns = {**dict.fromkeys(job.key), **shapes}
        self._origin = json.dumps(origin, sort_keys=True)
        self._module = SINKS[job.output_format]
        self.write_times, self.sync_times = Histogram(), Histogram()

    def write(self, number: int, name: str, blocks: Iterable[Finished]) -> Part:
        """Write a part of what comes, and return it once it has its name.

        A part none of whose rows gave a result has no file. Whatever the blocks raise leaves none either. Raises
        OSError, OrtdeployError.
        """
        path = self._folder / name
        totals = self.write_file(path, blocks)
        if not totals.committed and path.exists():  # a run that was killed has left one that it did not commit
            path.unlink()
            sync_folder(self._folder)
        return totals.part(number, name)

    def write_file(self, path: Path, blocks: Iterable[Finished]) -> "Totals":
        """Write what comes into a file, if any row of it gave a result; return the sums. Raises OSError."""
        totals = Totals()
        with ExitStack() as stack:
            sink: Sink | None = None
            hashing: Hashing | None = None
            for finished in blocks:
                totals.add(finished)
                if finished.outcome.committed:
                    if sink is None:
                        hashing = Hashing(stack.enter_context(open_whole(path)))
                        sink = self._module.open_sink(cast("BinaryIO", hashing), self._columns, self._origin)
                    self._write(sink, self._with_pictures(finished), path.name)
            with timed(self.sync_times):
                if sink is not None and hashing is not None:
                    sink.close()
                    totals.written = hashing.written()
                stack.close()  # the file is synced, and gets its name
        return totals

    def _with_pictures(self, finished: Finished) -> dict[str, Column]:
        """Return a block's columns, images written as files and named. Raises OSError, OrtdeployError."""
        columns = finished.outcome.columns
        if not self._job.images:
            return columns
        gone = {row.row for row in finished.outcome.failed}.union(finished.outcome.skipped)
        rows = [row for row in finished.block.rows if row not in gone]
        try:
            with timed(self.write_times):
                pictures = {name: write_pictures(self._folder, name, rows, columns[name]) for name in self._job.images}
        except ValueError as error:
            raise OrtdeployError(str(error)) from error
        return {**columns, **pictures}

    def _write(self, sink: Sink, columns: dict[str, Column], name: str) -> None:
        try:
            with timed(self.write_times):
                sink.write(columns)
        except ValueError as error:
            raise OrtdeployError(f"{name}: {error}") from error


class Totals:
    """What a part holds, added up block by block."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._start = 0
        self.rows = self.committed = self._failed = 0
        self._skipped: list[int] = []
        self.written: Written | None = None

    def add(self, finished: Finished) -> None:
        """Add a block."""
        if not self.rows:
            self._start = finished.block.start
        self.rows += finished.block.count
        self.committed += finished.outcome.committed
        self._failed += len(finished.outcome.failed)
        self._skipped += finished.outcome.skipped

    def part(self, number: int, name: str) -> Part:
        """Return the part that lies under that name, if any row gave a result."""
        written = self.written
        return Part(
            number=number,
            start=self._start,
            rows=self.rows,
            committed=self.committed,
            failed=self._failed,
            skipped=len(self._skipped),
            skipped_rows=tuple(self._skipped),
            file=name if written else None,
            bytes=written.bytes if written else 0,
            sha256=written.sha256 if written else None,
            mtime_ns=written.mtime_ns if written else None,
        )
