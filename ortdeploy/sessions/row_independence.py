"""Proves that rows are rows: some of a job's rows run again in other batches, and each must give the same result.

This finds a graph that mixes rows (a softmax over the batch, a reshape across it, batch normalization in training mode)
or whose output has its rows on another axis, however it is built. A graph with a fixed batch runs its rows in another
order, beside other rows. `evidence` decides which rows are compared. A proof is remembered, so it is paid for once.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, ProviderFailedError, TransientError, as_key
from ortdeploy.events import log
from ortdeploy.files.tuning_cache import TuningCache, choice_key
from ortdeploy.plan.pipeline import PlannedWireStep, walk
from ortdeploy.plan.steps import RunJob
from ortdeploy.sessions.evidence import DisagreementError, Evidence, clocks, content, is_text, since, varying
from ortdeploy.tensors.columns import Array, Column, finite_rows, join, pick
from ortdeploy.tensors.row_axes import to_place
from ortdeploy.tensors.types import format_shape

_FEW = 3  # rows that run together in a batch of another size
_SEARCHED = 64  # rows among which different ones are looked for
_EQUAL_SHARE = 0.9  # of a row's whole numbers: where a float beside them is close, some of many flip
_LAST_BIT = {"int8", "uint8"}  # pixels and quantized numbers, which noise may round to their neighbour
_SAMPLES, _SAMPLE_BYTES = 8, 32 * 2**20  # rows that are kept for the next look, and what they may take

RunRows = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Runs feeds [rows, …] and returns outputs [rows, …], both by name. Raises OrtdeployError."""

OnProof = Callable[[bool], None]
"""Is told with True before a run that is no batch of the job, and with False after it."""

Number = Callable[[int], int]
"""Returns the number that a row has in its job, by its place among those that ran together."""


class MixedRowsError(OrtdeployError):
    """Results depend on the rows beside them. Names the output and the row, by its place in the batch."""

    def __init__(self, message: str, output: str, place: int | None = None) -> None:
        """Take what is wrong."""
        super().__init__(message)
        self.output = output
        self.place = place

    def with_row(self, row: int, since: int | None) -> DisagreementError:
        """Return the error with the number that the row has in its job, and the first row that was not looked at."""
        return DisagreementError(f"output {self.output}, row {row}: {self}", since)


class _LostAxisError(MixedRowsError):
    """A run of one row gave an output without rows: a graph may squeeze an axis of one."""


class ProvenRows(Struct):
    """The proofs of a job's sessions, kept in the tuning cache. Threads of several sessions share it."""

    tuning_cache: TuningCache
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def known(self, key: str) -> set[str]:
        """Return the inputs and outputs that differed between rows which gave the same results in other batches."""
        with self._turn:
            found = self.tuning_cache.find(key)
        try:
            names = json.loads(found) if isinstance(found, str) else []
        except ValueError:  # an older ortdeploy did not note on what rows it was proven
            return set()
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def keep(self, key: str, varied: set[str]) -> None:
        """Remember a proof."""
        with self._turn:
            self.tuning_cache.find(key)  # what other processes have kept meanwhile is not lost
            self.tuning_cache.keep(key, json.dumps(sorted(varied)))


