"""What happens to rows between source and sink: fed, run, postprocessed. One object a job and session, no I/O.

A failing batch is split until the bad row is alone; the rest is kept.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortdeploy.feeds import Feeder, StageError
from ortdeploy.plan import PlannedStep, RunJob
from ortdeploy.probe_run import ProbeRun
from ortdeploy.runtime.protocol import Array, Session
from ortdeploy.session_runs import SessionRuns
from ortdeploy.sources.protocol import Batch, Column, FailedRow
from ortdeploy.tensors import TensorType
from ortdeploy.timing import Histogram
from ortdeploy.transforms.catalogue import POSTPROCESS
from ortdeploy.transforms.protocol import Apply

Piece = tuple[Sequence[int], dict[str, Column]]
"""Rows of a batch, and their results."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of a batch, keys and outputs, and its rows that failed or were skipped."""

    columns: dict[str, Column]
    committed: int
    failed: list[FailedRow]
    skipped: int


class RowRunner:
    """Runs batches of one job on a session."""

    def __init__(self, job: RunJob, session: Session, probe: ProbeRun | None = None) -> None:
        """Build every step once."""
        self._job = job
        self._feeder = Feeder(job)
        self._runs = SessionRuns(job, session, probe)
        self._postprocess = [(step, _build_postprocess(step)) for step in job.postprocess]
        self.adapter_rows: Counter[tuple[str, ...]] = Counter()

    @property
    def run_times(self) -> Histogram:
        """How long the runs took."""
        return self._runs.run_times

    def run(self, batch: Batch) -> Outcome:
        """Run the rows of a batch; rows that fail are named, the others give results."""
        failed = list(batch.failed)
        if self._job.last == "drop" and 0 < self._job.batch_size > batch.count:
            return Outcome(columns={}, committed=0, failed=failed, skipped=batch.count - len(failed))
        pieces = [
            piece
            for adapters, rows in self._groups(batch, failed)
            for piece in self._split(batch, rows, adapters, failed)
        ]
        skipped = batch.count - len(failed) - sum(len(rows) for rows, _ in pieces)
        columns = self._collect(batch, pieces)
        failed.sort(key=lambda row: row.row)
        return Outcome(columns=columns, committed=sum(len(r) for r, _ in pieces), failed=failed, skipped=skipped)

    def _groups(self, batch: Batch, failed: list[FailedRow]) -> Iterator[tuple[tuple[str, ...], Sequence[int]]]:
        """Yield the rows of each run with their adapters; rows that no adapter is meant for fail."""
        chosen = self._job.adapters
        if chosen.column is None:
            if len(batch.rows):
                yield chosen.always, range(len(batch.rows))
            return
        groups: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(batch.rows)):
            try:
                groups.setdefault(self._feeder.adapters(batch, row), []).append(row)
            except StageError as error:
                failed.append(self._failure(batch, row, error))
        size = self._job.batch_size or 1
        for adapters, rows in groups.items():
            yield from ((adapters, rows[start : start + size]) for start in range(0, len(rows), size))

    def _split(
        self, batch: Batch, rows: Sequence[int], adapters: tuple[str, ...], failed: list[FailedRow]
    ) -> list[Piece]:
        """Try rows together; where that fails, each half on its own."""
        try:
            feeds = self._feeder.feeds(batch, rows)
            results = self._apply_postprocess(self._runs.run(feeds, len(rows), adapters))
        except StageError as error:
            if len(rows) == 1:
                failed.append(self._failure(batch, rows[0], error))
                return []
            middle = len(rows) // 2
            halves = (rows[:middle], rows[middle:])
            return [piece for half in halves for piece in self._split(batch, half, adapters, failed)]
        self.adapter_rows[adapters] += len(rows)
        finite = self._finite(results, len(rows))
        if finite is None or finite.all():
            return [(rows, results)]
        clean = self._feeder.finite_rows(feeds, len(rows))
        if not clean.all() and (clean & ~finite).any():  # a graph that mixes rows: NaN of some may have reached others
            self._refuse_not_finite(batch, rows, clean, failed)
            self.adapter_rows[adapters] -= len(rows)
            return self._split(batch, [row for row, fine in zip(rows, clean, strict=True) if fine], adapters, failed)
        self._refuse_not_finite(batch, rows, finite, failed)
        return _keep(rows, results, finite)

    def _apply_postprocess(self, results: dict[str, Column]) -> dict[str, Column]:
        for step, apply in self._postprocess:
            try:
                made = apply(np.asarray(results[step.options[step.name]]))
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("postprocess", step.name, str(error)) from error
            results.update(zip(step.results, made, strict=True))
        return results

    def _finite(self, results: dict[str, Column], rows: int) -> Array | None:
        """Tell of each row whether the outputs that on_nan looks at are all finite; None where it looks at none."""
        if not self._job.check_finite:
            return None
        finite = np.ones(rows, dtype=bool)
        for name in self._job.check_finite:
            finite &= _finite_rows(results[name])
        return finite

    def _refuse_not_finite(self, batch: Batch, rows: Sequence[int], fine: Array, failed: list[FailedRow]) -> None:
        """Make failed rows of those that are not fine, where on_nan says so; else they count as skipped."""
        if self._job.on_nan == "fail":
            error = StageError("run", "not-finite", "an output holds NaN or an infinity")
            failed += [self._failure(batch, row, error) for row, good in zip(rows, fine, strict=True) if not good]

    def _failure(self, batch: Batch, row: int, error: StageError) -> FailedRow:
        key = {name: _json_value(batch.columns[name][row]) for name in self._job.key}
        return FailedRow(
            row=batch.rows[row],
            source=batch.source(row),
            stage=error.stage,
            code=error.code,
            message=str(error),
            key=key,
        )

    def _collect(self, batch: Batch, pieces: list[Piece]) -> dict[str, Column]:
        """Put keys and results of all pieces together again, in the order of the rows."""
        if not pieces:
            return {}
        if len(pieces) == 1 and len(pieces[0][0]) == len(batch.rows):
            keys = {name: batch.columns[name] for name in self._job.key}
            return {**keys, **{name: pieces[0][1][name] for name in self._job.columns}}
        chosen = [row for rows, _ in pieces for row in rows]
        order = None if chosen == sorted(chosen) else sorted(range(len(chosen)), key=chosen.__getitem__)
        chosen.sort()
        columns: dict[str, Column] = {name: [batch.columns[name][row] for row in chosen] for name in self._job.key}
        for name in self._job.columns:
            column = _concatenate([results[name] for _, results in pieces])
            columns[name] = column if order is None else _ordered(column, order)
        return columns


