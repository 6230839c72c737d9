"""Looks at the first rows of a deployment's jobs as their runs would: read, prepared, held against the model.

Nothing is run: what is wrong with the rows is a fact, and rules decide what it means.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ortdeploy.deployment import Deployment, ResolvedJob
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts import FirstRows, RefusedRow
from ortdeploy.feeds import Feeder, StageError, wanted_columns
from ortdeploy.plan import RunJob, planned_job
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.protocol import Array, Batch


def look_at_rows(deployment: Deployment) -> Deployment:
    """Return the deployment with the facts of its unfinished jobs' first rows; no rule may object to it before."""
    folder = deployment.spec.folder
    found = {job.spec.name: _look(job, folder) for job in deployment.jobs if job.output.state != "finished"}
    return replace(deployment, facts=replace(deployment.facts, first_rows=found))


def _look(job: ResolvedJob, folder: str) -> FirstRows:
    step = planned_job(job)
    looker = _Looker(step)
    module = SOURCES[step.format]
    size = min(step.batch_size or 1, module.FIRST_ROWS)
    try:
        with module.open_source(job.input.files, folder, wanted_columns(step)) as source:
            for batch in islice(source.batches(0, size), -(-module.FIRST_ROWS // size)):
                looker.take(batch)
    except OrtdeployError as error:
        looker.stop(str(error))
    refused = {one.row: one for one in reversed(looker.refused)}  # once, however much is wrong with a row
    return FirstRows(
        rows=looker.rows, refused=tuple(refused[row] for row in sorted(refused)), not_finite=tuple(looker.not_finite)
    )


class _Looker:
    """Holds rows against the model, batch by batch."""

    def __init__(self, step: RunJob) -> None:
        self._feeder = Feeder(step)
        self._adapters = step.adapters
        self.rows = 0
        self.refused: list[RefusedRow] = []
        self.not_finite: list[int] = []

    def take(self, batch: Batch) -> None:
        """Feed a batch to nobody; where that fails, each row of it alone."""
        self.rows += batch.count
        self.refused += [
            RefusedRow(row=row.row, source=row.source, stage=row.stage, message=row.message) for row in batch.failed
        ]
        self._look_for_adapters(batch)
        for rows in self._pieces(batch):
            try:
                feeds = self._feeder.feeds(batch, rows)
            except StageError as error:
                self.refused.append(_refused(batch, rows[0], error))
                continue
            self._note(batch, rows, feeds)

    def _look_for_adapters(self, batch: Batch) -> None:
        """Take note of rows that no adapter is meant for."""
        column = self._adapters.column
        if column is None:
            return
        for row in range(len(batch.rows)):
            text = str(batch.columns[column][row])
            if self._adapters.of(text) is None:
                error = StageError("contract", "no-adapter", f'no adapter is meant for {column} "{text}"')
                self.refused.append(_refused(batch, row, error))

    def stop(self, reason: str) -> None:
        """Take note that nothing more can be read."""
        self.refused.append(RefusedRow(row=self.rows, source="", stage="read", message=reason))
        self.rows += 1

    def _pieces(self, batch: Batch) -> Iterator[range]:
        """Yield all rows at once where they can be fed so, or one by one."""
        count = len(batch.rows)
        try:
            if count:
                self._feeder.feeds(batch, range(count))
                yield range(count)
        except StageError:
            yield from (range(row, row + 1) for row in range(count))

    def _note(self, batch: Batch, rows: Sequence[int], feeds: dict[str, Array]) -> None:
        finite = self._feeder.finite_rows(feeds, len(rows))
        self.not_finite += [batch.rows[row] for row, fine in zip(rows, finite, strict=True) if not fine]


def _refused(batch: Batch, row: int, error: StageError) -> RefusedRow:
    return RefusedRow(row=batch.rows[row], source=batch.source(row), stage=error.stage, message=str(error))
