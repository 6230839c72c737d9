"""Writes one part: blocks of results go into a file with a temporary name, which then gets its own."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.durations import Histogram, timed
from ortdeploy.facts.contents import ContentColumns, ContentPacker, FileContent
from ortdeploy.files.atomic import TEMPORARY, Hashing, Written, open_synced, sync_folder
from ortdeploy.ledger.records import Begun, Part
from ortdeploy.parts.file_spans import FileSpans, Spans, sources_of_rows
from ortdeploy.plan.steps import RunJob
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.protocol import Sink
from ortdeploy.streaming.exploded import as_lines, texts_in_lists, written_columns
from ortdeploy.streaming.member import Finished
from ortdeploy.tensors.columns import Column

if TYPE_CHECKING:
    from ortdeploy.pipelines.state import State


def _waiting_name(part: str) -> str:
    """Return the name of a part's file until it is whole."""
    return f".{part}{TEMPORARY}"


def remove_unnamed_parts(folder: Path, suffix: str) -> None:
    """Delete what a killed run on one machine has left of the part that it wrote. What shards write stays."""
    for path in folder.glob(_waiting_name(f"part-*{suffix}")):
        path.unlink(missing_ok=True)


class PartWriter:
    """Writes parts of one job into its folder."""

    def __init__(self, job: RunJob, folder: Path, origin: Mapping[str, Any], roots: Sequence[str] = ()) -> None:
        """Take the folder; `origin` is written into every part whose format has a place for it.

        A link in the folder may lead elsewhere in it, or below the `roots`.
        """
        self._allowed = (str(folder), *roots)
        self._job = job
        self._folder = folder
        self._columns = written_columns(job)
        self.origin = origin
        self._origin_text = json.dumps(of_any_host(origin), sort_keys=True)
        self._module = SINKS[job.output.format]
        self._types = {**texts_in_lists(job), **job.output.settled}
        self.write_times, self.sync_times = Histogram(), Histogram()

    def write(self, name: str, blocks: Iterable[Finished], begun: Begun | None) -> "Totals":
        """Write a part: first the rows kept of it, then the blocks. Its file has a temporary name.

        If the blocks raise, no file is left. Raises OSError, OrtdeployError.
        """
        return self.write_file(self.waiting(name), blocks, begun)

    def give_name(self, name: str, totals: "Totals", under: str) -> None:
        """Give the file of a part that was to be called `name` another name, durably. Raises OSError.

        A part none of whose rows gave a result has no file.
        """
        with timed(self.sync_times):
            if totals.written is not None:
                self.waiting(name).replace(self._folder / under)
            else:
                with suppress(FileNotFoundError):  # a run that was killed may have left one that it did not commit
                    (self._folder / under).unlink()
            sync_folder(self._folder)

    def take_name(self, name: str, totals: "Totals") -> None:
        """Give a named file its temporary name back. Raises OSError."""
        if totals.written is not None:
            (self._folder / name).replace(self.waiting(name))

    def remove(self, name: str) -> None:
        """Delete the temporary file of the part `name`, if there is one."""
        with suppress(OSError):  # the next run does it, then
            self.waiting(name).unlink()

    def waiting(self, name: str) -> Path:
        """Return the path of the file of a part that is to be called `name`, before it is."""
        return self._folder / _waiting_name(name)

    def write_file(self, path: Path, blocks: Iterable[Finished], begun: Begun | None = None) -> "Totals":
        """Write blocks into a file, if any row gave a result; return the totals. Raises OSError."""
        totals = Totals(begun)
        with ExitStack() as stack:
            sink: Sink | None = None
            hashing: Hashing | None = None

            def open_file() -> Sink:
                nonlocal hashing
                hashing = Hashing(stack.enter_context(open_synced(path)))
                return self._module.open_sink(cast("BinaryIO", hashing), self._columns, self._origin_text, self._types)

            if begun is not None and begun.part.file is not None:
                sink = open_file()
                with timed(self.write_times):
                    sink.take_up(self._folder / begun.part.file)
            for finished in blocks:
                if finished.outcome.committed:
                    sink = sink or open_file()
                    self._write(sink, self._lines(finished), path.name)
                totals.add(finished)
                del finished  # its memory is for other blocks
            with timed(self.sync_times):
                if sink is not None and hashing is not None:
                    totals.is_exact = sink.is_exact
                    with _naming(path.name):
                        sink.close()
                    totals.written = hashing.written()
                stack.close()  # the file is synced
        return totals

    def _lines(self, finished: Finished) -> dict[str, Column]:
        """Return a block's columns as they are written, one line a row or an item. Raises OSError, OrtdeployError."""
        columns, exploded = self._with_files(finished), self._job.output.explode
        return as_lines(columns, _rows_through(finished), exploded) if exploded else columns

    def _with_files(self, finished: Finished) -> dict[str, Column]:
        """Return a block's columns, with names of files for images and recordings. Raises OSError, OrtdeployError."""
        columns, output = finished.outcome.columns, self._job.output
        if not output.files:
            return columns
        from ortdeploy.sinks.row_files import write_files  # noqa: PLC0415  few jobs write images or recordings

        spans = FileSpans()
        spans.add(finished.block)
        sources, recordings = sources_of_rows(self._job.input.format, spans.all()), output.recordings
        rows = {row: sources.get(row, "") for row in _rows_through(finished)}
        try:
            with timed(self.write_times):
                named = {
                    name: write_files(self._folder, name, rows, columns[name], self._allowed, recordings.get(name))
                    for name in output.files
                }
        except ValueError as error:
            raise OrtdeployError(str(error)) from error
        return {**columns, **named}

    def _write(self, sink: Sink, columns: dict[str, Column], name: str) -> None:
        with _naming(name), timed(self.write_times):
            sink.write(columns)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Turn what a sink says of columns that it cannot write into an error that names the part."""
    try:
        yield
    except ValueError as error:
        raise OrtdeployError(f"{part}: {error}") from error


def _rows_through(finished: Finished) -> list[int]:
    """Return the numbers of a block's rows that gave a result."""
    gone = {row.row for row in finished.outcome.failed}.union(finished.outcome.skipped)
    return [row for row in finished.block.rows if row not in gone]


