"""Looks at rows that have run, when it is their turn: which of them are compared, and when."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from ortdeploy.diagnostics import OutOfMemoryError, TransientError
from ortdeploy.events import log
from ortdeploy.sessions.evidence import Evidence, clocks, content, is_text, since, varying
from ortdeploy.sessions.rows_again import FEW, MixedRowsError, RowsAgain, RunRows
from ortdeploy.tensors.columns import Column, finite_rows, join, pick

_SEARCHED = 64  # rows among which different ones are looked for
_SAMPLES, _SAMPLE_BYTES = 8, 32 * 2**20  # rows that are kept for the next look, and what they may take

Number = Callable[[int], int]
"""Returns the number that a row has in its job, by its place among those that ran together."""


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
        few = [*different[:FEW], *self._lacking(feeds, results, different[:FEW], new)]
        others = [place for place in different[FEW:] if place not in few]
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
        return list(places)[:FEW]

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


def _different(feeds: Mapping[str, Column], rows: int) -> list[int]:
    """Return the places of rows that differ from each other, as many as are needed.

    They are from all over the batch: a graph may mix rows only with those that are far before them.
    """
    spread = dict.fromkeys((0, rows - 1, rows // 2, *range(1, rows, max(1, rows // _SEARCHED))))
    return _unlike(feeds, list(spread)[:_SEARCHED], 2 * FEW)


def _unlike(feeds: Mapping[str, Column], places: Sequence[int], most: int | None = None) -> list[int]:
    """Return those of some places at which rows differ from each other, `most` of them."""
    seen: dict[Any, int] = {}
    for place in places:
        seen.setdefault(tuple(content(np.asarray(array[place])) for array in feeds.values()), place)
        if len(seen) == most:
            break
    return list(seen.values())