class RowsAgain(Struct, frozen=True, kw_only=True):
    """Runs rows again, in other batches, and compares what they give with what they gave.

    `feeds` and `results` are [rows, …]. `agree` are a relative and an absolute tolerance; None: only the numbers of
    rows are compared. `mixed` makes the error for an output that differs: of its name, the row's place, the size of the
    other batch, and in what. `as_given` is the shape of an output in its graph. `size`: the rows of each batch that the
    job ran; those of all batches, if it `takes_whole_batches`. Of the results of the `first` rows, the largest counts
    for the tolerance, beside those that run together.
    """

    run: RunRows
    feeds: Mapping[str, Column]
    results: Mapping[str, Any]
    size: int
    agree: tuple[float, float] | None
    mixed: Callable[[str, int, int, str], MixedRowsError]
    as_given: Callable[[str, Any], tuple[int, ...]]
    takes_whole_batches: bool = False
    is_slow: bool = False
    first: int = 0

    def prove(self, chosen: Sequence[int], others: Sequence[int], beside: Sequence[int]) -> None:
        """Run each of the `chosen` rows alone, and all in another order, together with those `beside` them.

        If only whole numbers differ, which may be a tie, `others` decide. Raises MixedRowsError, OrtdeployError.
        """
        try:
            self._compare_batches(chosen, beside, thorough=True)
        except _TieError as tie:
            if len(others) < 2:  # noqa: PLR2004  rows beside each other
                raise tie.as_error() from None
            try:
                self._compare_batches(others, (), thorough=True)
            except _TieError as again:
                raise again.as_error() from None

    def glance(self, chosen: Sequence[int], beside: Sequence[int]) -> None:
        """Run each of the `chosen` rows alone, and all together with those `beside` them.

        If one row may be a tie, the others decide. Raises as `prove`, and TransientError if there are none.
        """
        try:
            self._compare_batches(chosen, beside, thorough=False)
        except _TieError as tie:
            others = [place for place in (*chosen, *beside) if place != tie.as_error().place]
            if len(others) < 2:  # noqa: PLR2004  as above
                raise TransientError(f"only whole numbers differ, as a tie may cause ({tie})") from None
            try:
                self._compare_batches(others[:_FEW], (), thorough=True)
            except _TieError as again:
                raise again.as_error() from None

    def _is_text(self) -> bool:
        """Return whether rows may be padded to the longest of their batch."""
        return any(map(is_text, self.feeds.values()))

    def _compare_batches(self, chosen: Sequence[int], beside: Sequence[int], *, thorough: bool) -> None:
        if not self.takes_whole_batches:
            try:
                for places in self._sizes(chosen, beside, thorough=thorough):
                    self._compare_few(places)
            except (ProviderFailedError, MixedRowsError, TransientError, OutOfMemoryError):
                raise
            except OrtdeployError:  # the graph takes the job's number of rows and no other
                pass
            else:
                return
        mixture = [*chosen, *beside][::-1]
        for place in chosen[-1:] if self.is_slow else chosen[::-1]:
            self._compare([place] * self.size)
        if len(mixture) > 1 and not self.is_slow:
            self._compare([mixture[place % len(mixture)] for place in range(self.size)])

    def _sizes(self, chosen: Sequence[int], beside: Sequence[int], *, thorough: bool) -> Iterator[list[int]]:
        """Yield the rows of batches to compare with: each alone, and all in another order.

        A row that is the longest of its batch is padded nowhere, so others are alone too. If a run takes minutes, one.
        """
        few = list(chosen)
        yield few[-1:]
        if self.is_slow:
            return
        yield from ([place] for place in few[:-1])
        mixture = [*few, *beside][::-1]
        if thorough:
            most = max(self.size, len(few))
            yield [*few, *beside][:most][::-1] if len(mixture) > 1 and most > 1 else few * 2
        elif len(mixture) > 1:
            yield from (mixture[start : start + self.size] for start in range(0, len(mixture), max(self.size, 1)))

    def _compare_few(self, places: list[int]) -> None:
        """Compare as `_compare`; a row whose output loses the axis of rows alone is compared in a batch of two."""
        try:
            self._compare(places)
        except _LostAxisError:
            self._compare(places * 2)

    def _compare(self, places: Sequence[int]) -> None:
        """Run rows at some places together, and compare their results with those of the first batch."""
        found = self.run({name: pick(column, places) for name, column in self.feeds.items()})
        lost = _LostAxisError if len(places) == 1 else MixedRowsError
        for name, values in found.items():
            if np.ndim(values) == 0 if isinstance(values, np.ndarray) else not isinstance(values, list):
                raise lost(_not_by_row(name, (), len(places)), name)
            if len(values) != len(places):
                raise lost(_not_by_row(name, self.as_given(name, values), len(places)), name)
            if self.agree is None:
                continue
            before = [self.results[name][place] for place in places]
            alike = [self.results[name][place] for place in range(self.first)]
            comparison = _Comparison(*self.agree, largest=_largest([*before, *alike]), is_padded=self._is_text())
            for place, value, expected in zip(places, values, before, strict=True):
                problem = comparison.difference(value, expected)
                if problem is not None:
                    error = self.mixed(name, place, len(places), problem)
                    raise _TieError(error) if comparison.is_tie else error


