"""Runs the batches of one job on one session: tensors [rows, …] in, columns of rows out, with the rows' adapters.

Runs behind another provider are compared with the CPU's, and rows with what they give in other batches: the first ones,
and later ones now and then. The first run with an adapter is compared with that of
the base model, and an adapter that changes nothing is logged.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, ProviderFailedError, TimedOutError, TransientError
from ortdeploy.durations import Histogram
from ortdeploy.events import log
from ortdeploy.plan.steps import RunJob
from ortdeploy.process.last_words import Lane
from ortdeploy.results.rows import StageError
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.sessions.row_independence import RowProof
from ortdeploy.sessions.rows_again import RunRows
from ortdeploy.sessions.rows_look import Number
from ortdeploy.tensors.columns import Array, Column, join
from ortdeploy.tensors.elements import is_narrow, widened
from ortdeploy.tensors.row_axes import to_place

if TYPE_CHECKING:
    from ortdeploy.process.tracing import OnBatch
    from ortdeploy.sessions.cpu_comparison import CpuComparison
    from ortdeploy.sessions.evidence import Evidence
    from ortdeploy.sessions.run_limit import LimitedSession

_FEW = 4  # rows that tell whether an adapter changes anything

MOST_SHAPES = 64
"""Shapes of rows that are told apart."""


@runtime_checkable
class Stateful(Protocol):
    """A session with state that one row hands on to the next."""

    state: Any

    def begin(self, key: tuple[str, ...]) -> None:
        """Note what the next rows belong to."""

    def undo(self) -> None:
        """Take the state back to before the last run."""


@runtime_checkable
class Halving(Protocol):
    """A session that halves its own batches where memory runs out."""

    @property
    def halvings(self) -> int:
        """How often it has."""


@runtime_checkable
class Comparing(Protocol):
    """A session that compares runs of its own with the CPU's."""

    @property
    def evidence(self) -> "Sequence[Evidence]":
        """On what each comparison is proven."""

    def finish(self) -> None:
        """Compare the last runs."""


def rows_first(session: Session, job: RunJob) -> Session:
    """Return a session that takes and gives tensors [rows, …]; the session itself if its model has them so."""
    if not job.row_axes and not job.values:
        return session
    from ortdeploy.sessions.row_axis_adapter import RowsFirst  # noqa: PLC0415  few models have them otherwise

    return RowsFirst(session, job)


