"""Finished rows of a part that is not whole when a run ends: kept for the next run, which continues after them.

Only whole parts are committed. But a part may take hours, which must not be lost if a run ends in an orderly way (a
signal, the error budget, memory, a provider that fails, an upload). So the part's file is closed and kept beside the
parts under a hidden name. The next run copies its rows into the file of the part and runs the remaining ones. The part
then has the same bytes as after an undisturbed run.

At any moment there is either nothing of a part, or its beginning, or the whole part:

1. the file is closed and synced under a temporary name, renamed to its hidden one, and the folder is synced;
2. the ledger notes what is in it, with its failed rows, in place of what it noted of the part before;
3. the commit of the part takes that entry away, in one transaction;
4. files that no entry names are deleted.

If parts may be carried away, a part that has its name may be gone before it is committed. So a whole part is first kept
in the same way, with the name that it will get; then it is renamed and committed. After a kill, the next run that finds
such an entry completes it. If neither file is there, the part was carried away, or the whole folder was. Then its rows
run again into a part with a new name, so that they replace those that were carried away, if any were.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.atomic import sync_folder
from ortdeploy.ledger.forgetting import BEGUN_WITH
from ortdeploy.ledger.integrity import is_as_written
from ortdeploy.ledger.makers import provenance_entry
from ortdeploy.ledger.records import Begun, OutputRecord, Part, begun_name
from ortdeploy.parts.committed import taken_bytes
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.part_writer import PartWriter, Totals
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import FailedRow
from ortdeploy.streaming.block_sizes import part_border
from ortdeploy.streaming.member import Finished
from ortdeploy.units import format_size


class ErrorCapture:
    """Blocks up to an error, which is kept in `error` instead of raised, because the blocks before it are good.

    Exceptions that end the process are raised at once.
    """

    def __init__(self, blocks: Iterable[Finished]) -> None:
        self._blocks = blocks
        self.error: Exception | KeyboardInterrupt | None = None

    def __iter__(self) -> Iterator[Finished]:
        try:
            yield from self._blocks
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the caller raises it
            self.error = error


class BegunPart:
    """The kept rows of a job's unfinished part; `now` describes them, None if there are none.

    `revision` is that of the part's name.
    """

    def __init__(self, output: OpenOutput, step: RunJob, writer: PartWriter, made_by: str) -> None:
        """Take the output, the writer, and the deployment's digest; nothing is read yet."""
        self._ledger = output.ledger
        self._output = output.name
        self._step = step
        self._folder = output.folder
        self._writer = writer
        self._made_by = made_by
        self.revision = 0
        self.now: Begun | None = None

    def publish(
        self, part: Part, name: str, totals: Totals, failed: list[FailedRow], origin: Mapping[str, Any]
    ) -> None:
        """Note a whole part that may be carried away in the ledger, then give it its name. Raises OSError."""
        hidden = begun_name(name, part.rows)
        self._writer.give_name(name, totals, hidden)
        state = _packed(totals)
        begun = Begun(part=replace(part, file=hidden), state=state, name=name)
        self.now = self._ledger.keep_begun(
            self._output, begun, failed, provenance=origin, spans=totals.spans, contents=totals.contents
        )
        give_name(self._folder, hidden, name)

    def take_up(self, known: OutputRecord, end: int | None) -> Begun | None:
        """Return the rows that an earlier run kept; if they must run again, log why, and return None.

        `end` is the row before which the input ends, if that is known though its number of rows is not.
        """
        begun = known.begun
        if begun is None:
            return None
        why_not = self._why_not(begun, end)
        if why_not is None:
            self.now = begun
            return begun
        log.warning("part.begun_again", part=begun.part.number, rows=begun.part.rows, reason=why_not)
        self._ledger.forget_begun(self._output)
        return None

    def _why_not(self, begun: Begun, end: int | None) -> str | None:
        """Return why the kept rows cannot be used; None if they can."""
        part, step = begun.part, self._step
        if part.deployment != self._made_by and (part.deployment is not None or step.output.removable):
            return "another deployment has begun it"
        breaks_a_batch = (begun.end - part.start) % step.batching.read_size and begun.end not in {step.input.rows, end}
        if breaks_a_batch or begun.end > part_border(step, part.start):
            return "its rows are not such as the job reads them now"
        if part.file is None:
            return None
        try:
            if is_as_written(self._folder / part.file, part, digest=None):
                return None
        except FileNotFoundError:
            return f"{part.file} is gone"
        except OSError as error:
            return f"{part.file} cannot be read: {error.strerror}"
        return f"{part.file} is not what was written"

    def origin(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the origin of the next part: this run's `own`, with that of the run that made its first rows.

        The ledger and the report have both; the part itself names only the run that made it whole.
        """
        before = self.now.part.provenance if self.now is not None else None
        if before is None:
            return own
        entry: Mapping[str, Any] = self._ledger.provenance([before])[before]
        same = {name: value for name, value in entry.items() if name != BEGUN_WITH}
        return entry if provenance_entry(same) == provenance_entry(own) else {**own, BEGUN_WITH: before}

    def keep(
        self, number: int, name: str, totals: Totals, failed: list[FailedRow], origin: Mapping[str, Any]
    ) -> list[FailedRow]:
        """Keep the finished rows of a part that will be called `name`, with the failed rows among them.

        Return the failed rows that are not kept. Rows that cannot be kept run again; those kept before stay kept.
        """
        try:
            why_not = self._why_not_kept(totals)
            if why_not is None:
                return self._keep(number, name, totals, failed, origin)
        except (OSError, MemoryError, OrtdeployError) as error:
            why_not = str(error)
        self._writer.remove(name)
        self.note_loss(number, why_not)
        return failed

    def note_loss(self, number: int, reason: str) -> None:
        """Log why the finished rows of a part are not kept."""
        if reason:
            log.warning("part.not_kept", part=number, reason=reason)

    def _why_not_kept(self, totals: Totals) -> str | None:
        """Return why the finished rows of a part are not kept, empty if none is new; None if they are kept."""
        if not totals.new_rows:
            return ""
        if not totals.is_exact:
            return "its columns hold numbers of several types, which may become text"
        taken, limit = totals.written.bytes if totals.written else 0, self._step.limits.disk
        if limit is not None:
            record = self._ledger.output(self._output)
            taken += taken_bytes(self._folder, record.parts) if record else 0
            if taken > limit:
                return f"the output would take {format_size(taken)} and may take {format_size(limit)}"
        return None

    def _keep(
        self, number: int, name: str, totals: Totals, failed: list[FailedRow], origin: Mapping[str, Any]
    ) -> list[FailedRow]:
        hidden = begun_name(name, totals.rows)
        self._writer.give_name(name, totals, hidden)
        part = replace(totals.part(number, hidden), deployment=self._made_by, revision=self.revision)
        begun = Begun(part=part, state=_packed(totals))
        ours = [row for row in failed if row.row < begun.end]
        self.now = self._ledger.keep_begun(
            self._output, begun, ours, provenance=origin, spans=totals.spans, contents=totals.contents
        )
        self.tidy()
        log.info("part.kept", part=number, rows=part.rows, failed=part.failed, file=part.file)
        return [row for row in failed if row.row >= begun.end]

    def committed(self) -> None:
        """Note that the kept rows are in a part now."""
        if self.now is not None:
            self.now = None
            self.tidy()

    def tidy(self) -> None:
        """Delete the files of begun parts, except the one that is in use."""
        kept = self.now.part.file if self.now is not None else None
        for path in self._folder.glob(".part-*.begun"):
            if path.name != kept and path.is_file():
                path.unlink()


def give_name(folder: Path, hidden: str, name: str) -> None:
    """Rename a hidden file, durably. Raises OSError."""
    (folder / hidden).replace(folder / name)
    sync_folder(folder)


def _packed(totals: Totals) -> str | None:
    """Return the state behind the rows of a part as text; None if there is none."""
    if totals.state is None:
        return None
    from ortdeploy.pipelines.state import pack_state  # noqa: PLC0415  few pipelines have a state

    return pack_state(totals.state)