class _Sample(Struct, frozen=True, kw_only=True):
    """One row that ran, with the number that it has in its job: feeds and results, [1, …] each."""

    number: int
    feeds: Mapping[str, Column]
    results: Mapping[str, Column]

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays."""
        columns = (*self.feeds.values(), *self.results.values())
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))

    def is_like(self, other: "_Sample") -> bool:
        """Return whether two rows can run together."""
        return all(_are_alike(self.feeds[name], column) for name, column in other.feeds.items())


def _sampled(feeds: Mapping[str, Column], results: Mapping[str, Column], place: int, number: int) -> _Sample:
    """Return a copy of one row of feeds and results [rows, …]."""
    one = [
        {
            name: column[place : place + 1].copy() if isinstance(column, np.ndarray) else [column[place]]
            for name, column in columns.items()
        }
        for columns in (feeds, results)
    ]
    return _Sample(number=number, feeds=one[0], results=one[1])


def _number_of(number: Number, places: Sequence[int], place: int) -> int:
    """Return the number of a row in its job, by its place among some `places` of a block."""
    return number(places[place])


def _are_alike(one: Column, other: Column) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
    return isinstance(one, list) and isinstance(other, list)


class RowsLook(Struct):
    """Looks at rows that have run, when it is their turn: they run again in other batches.

    `varied` is called with what has varied, each time that this grows. Rows for which an output of `check_finite` is
    not finite fail, or run again without those that do, so they are not compared: NaN of one row may have reached them.
    What else is here is explained at `RowsAgain`.
    """

    agree: tuple[float, float] | None
    mixed: Callable[[str, int, int, str], MixedRowsError]
    as_given: Callable[[str, Any], tuple[int, ...]]
    takes_whole_batches: bool = False
    is_slow: bool = False
    check_finite: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    on_varied: Callable[[set[str]], None] = lambda _names: None
    _kept: list[_Sample] = field(default_factory=list)
    _passed: list[_Sample] = field(default_factory=list)
    _latest: _Sample | None = None
    _stride: int = 1
    _whole: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be compared any more: the results are not, and each output had its rows."""
        return self.agree is None and self.evidence.is_begun

    def look(
        self,
        run: RunRows,
        feeds: Mapping[str, Column],
        results: Mapping[str, Column],
        *,
        rows: int,
        batch: int,
        number: Number,
        seconds: float,
    ) -> None:
        """Compare some of the rows that have run in batches of `batch`, if it is their turn.

        `feeds` and `results` are [rows, …]; padding rows may follow. `seconds` is how long they ran. Raises
        DisagreementError, ProviderFailedError.
        """
        evidence = self.evidence
        evidence.note_block(rows, seconds, feeds, results)
        self._whole = max(self._whole, batch)
        staying = self._staying(results, rows)
        if staying is not None:
            if not staying:
                return
            feeds, results = ({name: pick(one, staying) for name, one in some.items()} for some in (feeds, results))
            rows, number = len(staying), partial(_number_of, number, staying)
        kept = self._kept[0] if self._kept else None
        if evidence.varied.issuperset((*evidence.inputs, *evidence.outputs)) and not any(map(is_text, feeds.values())):
            new: Mapping[str, int] = {}
        else:
            first = None if kept is None else (kept.feeds, kept.results)
            cut = [{name: column[:rows] for name, column in columns.items()} for columns in (feeds, results)]
            new = varying(cut[0], cut[1], self.agree, but=evidence.varied, first=first)
        if not evidence.is_due(is_new=bool(new)):
            if not evidence.repeats:
                self._pass_by(feeds, results, rows, number)
            return
        different = _different(feeds, rows)
        few = [*different[:_FEW], *self._lacking(feeds, results, different[:_FEW], new)]
        others = [place for place in different[_FEW:] if place not in few]
        if new or not evidence.is_begun:
            chosen, more = ([_sampled(feeds, results, one, number(one)) for one in some] for some in (few, others))
            self._compare(run, chosen, more, thorough=True)
        else:
            wanted = min(evidence.rows_to_look_at(2), rows)
            spread = _unlike(feeds, (*few[:2], *(place * rows // wanted for place in range(wanted))))
            chosen = [_sampled(feeds, results, one, number(one)) for one in spread[:wanted]]
            self._compare(run, chosen, (), thorough=False)

    def _staying(self, results: Mapping[str, Column], rows: int) -> list[int] | None:
        """Return the places of the rows whose results stay as they are; None if all do."""
        finite = np.ones(rows, dtype=bool)
        for name in self.check_finite:
            if name in results:  # else a later step makes it
                finite &= finite_rows(results[name][:rows])
        return None if finite.all() else np.flatnonzero(finite).tolist()

    def _lacking(
        self,
        feeds: Mapping[str, Column],
        results: Mapping[str, Column],
        chosen: Sequence[int],
        new: Mapping[str, int],
    ) -> list[int]:
        """Return the places of more rows to compare: those in which something is new that the chosen ones have not."""
        picked = [{name: pick(column, chosen) for name, column in columns.items()} for columns in (feeds, results)]
        shown = varying(picked[0], picked[1], self.agree)
        places = dict.fromkeys(place for name, place in new.items() if name not in shown and place not in chosen)
        return list(places)[:_FEW]

    def finish(self, run: RunRows) -> None:
        """Compare rows of the blocks since the last look. Raises as `look`."""
        samples = [*self._passed, *([] if self._latest is None else [self._latest])]
        if samples and not (self.is_slow and self.evidence.is_proven):
            samples = samples[-self.evidence.last_rows :]
            alone = self.evidence.rows_to_look_at(1)
            self._passed, self._latest = samples[:-alone], None
            self._compare(run, samples[-alone:], (), thorough=False)

    def _compare(self, run: RunRows, chosen: Sequence[_Sample], others: Sequence[_Sample], *, thorough: bool) -> None:
        """Compare `chosen` rows, those that have passed since the last look, and one of an earlier look."""
        passed = [*self._passed, *([self._latest] if self._latest else []), *self._kept]
        beside = [one for one in passed if one.is_like(chosen[0])]
        chosen = [one for one in chosen if one.is_like(chosen[0])]
        others = [one for one in others if one.is_like(chosen[0])]
        samples = [*chosen, *others, *beside]
        feeds = {name: join([one.feeds[name] for one in samples]) for name in chosen[0].feeds}
        results = {name: join([one.results[name] for one in samples]) for name in chosen[0].results}
        again = RowsAgain(
            run=run,
            feeds=feeds,
            results=results,
            size=self._whole,
            agree=self.agree,
            mixed=self.mixed,
            as_given=self.as_given,
            takes_whole_batches=self.takes_whole_batches,
            is_slow=self.is_slow,
            first=len(chosen) + len(others),
        )
        places = list(range(len(samples)))
        first, more = places[: len(chosen)], places[len(chosen) + len(others) :]
        began = clocks()
        try:
            if thorough:
                again.prove(first, places[len(chosen) : len(chosen) + len(others)], more)
            else:
                again.glance(first, more)
        except MixedRowsError as error:
            row = samples[error.place or 0].number
            raise error.with_row(row, self.evidence.since) from error
        except (TransientError, OutOfMemoryError, MemoryError) as error:  # the next block is looked at
            log.debug("rows.compared_later", row=chosen[0].number, reason=str(error))
            self.evidence.trouble = str(error) or "memory ran out"
            self.evidence.pass_by(min(one.number for one in samples))
            return
        compared = [
            {name: pick(column, [*first, *more]) for name, column in columns.items()} for columns in (feeds, results)
        ]
        varied = varying(compared[0], compared[1], self.agree) if self.agree is not None else {}
        grown = self.evidence.agree(len(chosen) + len(more), varied, since(began), len(chosen) + 1)
        self._kept = list(chosen[-1:])
        self._passed, self._latest, self._stride = [], None, 1
        if grown and self.evidence.is_proven:
            self.on_varied(self.evidence.varied)

    def _pass_by(self, feeds: Mapping[str, Column], results: Mapping[str, Column], rows: int, number: Number) -> None:
        """Keep a row of a block that is not looked at, for the next look: of the latest one, and of some before."""
        self.evidence.pass_by(number(0))
        place = (self.evidence.blocks * 7919) % rows  # anywhere in its batch
        sample = _sampled(feeds, results, place, number(place))
        distance = self.evidence.blocks - self.evidence.looked_at
        self._latest = sample
        if distance % self._stride == 0:
            self._passed.append(sample)
            self._latest = None
            most = min(_SAMPLES, _SAMPLE_BYTES // max(sample.size_bytes, 1))
            if len(self._passed) > most:  # of every other block
                self._passed = self._passed[1::2]
                self._stride *= 2


class RowProof:
    """Proves for one session, with each set of adapters, that its rows do not depend on each other.

    `holds_for` is what the proof depends on apart from the job: the session with its options, digests and versions.
    """

    def __init__(
        self,
        step: RunJob,
        proven: ProvenRows,
        holds_for: Any,
        *,
        is_on_cpu: bool = False,
        on_run: OnProof | None = None,
        why_not: str | None = None,
        survived: str | None = None,
    ) -> None:
        """Take what is known already. Other providers than the CPU's may compile anew for each number of rows.

        `on_run` is told before and after each run that is no batch of the job. `why_not`: nothing is to be compared.
        `survived` is the key under which it is remembered that a proof has not ended the process.
        """
        self._on_run = on_run
        self._survived = survived
        self._why_not = why_not
        self._step = step
        self._check = step.row_check
        self._proven = proven
        self._holds_for = holds_for
        self._looks: dict[tuple[str, ...], RowsLook] = {}
        sizes = [planned.shape[0] for planned in step.inputs if planned.shape]
        is_open = is_on_cpu and not any(isinstance(size, int) for size in sizes)
        self._takes_whole_batches = step.batching.pad_to is not None and not is_open

    def wants(self, adapters: tuple[str, ...], rows: int) -> bool:
        """Return whether nothing has been compared yet, and a batch of this number of rows can be."""
        known = self._looks.get(adapters)
        return rows > 1 and self._check.counts and (known is None or not known.evidence.is_begun)

    def look(
        self,
        run: RunRows,
        feeds: Mapping[str, Array],
        results: Mapping[str, Column],
        adapters: tuple[str, ...],
        *,
        rows: int,
        batch: int,
        number: Number,
        seconds: float,
    ) -> None:
        """Compare some rows that have run in batches of `batch`, if it is their turn. Raises as `RowsLook.look`.

        `feeds` and `results` are [rows, …]; padding rows may follow.
        """
        if rows > 1 and batch > 1 and self._check.counts:
            look = self._looks.get(adapters) or self._begin(feeds, adapters)
            if self._why_not is not None:
                look.evidence.give_up(self._why_not, rows, number(0))
            elif not look.is_over:
                told = self._told(run)
                look.look(told, feeds, results, rows=rows, batch=batch, number=number, seconds=seconds)

    def finish(self, run: Callable[[tuple[str, ...]], RunRows]) -> None:
        """Compare rows of the last blocks. Raises as `RowsLook.look`."""
        for adapters, look in self._looks.items():
            if not look.is_over:
                look.finish(self._told(run(adapters)))

    def _told(self, run: RunRows) -> RunRows:
        """Return what runs rows, and says so before and after, if somebody wants to know."""
        on_run = self._on_run
        if on_run is None:
            return run

        def told(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            on_run(True)
            try:
                return run(feeds)
            finally:
                on_run(False)

        return told

    @property
    def evidence(self) -> Sequence[Evidence]:
        """On what rows are proven, with each set of adapters; none if results are not compared."""
        return [] if self._check.agree is None else [one.evidence for one in self._looks.values()]

    def _begin(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> RowsLook:
        key = self._key(feeds, adapters)
        varied = self._proven.known(key) if self._check.agree is not None else set()
        pipeline = self._step.pipeline
        look = self._looks[adapters] = RowsLook(
            agree=self._check.agree,
            mixed=self._mixed,
            as_given=self._as_given,
            takes_whole_batches=self._takes_whole_batches,
            is_slow=pipeline is not None and pipeline.preset is not None,
            check_finite=self._step.errors.check_finite,
            evidence=Evidence(varied=varied, is_begun=bool(varied), is_remembered=bool(varied)),
            on_varied=partial(self._keep, key),
        )
        return look

    def _keep(self, key: str, varied: set[str]) -> None:
        """Remember a proof, and that no other batch has ended the process."""
        self._proven.keep(key, varied)
        if self._survived is not None:
            self._proven.keep(self._survived, varied)

    def _as_given(self, name: str, values: Any) -> tuple[int, ...]:
        """Return the shape of an output as the graph has it."""
        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        return to_place(shape, self._step.row_axes.get(name))

    def _mixed(self, name: str, place: int, size: int, problem: str) -> MixedRowsError:
        beside = "alone" if size == 1 else f"in another batch of {size}"
        where, alone = (
            f"outputs: {{{as_key(name)}: {{row_axis: AXIS}}}} of model {self._step.model}",
            "{size: 1} or none,",
        )
        if self._step.pipeline is not None:
            where, alone = "row_axis: AXIS, under inputs or outputs of its model", "{size: 1},"
        return MixedRowsError(
            f"its results depend on the rows beside it. They are others {beside} than in its own batch ({problem}). "
            f"If another axis counts rows, say which: {where}. Batches of one, batch: {alone} have "
            "nothing beside a row. If it is on purpose (stateful, random, dynamically quantised), write "
            f"row_independence: {{rtol: …}}, or false{self._of_a_pipeline()}",
            name,
            place,
        )

    def _of_a_pipeline(self) -> str:
        """Return where a pipeline says so, and what else helps where its steps are operators, or fill texts up."""
        pipeline = self._step.pipeline
        if pipeline is None:
            return ""
        steps = list(walk(pipeline.steps))
        said = ", at the model"
        if any(step.kind == "op" for step in steps):
            said += ". An op step that works across rows takes by_row: true"
        if any(map(_fills_up, steps)):
            said += ". tokenize fills texts up to the longest of their batch: padding: none fills none of them"
        return said

    def _key(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> str:
        """Return what a proof holds for."""
        step = self._step
        shapes = sorted([name, str(array.dtype), *array.shape[1:]] for name, array in feeds.items())
        constants = (*step.values, *(step.pipeline.constants if step.pipeline else ()))
        values = [[one.name, json.dumps(one.content), one.row_axis] for one in constants]
        sizes = [step.batching.size, step.batching.pad_to, self._check.agree]
        return choice_key(
            "rows", self._holds_for, list(adapters), shapes, sorted(step.row_axes.items()), values, step.fetch, sizes
        )


def _fills_up(step: PlannedWireStep) -> bool:
    """Return whether a step fills rows up to the longest of their batch."""
    fills = step.options.get("padding") != "none" and "length" not in step.options
    return step.kind == "do" and step.name == "tokenize" and fills


class _TieError(Exception):
    """Only whole numbers differ; two floats that are almost equal may cause that."""

    def __init__(self, error: MixedRowsError) -> None:
        super().__init__(str(error))
        self._error = error

    def as_error(self) -> MixedRowsError:
        return self._error


class _Comparison(Struct):
    """Compares values of one output, within a tolerance of its largest; `is_tie`: whole numbers were not equal.

    `is_padded`: results by token may be as long as those of the longest text, and what both have is compared.
    """

    rtol: float
    atol: float
    largest: float
    is_padded: bool = False
    is_tie: bool = False

    def difference(self, value: Any, expected: Any) -> str | None:
        """Return what two results of one row differ in; None if they agree."""
        if isinstance(expected, dict):
            if not isinstance(value, dict) or value.keys() != expected.keys():
                return "the map has other keys"
            return self._of_all([value[key] for key in expected], list(expected.values()))
        if isinstance(expected, list):
            return self._of_all(value, expected)
        return self._of_arrays(np.asarray(value), np.asarray(expected))

    def _of_all(self, values: Any, expected: Sequence[Any]) -> str | None:
        if not isinstance(values, list) or len(values) != len(expected):
            return "the list has another length"
        found = (self.difference(*pair) for pair in zip(values, expected, strict=True))
        return next((problem for problem in found if problem is not None), None)

    def _of_arrays(self, value: Array, expected: Array) -> str | None:
        if self.is_padded and value.ndim == expected.ndim:
            both = tuple(map(slice, map(min, value.shape, expected.shape)))
            value, expected = value[both], expected[both]
        if value.shape != expected.shape:
            return f"it is {format_shape(value.shape)} instead of {format_shape(expected.shape)}"
        if np.issubdtype(expected.dtype, np.floating):
            return self._of_floats(value, expected)
        equal = value == expected
        if str(expected.dtype) in _LAST_BIT:
            equal = np.abs(value.astype(np.int64) - expected) <= 1
        share = float(np.mean(equal)) if value.size else 1.0
        if share >= _EQUAL_SHARE:
            return None
        self.is_tie = True
        return (
            f"{share:.0%} of its values are equal" if value.size > 1 else f"{value.item()} instead of {expected.item()}"
        )

    def _of_floats(self, value: Array, expected: Array) -> str | None:
        finite = np.isfinite(expected)
        if (
            not np.array_equal(value[~finite], expected[~finite], equal_nan=True)
            or not np.isfinite(value[finite]).all()
        ):
            return "infinities or NaN are in other places"
        apart = np.abs(value[finite].astype(np.float64) - expected[finite])
        allowed = self.atol + self.rtol * self.largest
        furthest = float(apart.max(initial=0))
        return None if furthest <= allowed else f"by {furthest:.3g}, and {allowed:.3g} is allowed"


def _different(feeds: Mapping[str, Column], rows: int) -> list[int]:
    """Return the places of rows that differ from each other, as many as are needed.

    They are from all over the batch: a graph may mix rows only with those that are far before them.
    """
    spread = dict.fromkeys((0, rows - 1, rows // 2, *range(1, rows, max(1, rows // _SEARCHED))))
    return _unlike(feeds, list(spread)[:_SEARCHED], 2 * _FEW)


def _unlike(feeds: Mapping[str, Column], places: Sequence[int], most: int | None = None) -> list[int]:
    """Return those of some places at which rows differ from each other, `most` of them."""
    seen: dict[Any, int] = {}
    for place in places:
        seen.setdefault(tuple(content(np.asarray(array[place])) for array in feeds.values()), place)
        if len(seen) == most:
            break
    return list(seen.values())


def _largest(values: Sequence[Any]) -> float:
    """Return the largest finite magnitude among results, also inside lists and maps."""
    largest = 0.0
    for value in values:
        if isinstance(value, dict | list):
            largest = max(largest, _largest(list(value.values()) if isinstance(value, dict) else value))
            continue
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.floating):
            largest = max(largest, float(np.abs(array[np.isfinite(array)]).max(initial=0)))
    return largest


def _not_by_row(name: str, shape: tuple[int, ...], rows: int) -> str:
    from ortdeploy.sessions.row_axis_adapter import not_by_row  # noqa: PLC0415  only when something is wrong

    return not_by_row(name, shape, rows)