class Totals:
    """What a part holds, added up block by block.

    `new_rows` are those of this run; `is_exact` says whether the next run can complete the file with equal bytes.
    """

    def __init__(self, begun: Begun | None = None) -> None:
        """Begin with nothing, or with what was begun."""
        part = begun.part if begun is not None else None
        self._start, self.rows = (part.start, part.rows) if part else (0, 0)
        self.committed, self._failed = (part.committed, part.failed) if part else (0, 0)
        self._skipped: list[int] = list(part.skipped_rows) if part else []
        self.new_rows = 0
        self.state: State | None = None
        self.written: Written | None = None
        self.is_exact = True
        self._spans = FileSpans()
        self._contents = ContentPacker()

    def add(self, finished: Finished) -> None:
        """Add a block."""
        if not self.rows:
            self._start = finished.block.start
        self.rows += finished.block.count
        self.new_rows += finished.block.count
        self.state = finished.outcome.state or self.state
        self.committed += finished.outcome.committed
        self._failed += len(finished.outcome.failed)
        self._skipped += finished.outcome.skipped
        self._spans.add(finished.block)
        if finished.block.contents is not None:
            self._contents.add(finished.block.contents)

    def add_contents(self, contents: Iterable[FileContent]) -> None:
        """Add what files hold that have rows in the part."""
        columns = ContentColumns()
        for state, digest in contents:
            columns.add(*state, digest)
        self._contents.add(columns)

    @property
    def spans(self) -> Spans:
        """The rows of input files that are in the part: path, number of the file's first row, number of its rows."""
        return self._spans.all()

    @property
    def last_file(self) -> str | None:
        """The path of the last file that has rows in the part; None if the rows are of no files."""
        return None if self._spans.last is None else self._spans.last[1]

    @property
    def contents(self) -> Iterable[FileContent]:
        """What files held that have rows in the part."""
        return self._contents.packed()

    def part(self, number: int, name: str) -> Part:
        """Return the part with this name; None if no row gave a result."""
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


def of_any_host(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return an origin without the host's name and kernel, for the parts themselves: equal workers write equal bytes.

    The ledger and the report have the whole origin.
    """
    device = {name: value for name, value in origin.get("device", {}).items() if name != "host"}
    versions_of_packages = {name: value for name, value in origin.get("versions", {}).items() if name != "platform"}
    return {**origin, "device": device, "versions": versions_of_packages}