class SessionRuns:
    """Runs one job's batches on a session."""

    def __init__(
        self, job: RunJob, session: Session, probe: "CpuComparison | None" = None, proof: RowProof | None = None
    ) -> None:
        self._job = job
        self._limited: list[LimitedSession] = []
        self._session = rows_first(self._within_limit(session), job)  # the session itself, which callers share
        self._stateful = session if isinstance(session, Stateful) else None
        self._halving = session if isinstance(session, Halving) else None
        self._comparing = session if isinstance(session, Comparing) else None
        self._probe = probe
        self._reference = (
            rows_first(self._within_limit(probe.session), job)
            if probe is not None and probe.session is not None
            else None
        )
        self._proof = proof
        self._effective: set[tuple[str, ...]] = set()
        self.run_times = Histogram()
        self.progressed = 0.0
        self.running: Sequence[int] = ()
        self.on_batch: OnBatch | None = None
        self._spans: list[tuple[float, float, int]] = []
        self._durations: list[float] = []
        self._fetch = job.fetch
        self._one_by_one = job.batching.size is None
        self._pads = job.batching.pad_to is not None
        self.lane = Lane()
        self.shapes = set[tuple[tuple[int, ...], ...]]()

    @property
    def halvings(self) -> int:
        """How often the session has halved batches of its own."""
        return self._halving.halvings if self._halving is not None else 0

    def run(
        self, feeds: Mapping[str, Array], rows: int, adapters: tuple[str, ...], number: Number = int
    ) -> dict[str, Column]:
        """Run feeds [rows, …] once and return outputs [rows, …]. Raises StageError, ProviderFailedError.

        Padding rows may follow the first `rows` of the feeds; the outputs have none of them. `number` returns the
        number of a row in its job. Raises DisagreementError if a comparison disagrees.
        """
        begin = time.perf_counter()
        try:
            values = self._run_compared(feeds, adapters, number)
        except (ProviderFailedError, DisagreementError):
            raise
        except TimedOutError as error:
            raise StageError("run", "timed-out", str(error), transient=True) from error
        except (OutOfMemoryError, MemoryError) as error:
            raise StageError("run", "out-of-memory", f"memory ran out: {error}", no_memory=True) from error
        except OrtdeployError as error:
            raise StageError("run", "run-refused", str(error), transient=isinstance(error, TransientError)) from error
        self.progressed = time.perf_counter()
        self._durations.append(self.progressed - begin)
        self._note_shapes(feeds)
        if self.on_batch is not None:
            self._spans.append((begin, self.progressed, rows))
        if adapters and adapters not in self._effective:
            self._prove_effect(feeds, adapters)
        if self._one_by_one:
            return {name: _as_row(value) for name, value in zip(self._fetch, values, strict=True)}
        batch = len(next(iter(feeds.values()))) if self._pads else rows
        results = self._rows_of(values, rows, batch)
        if self._proof is not None:
            seconds = self.progressed - begin
            run = self._again(adapters)
            self._proof.look(run, feeds, results, adapters, rows=rows, batch=batch, number=number, seconds=seconds)
        return results

    def run_each(
        self, feeds: Mapping[str, Array], batches: Sequence[range], adapters: tuple[str, ...], number: Number = int
    ) -> dict[str, Column] | None:
        """Run feeds [rows, …] batch after batch and return outputs [rows, …]; None if anything is unusual.

        Short runs need a loop of their own, in which each check is done once for all batches. If one fails, `run` finds
        out what is wrong with which row. The `lane` knows of which rows of the job. Raises DisagreementError as `run`.
        """
        if self._probe is not None and not self._probe.evidence.is_begun:
            return None
        if self._one_by_one or self._pads or (adapters and adapters not in self._effective):
            return None
        if self._proof is not None and self._proof.wants(adapters, max(map(len, batches), default=0)):
            return None
        self._note_shapes(feeds)
        items, run, clock, note = list(feeds.items()), self._session.run, time.perf_counter, self.lane.part
        outputs: list[Sequence[Any]] = []
        try:
            for rows in batches:
                self.running = rows
                note(rows)
                begin = clock()
                cut = {name: array[rows.start : rows.stop] for name, array in items}
                outputs.append(run(self._fetch, cut, adapters))
                self.progressed = clock()
                self._durations.append(self.progressed - begin)
                if self.on_batch is not None:
                    self._spans.append((begin, self.progressed, len(rows)))
        except ProviderFailedError:
            raise
        except (OrtdeployError, MemoryError):
            return None
        found = zip(self._fetch, zip(*outputs, strict=True), strict=True)
        columns = {name: _join_rows(values, batches) for name, values in found}
        if any(column is None for column in columns.values()):
            return None
        self._compare_each(feeds, columns, batches, adapters, number)  # type: ignore[arg-type]  # none is None
        return columns  # type: ignore[return-value]

    def _note_shapes(self, feeds: Mapping[str, Array]) -> None:
        if len(self.shapes) < MOST_SHAPES:
            begin = 0 if self._one_by_one else 1
            self.shapes.add(tuple(array.shape[begin:] for array in feeds.values()))

    def _compare_each(
        self,
        feeds: Mapping[str, Array],
        columns: Mapping[str, Column],
        batches: Sequence[range],
        adapters: tuple[str, ...],
        number: Number,
    ) -> None:
        """Compare the last of some batches with the CPU, and rows of all with other batches, if it is their turn."""
        if not batches:
            return
        seconds = sum(self._durations[-len(batches) :])
        if self._probe is not None:
            last = slice(batches[-1].start, batches[-1].stop)
            values = [_stacked(columns[name][last]) for name in self._fetch]
            fed = {name: array[last] for name, array in feeds.items()}
            self._look_at_cpu(fed, values, adapters, lambda place: number(batches[-1].start + place), seconds)
        if self._proof is not None:
            rows, batch = batches[-1].stop, max(map(len, batches))
            run = self._again(adapters)
            self._proof.look(run, feeds, columns, adapters, rows=rows, batch=batch, number=number, seconds=seconds)

    def finish(self) -> None:
        """Compare the last rows that have run. Raises DisagreementError, ProviderFailedError."""
        if self._probe is not None and self._reference is not None:
            self._probe.finish(self._run_on_cpu)
        if self._comparing is not None:
            self._comparing.finish()
        if self._proof is not None:
            self._proof.finish(self._again)

    @property
    def proven(self) -> "Mapping[str, Sequence[Evidence]]":
        """On what each kind of comparison is proven."""
        probes = [] if self._probe is None else [self._probe.evidence]
        probes += [] if self._comparing is None else self._comparing.evidence
        rows = () if self._proof is None else self._proof.evidence
        return {"cpu_comparison": probes, "row_independence": rows}

    def _rows_of(self, values: Sequence[Any], rows: int, expected: int) -> dict[str, Column]:
        """Return the outputs [expected, …] of a run as [rows, …], without padding. Raises StageError for others."""
        results: dict[str, Column] = {}
        for name, value in zip(self._fetch, values, strict=True):
            listed = isinstance(value, list)  # a pipeline's rows may differ in shape
            if not listed and (np.ndim(value) == 0 or len(value) != expected):
                from ortdeploy.sessions.row_axis_adapter import not_by_row  # noqa: PLC0415  only when something is wrong

                as_given = to_place(np.shape(value), self._job.row_axes.get(name)) if np.ndim(value) else ()
                raise StageError("contract", "output-rows", not_by_row(name, as_given, expected))
            results[name] = value if expected == rows else value[:rows]
        return results

    @property
    def seconds_left(self) -> float | None:
        """Seconds until a run may be late, or stuck; None if a run may take any time. Thread-safe."""
        return min((one.seconds_left for one in self._limited), default=None)

    def end_late_run(self) -> bool:
        """Ask a run that takes too long to end; return whether one was asked just now. Thread-safe."""
        return bool([one for one in self._limited if one.end_late_run()])  # each is asked

    @property
    def is_stuck(self) -> bool:
        """Whether a run was asked to end, and did not. Thread-safe."""
        return any(one.is_stuck for one in self._limited)

    def restart_timer(self) -> None:
        """Let the time of a run begin now: the whole process was stopped meanwhile. Thread-safe."""
        for one in self._limited:
            one.restart_timer()

    def begin(self, key: tuple[str, ...]) -> None:
        """Say to which reset key the next rows belong, if a pipeline has state."""
        if self._stateful is not None:
            self._stateful.begin(key)

    def undo(self) -> None:
        """Take the state back to before the last run, whose rows are run again."""
        if self._stateful is not None:
            self._stateful.undo()

    @property
    def state(self) -> Any:
        """The state of the last row; None without state."""
        return None if self._stateful is None else self._stateful.state

    def restore_state(self, state: Any) -> None:
        """Take up a state."""
        if self._stateful is not None:
            self._stateful.state = state

    def settle(self) -> None:
        """Count the durations of the runs since the last time; the histogram may be read from another thread."""
        self.run_times.add_all(self._durations)
        self._durations.clear()
        if self.on_batch is not None:
            for span in self._spans:
                self.on_batch(*span)
            self._spans.clear()

    def _within_limit(self, session: Session) -> Session:
        """Return a session whose runs are bounded, if the job bounds them."""
        seconds = self._job.errors.run_timeout
        if seconds is None:
            return session
        from ortdeploy.sessions.run_limit import LimitedSession  # noqa: PLC0415  few jobs bound their runs

        self._limited.append(LimitedSession(session, seconds))
        return self._limited[-1]

    def _run(
        self, feeds: Mapping[str, Array], adapters: tuple[str, ...], session: Session | None = None
    ) -> Sequence[Any]:
        values = (session or self._session).run(self._fetch, feeds, adapters)
        if any(is_narrow(value) for value in values if isinstance(value, np.ndarray)):
            return [widened(value) if isinstance(value, np.ndarray) else value for value in values]
        return values

    def _again(self, adapters: tuple[str, ...]) -> RunRows:
        """Return what runs feeds [rows, …] by name, with these adapters."""
        return lambda feeds: dict(zip(self._fetch, self._run(feeds, adapters), strict=True))

    def _run_compared(self, feeds: Mapping[str, Array], adapters: tuple[str, ...], number: Number) -> Sequence[Any]:
        """Run a batch, and compare it with the CPU if it is its turn. Raises ProviderFailedError, DisagreementError."""
        probe = self._probe
        if probe is None or self._reference is None or probe.session is None:
            return self._run(feeds, adapters)
        begin = time.perf_counter()
        if probe.evidence.is_begun:
            values = self._run(feeds, adapters)
            self._look_at_cpu(feeds, values, adapters, number, time.perf_counter() - begin)
            return values
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  not for the CPU alone

        with ThreadPoolExecutor(1) as beside:
            reference = beside.submit(self._run, feeds, adapters, self._reference)
            values = self._run(feeds, adapters)
        seconds = time.perf_counter() - begin
        self._look_at_cpu(feeds, values, adapters, number, seconds, reference.result)
        return values

    def _look_at_cpu(
        self,
        feeds: Mapping[str, Array],
        values: Sequence[Any],
        adapters: tuple[str, ...],
        number: Number,
        seconds: float,
        expected: Callable[[], Sequence[Any]] | None = None,
    ) -> None:
        """Compare the values of a batch with the CPU's, if it is its turn; `expected` returns what is there already."""
        probe = self._probe
        if probe is None or self._reference is None:
            return
        probe.look(
            self._fetch,
            feeds,
            values,
            self._run_on_cpu,
            adapters,
            number=number,
            seconds=seconds,
            expected=expected,
            by_row=not self._one_by_one,
        )
        if probe.session is None:
            self._reference = None
            self._limited = self._limited[:1]

    def _run_on_cpu(
        self, _names: Sequence[str], feeds: Mapping[str, Array], adapters: tuple[str, ...]
    ) -> Sequence[Any]:
        return self._run(feeds, adapters, self._reference)

    def _prove_effect(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> None:
        """Compare what an adapter and the base model say of the first rows that the adapter is for."""
        self._effective.add(adapters)
        if not self._one_by_one and not self._pads:
            feeds = {name: array[:_FEW] for name, array in feeds.items()}
        prove_effect(self._session, self._fetch, feeds, adapters)


def prove_effect(session: Session, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> None:
    """Compare the results of adapters and of the base model on the same feeds [rows, …]; warn if they are the same."""
    with suppress(OrtdeployError):  # a base model that does not run alone proves nothing
        values, base = session.run(outputs, feeds, adapters), session.run(outputs, feeds, ())
        if all(are_equal(*pair) for pair in zip(values, base, strict=True)):
            log.warning("adapter.without_effect", adapters=list(adapters), outputs=list(outputs))


def _join_rows(values: Sequence[Any], batches: Sequence[range]) -> Column | None:
    """Return an output of several runs as one column [rows, …]; None if it does not have one row for each that was fed.

    Rows may differ in shape from run to run, and then are a list, as those of a pipeline may be within a run.
    """
    if list(map(_count, values)) != list(map(len, batches)):
        return None
    rows = join(values)
    if isinstance(rows, np.ndarray):
        return widened(rows)
    return [widened(row) if isinstance(row, np.ndarray) else row for row in rows]


def _stacked(rows: Column) -> Column:
    """Return rows of one run as one array [rows, …] again, if they are arrays."""
    if isinstance(rows, list) and rows and all(isinstance(row, np.ndarray) for row in rows):
        return np.stack(rows)
    return rows


def _count(value: Any) -> int | None:
    """Return how many rows an output has; None if it has no rows."""
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list) else None


def are_equal(value: Any, other: Any) -> bool:
    """Compare two outputs, also sequences and maps of arrays."""
    if isinstance(value, list):
        return len(value) == len(other) and all(map(are_equal, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(are_equal(value[key], other[key]) for key in value)
    return bool(np.array_equal(value, other))


def _as_row(value: Any) -> Column:
    """Return the one row […] that a run has given as [1, …]; sequences and maps are values of the row."""
    return value[np.newaxis] if isinstance(value, np.ndarray) else [value]