def _keep(rows: Sequence[int], results: dict[str, Column], chosen: Array) -> list[Piece]:
    """Return the chosen rows with their results."""
    kept = [row for row, fine in zip(rows, chosen, strict=True) if fine]
    picked: dict[str, Column] = {
        name: [column[row] for row in np.flatnonzero(chosen)] if isinstance(column, list) else column[chosen]
        for name, column in results.items()
    }
    return [(kept, picked)] if kept else []


def _finite_rows(column: Column) -> Array:
    """Tell of each row whether all its numbers are finite."""
    if isinstance(column, list):
        return np.array([_is_finite(value) for value in column], dtype=bool)
    return np.asarray(np.isfinite(column).reshape(len(column), -1).all(axis=1))


def _is_finite(value: Any) -> bool:
    """Tell whether all numbers of a sequence or a map are finite."""
    if isinstance(value, dict | list):
        return all(_is_finite(item) for item in (value.values() if isinstance(value, dict) else value))
    numbers = np.asarray(value)
    return not np.issubdtype(numbers.dtype, np.floating) or bool(np.isfinite(numbers).all())


def _json_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _ordered(column: Column, order: Sequence[int]) -> Column:
    return column[list(order)] if isinstance(column, np.ndarray) else [column[place] for place in order]


def _concatenate(parts: list[Column]) -> Column:
    if any(isinstance(part, list) for part in parts):
        return [value for part in parts for value in part]
    arrays = [np.asarray(part) for part in parts]
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for array in arrays for value in array]


def _build_postprocess(step: PlannedStep) -> Apply:
    return POSTPROCESS[step.name].build(step.options, TensorType(step.dtype, step.shape, step.layout))
