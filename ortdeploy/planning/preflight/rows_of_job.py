"""Reads and prepares the first rows of one planned job as its run would, and checks them against the model.

Nothing is run. What is wrong with the rows is a fact; rules decide what it means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import islice, repeat
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.preflight import FirstRows, RefusedRow, RowRoom
from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.in_flight import BLOCK_BYTES
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.feeds.prepared_input import Made
from ortdeploy.feeds.row_sources import decoding_bytes, open_wanted, prepared_at_once, wanted_columns
from ortdeploy.operations.windows import DROP
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import Block, StageError
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.lost import lost_key, unwritable
from ortdeploy.sources.catalogue import SOURCES, at_hand
from ortdeploy.sources.protocol import TRANSPARENT, Wanted
from ortdeploy.tensors.columns import Array, Column, OpRunners, pick, size_bytes

if TYPE_CHECKING:
    from ortdeploy.manifest.pipelines import StepOfPipeline
    from ortdeploy.plan.pipeline import PlannedWireStep


def look(
    step: RunJob,
    files: Sequence[str],
    folder: str,
    rows: int | None,
    runners: Callable[[], OpRunners],
    least: Mapping[str, int],
) -> FirstRows:
    """Return what the first rows of some files, of which there are `rows` in all, are for a job.

    `runners` opens the sessions of its op steps. `least` says by input how many values a row must have to be more than
    dropped. Raises nothing: what is wrong with the rows is a fact.
    """
    looker = _Looker(step, least)
    stopped = False
    module = SOURCES[step.input.format]
    size = min(step.batching.run_size, module.FIRST_ROWS)
    try:
        looker.feed_with(runners())
        with (
            at_hand(step.input.format, files, step.input.patterns) as there,
            open_wanted(step, there, folder, _wanted(step)) as source,
        ):
            most = -(-module.FIRST_ROWS // size)
            taken = 0
            for block in islice(source.blocks(step.input.first_row, repeat(size)), most):
                looker.take(block)
                taken += 1
            complete = taken < most or looker.rows == rows
    except OrtdeployError as error:
        looker.stop(str(error))
        complete, stopped = False, True
    refused = {one.row: one for one in reversed(looker.refused)}  # once, however much is wrong with a row
    return FirstRows(
        rows=looker.rows,
        first=step.input.first_row,
        refused=tuple(refused[row] for row in sorted(refused)),
        not_finite=tuple(looker.not_finite),
        transparent=tuple(looker.transparent),
        windowless=tuple(dict.fromkeys(looker.windowless)),
        narrowed=tuple(looker.narrowed),
        complete=complete,
        stopped=stopped,
        room=looker.room,
    )


def _wanted(step: RunJob) -> Wanted:
    """Return what to read: of pictures also whether transparency is in use, if nothing says what lies behind it."""
    wanted = wanted_columns(step)
    asks = step.input.format == "image" and "background" not in step.input.settings
    return replace(wanted, keys=(*wanted.keys, TRANSPARENT)) if asks else wanted


class _Looker:
    """Checks rows against the model, block by block."""

    def __init__(self, step: RunJob, least: Mapping[str, int]) -> None:
        self._step = step
        self._least = least
        self.rows = 0
        self.room = RowRoom()
        self.refused: list[RefusedRow] = []
        self.not_finite: list[int] = []
        self.transparent: list[int] = []
        self.windowless: list[int] = []
        self.narrowed: list[str] = []

    def feed_with(self, ops: OpRunners) -> None:
        """Build the steps; `ops` run those that are operators."""
        self._feeder = Feeder(self._step, ops, self.narrowed.append)

    def take(self, block: Block) -> None:
        """Prepare a block without running it; on failure, row by row. Raises OrtdeployError for unwritable keys."""
        self._try_keys(block)
        self.rows += block.count
        self.refused += [
            RefusedRow(row=row.row, source=row.source, stage=row.stage, message=row.message) for row in block.failed
        ]
        hidden = block.columns.get(TRANSPARENT, ())
        self.transparent += [row for row, is_used in zip(block.rows, hidden, strict=False) if is_used]
        self._look_for_adapters(block)
        self._feed(block, range(len(block.rows)))

    def _try_keys(self, block: Block) -> None:
        """Write keys as the run would, into memory, unless every format has their type."""
        form = self._step.output.format
        module, keys = SINKS[form], {name: block.key(name) for name in self._step.input.key}
        kept = list(range(len(block.rows)))
        if lost_key(module, keys) is not None:  # such rows fail alone
            lost = {row: found for row in kept if (found := lost_key(module, keys, [row])) is not None}
            kept = [row for row in kept if row not in lost]
            self.refused += [_refused(block, row, unwritable(form, found)) for row, found in lost.items()]
        odd = {name: pick(key, kept) for name, key in keys.items() if _is_odd(key)}
        if not odd or not kept:
            return
        sink = module.open_sink(BytesIO(), dict.fromkeys(odd), "{}", self._step.output.settled)
        try:
            sink.write(odd)
            sink.close()
        except ValueError as error:
            raise OrtdeployError(f"its key cannot be written: {error}") from error

    def _look_for_adapters(self, block: Block) -> None:
        """Note rows for which there is no adapter."""
        for row in range(len(block.rows)):
            try:
                self._feeder.adapters(block, row)
            except StageError as error:
                self.refused.append(_refused(block, row, error))

    def _feed(self, block: Block, rows: range) -> None:
        """Prepare rows together; on failure, each alone."""
        if not rows:
            return
        try:
            self._note(block, rows, self._feeder.prepare_batch(block, rows))
        except StageError as error:
            if len(rows) == 1:
                self.refused.append(_refused(block, rows[0], error))
            else:
                for row in rows:
                    self._feed(block, range(row, row + 1))

    def stop(self, reason: str) -> None:
        """Note that nothing more can be read."""
        self.refused.append(RefusedRow(row=self.rows, source="", stage="read", message=reason))
        self.rows += 1

    def _note(self, block: Block, rows: Sequence[int], feeds: dict[str, Array]) -> None:
        if len(rows) == len(block.rows):
            self._measure(Prepared(block=block, feeds=feeds), len(rows))
        finite = self._feeder.finite_rows(feeds, len(rows))
        self.not_finite += [block.rows[row] for row, fine in zip(rows, finite, strict=True) if not fine]
        for name, least in self._least.items():
            pairs = zip(rows, feeds.get(name, ()), strict=False)  # what is fed may be filled up behind the rows
            self.windowless += [block.rows[row] for row, fed in pairs if len(fed) < least]

    def _measure(self, prepared: Prepared, rows: int) -> None:
        """Note how much room rows took that were prepared together."""
        most = max(self._feeder.made, default=Made())
        room = self.room
        found = RowRoom(
            read=max(room.read, size_bytes(prepared.block.columns) // rows),
            fed=max(room.fed, prepared.fed_bytes // rows),
            made=max(room.made, most.size // most.rows),
            by_row=most.rows < rows,
            scratch=max(room.scratch, self._feeder.scratch),
        )
        decoding, beside = decoding_bytes(self._step, found.read), self._bytes_beside(found)
        self.room = replace(found, decoding=decoding, beside=beside)

    def _bytes_beside(self, room: RowRoom) -> int:
        """Return what blocks take that are prepared beside one, if they are large; small ones are soon prepared."""
        batch = self._step.batching.run_size
        if batch * (room.read + room.fed) <= BLOCK_BYTES:
            return 0
        made = room.made * (1 if room.by_row else batch)
        block = batch * room.read + max(batch * room.fed, made) + room.scratch
        return (prepared_at_once(self._step, block) - 1) * block


def dropped_below(steps: "Iterable[StepOfPipeline | PlannedWireStep]") -> dict[str, int]:
    """Return by value how many values a row must have: a shorter one gives no window, so nothing is computed of it."""
    windows = [one for one in steps if one.kind == "do" and one.name == "windows" and one.options.get("last") == DROP]
    return {dict(one.wires)["x"]: one.options["size"] for one in windows if "x" in dict(one.wires)}


def _is_odd(column: Column) -> bool:
    """Return whether there are formats that may not have the type of a column of keys."""
    if isinstance(column, np.ndarray):
        return column.ndim > 1
    kinds = set(map(type, column)).difference({type(None)})
    return len(kinds) > 1 or not kinds <= {str, bool, float}


def _refused(block: Block, row: int, error: StageError) -> RefusedRow:
    return RefusedRow(row=block.rows[row], source=block.source(row), stage=error.stage, message=str(error))
