"""Windows of the lines of tables: a row is some lines that follow each other, perhaps of one device, by their times.

A window lies within one file. Its number there follows from the lines that can be read, from their columns `by` and
from their times alone. So a plan counts windows without reading what is fed, and a line with a value that cannot be fed
fails the windows that it is in. A line that cannot be read at all is a failed row of its own, and in no window.

What is held are the lines of the windows that are open: one for each value of `by`.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain, repeat
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.memory_budget import check_room, room
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import SourceModule, Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.row_index import Mark, ReadRows
from ortdeploy.sources.rows import RowError
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.json_values import json_value
from ortdeploy.tensors.nanoseconds import Nanoseconds
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.units import split_duration

FIRST_LINE, LAST_LINE = "first_line", "last_line"
"""The columns that say which lines of the file a window has, from 0."""

_AT_ONCE = 1024
"""Lines that are read together."""

_UNREADABLE = frozenset({"cell-count", "not-csv", "not-json", "not-utf8"})
"""The codes of lines that cannot be read, whatever is fed."""

_SECOND = 10**9
_DAY = 86_400 * _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999 = 253_402_300_800 * _SECOND
_CELL = 100
"""Bytes that a value of an open window takes, at least."""


class Windowing(Struct, frozen=True, kw_only=True):
    """Which lines are a window: `rows` of them, or those of a `duration`; durations are in nanoseconds."""

    rows: int | None
    duration: int | None
    hop: int
    by: tuple[str, ...]
    order: str | None
    gap: int | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that decide which lines are a window."""
        return (*self.by, *([self.order] if self.order else []))

    @property
    def beside(self) -> dict[str, str | None]:
        """The columns that a window has of itself, each with the column whose type it has."""
        ends = {f"{end}_{self.order}": self.order for end in ("first", "last")} if self.order else {}
        return {FIRST_LINE: None, LAST_LINE: None, **ends}

    def carried_of_lines(self, carried: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of lines whose types carried columns have."""
        return tuple(dict.fromkeys(self.beside.get(name, name) or name for name in carried))

    def of_facts(self, facts: InputFacts) -> InputFacts:
        """Return the facts of tables whose rows are windows: how many there are, only reading tells."""
        if facts.problem is not None or not facts.columns:
            return facts
        for name in self.keys:
            if name not in facts.columns:
                known = ", ".join(facts.columns)
                return _unfit(facts, f'window: names the column "{name}", and the data has {known}.')
        doubled = next((name for name in self.beside if name in facts.columns), None)
        if doubled is not None:
            return _unfit(
                facts, f'window: gives each row a column "{doubled}", which the data has too. Rename that one.'
            )
        several = next((name for name in facts.carried if name in facts.columns and name not in self.by), None)
        if several is not None:
            own = ", ".join(self.beside)
            return _unfit(facts, f'key: "{several}" has a value for each line of a window. Each row has {own}, and by.')
        columns = {name: one if name in self.by else _of_lines(one, self.rows) for name, one in facts.columns.items()}
        types = dict(facts.types)
        for name, like in self.beside.items():
            columns[name] = TensorType("int64", (ROWS,)) if like is None else TensorType(None, (ROWS,))
            kind = "int64" if like is None else facts.types.get(like)
            types |= {} if kind is None else {name: kind}
        beside = facts.beside | frozenset((*self.beside, *self.by))
        return replace(facts, columns=columns, types=types, beside=beside, rows=None)

    def reader(self, module: SourceModule, folder: str, wanted: Wanted) -> ReadRows:
        """Return what reads the windows of files of a format."""
        return _Reader(module, self, folder, wanted).read_rows

    @contextmanager
    def open(self, module: SourceModule, files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
        """Open files of a format for their windows, one file after the other."""
        yield TextRows(self.reader(module, folder, wanted), _decoded, files, replace(wanted, missing={}))


def windowing(said: Mapping[str, Any]) -> Windowing:
    """Return the windows that a manifest asks for."""
    rows, by = said.get("rows"), said.get("by", ())
    duration = _nanoseconds(said["duration"]) if rows is None else None
    hop = said.get("hop", said["duration"] if rows is None else rows)
    return Windowing(
        rows=rows,
        duration=duration,
        hop=hop if duration is None else _nanoseconds(hop),
        by=(by,) if isinstance(by, str) else tuple(by),
        order=said.get("order"),
        gap=_nanoseconds(said["gap"]) if "gap" in said else None,
    )


def _nanoseconds(duration: float | str) -> int:
    number, unit = split_duration(duration)
    return int(Decimal(number) * Decimal(str(unit)) * _SECOND)


def _unfit(facts: InputFacts, detail: str) -> InputFacts:
    return replace(facts, problem=Problem(kind="unfit", detail=detail))


def _of_lines(column: TensorType, rows: int | None) -> TensorType:
    """Return the type of a column in which each row has the values of some lines."""
    return column if column.shape is None else column.with_shape((ROWS, rows, *column.shape[1:]))


class _Line(Struct, frozen=True):
    """A line: its number in the file, its time, its columns `by` and `order` as they were read, and what is fed."""

    number: int
    time: int
    known: Mapping[str, Any]
    fed: Sequence[Any]
    wrong: RowError | None = None


class _Group(Struct):
    """The lines of an open window; `skip` lines, or those before `begin`, are in none.

    A line far `ahead` of the `last` one counts once the next line is not before it: a clock may have been wrong once.
    """

    lines: deque[_Line] = field(default_factory=deque)
    skip: int = 0
    begin: int | None = None
    last: int | None = None
    ahead: _Line | None = None


class _Windows:
    """Makes windows of the lines of one file."""

    def __init__(self, wanted: Windowing, limit: int | None, what: str) -> None:
        self._wanted, self._limit, self._what = wanted, limit, what
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._held, self._most = 0, room(limit)

    def add(self, line: _Line) -> "Iterator[list[_Line] | _Unreadable]":
        """Take a line, and yield the windows that are whole with it, and a line far ahead that is none of them.

        Raises RowError for a line before the last one.
        """
        wanted = self._wanted
        group = self._groups.setdefault(tuple(_written(line.known[name]) for name in wanted.by), _Group())
        if wanted.order is not None and group.last is not None:
            ahead, group.ahead = group.ahead, None
            if ahead is not None and ahead.time <= line.time:
                yield from self._take(group, ahead)
            elif ahead is not None:
                why = RowError(f'"{wanted.order}" is ahead of that of the line behind it', "out-of-order")
                why.known = ahead.known
                yield _Unreadable(ahead.number, why)
            if line.time < group.last:
                raise RowError(f'"{wanted.order}" is before that of the line before it', "out-of-order")
            if line.time - group.last > max(wanted.gap or 0, _DAY):
                group.ahead = line
                return
        yield from self._take(group, line)

    def rest(self) -> Iterator[list[_Line]]:
        """Yield the windows that are whole with the lines far ahead behind which no line came."""
        waiting = [group for group in self._groups.values() if group.ahead is not None]
        for group in sorted(waiting, key=lambda one: one.ahead.number if one.ahead else 0):
            if group.ahead is not None:
                yield from self._take(group, group.ahead)

    def _take(self, group: _Group, line: _Line) -> Iterator[list[_Line]]:
        """Take the next line of a group."""
        gap = self._wanted.gap
        if gap is not None and group.last is not None and line.time - group.last > gap:
            self._drop(group, len(group.lines))
            group.skip, group.begin = 0, None
        group.last = line.time
        rows = self._wanted.rows
        yield from self._by_time(group, line) if rows is None else self._by_number(group, line, rows)

    def _by_number(self, group: _Group, line: _Line, rows: int) -> Iterator[list[_Line]]:
        if group.skip:
            group.skip -= 1
            return
        self._hold(group, line)
        if len(group.lines) == rows:
            yield list(group.lines)
            group.skip = max(self._wanted.hop - rows, 0)
            self._drop(group, min(self._wanted.hop, rows))

    def _by_time(self, group: _Group, line: _Line) -> Iterator[list[_Line]]:
        hop, duration = self._wanted.hop, self._wanted.duration or 0
        begin = line.time if group.begin is None else group.begin
        while line.time >= begin + duration and group.lines:
            within = [one for one in group.lines if one.time < begin + duration]
            if within:
                yield within
            begin += hop
            while group.lines and group.lines[0].time < begin:
                self._drop(group, 1)
        begin += max(-(-(line.time - duration - begin + 1) // hop), 0) * hop  # no window of those between has a line
        group.begin = begin
        if line.time >= begin:
            self._hold(group, line)

    def _hold(self, group: _Group, line: _Line) -> None:
        group.lines.append(line)
        self._held += 1
        size = self._held * _CELL * (1 + len(line.known) + len(line.fed))
        if size > self._most:
            what = f"{self._what}: {self._held:,} lines of the open windows of {len(self._groups):,} groups"
            check_room(size, what, self._limit)

    def _drop(self, group: _Group, count: int) -> None:
        for _ in range(count):
            group.lines.popleft()
        self._held -= count


class _Reader(Struct, frozen=True):
    """Reads the windows of files of a format."""

    module: SourceModule
    windows: Windowing
    folder: str
    wanted: Wanted

    def read_rows(self, path: str, mark: Mark) -> Iterator[RawRow]:
        """Yield the windows of a file from a mark on, and the lines that cannot be read."""
        name = shown(path, self.folder)
        windows = _Windows(self.windows, self.wanted.memory_limit, name)
        made = chain.from_iterable(self._made(windows, line) for line in self._lines(path))
        for number, (place, value) in enumerate(chain(made, map(self._whole, windows.rest()))):
            if number >= mark.row:
                yield RawRow(name, place, value, number)

    def _made(self, windows: _Windows, line: "_Line | _Unreadable") -> Iterator[tuple[str, Any]]:
        """Yield what a line makes: windows with their places, or why it cannot be read."""
        if isinstance(line, _Unreadable):
            yield f" line {line.number}", line.why
            return
        try:
            for made in windows.add(line):
                yield (f" line {made.number}", made.why) if isinstance(made, _Unreadable) else self._whole(made)
        except RowError as error:
            error.known = line.known
            yield f" line {line.number}", error

    def _whole(self, window: Sequence[_Line]) -> tuple[str, Any]:
        """Return the place of a window, and its columns, or why it has none."""
        return f" lines {window[0].number} to {window[-1].number}", self._row(window)

    def _lines(self, path: str) -> "Iterator[_Line | _Unreadable]":
        """Yield the lines of a file."""
        fed = {name: kind for name, kind in self.wanted.dtypes.items() if name not in self.windows.beside}
        missing = {name: one for name, one in self.wanted.missing.items() if name in fed}
        inner = replace(
            self.wanted, keys=self.windows.keys, dtypes=fed, missing=missing, first_row=0, only=None, indexes=None
        )
        with self.module.open_source([path], self.folder, inner) as source:
            for block in source.blocks(0, repeat(_AT_ONCE)):
                yield from self._of_block(block, tuple(fed))

    def _of_block(self, block: Block, fed: Sequence[str]) -> "Iterator[_Line | _Unreadable]":
        failed = {row.row: row for row in block.failed}
        keys = {name: block.key(name) for name in self.windows.keys}
        columns = [block.columns[name] for name in fed]
        at = {row: place for place, row in enumerate(block.rows)}
        for row in range(block.start, block.start + block.count):
            if row in failed:
                yield self._failed(failed[row], row)
            elif row in at:
                place = at[row]
                known = {name: column[place] for name, column in keys.items()}
                yield self._line(row, known, [column[place] for column in columns])

    def _failed(self, row: FailedRow, number: int) -> "_Line | _Unreadable":
        """Return a line that cannot be fed, or that cannot be read at all."""
        why = RowError(row.message, row.code, known=row.key)
        if row.code in _UNREADABLE or not row.key.keys() >= {*self.windows.keys}:
            return _Unreadable(number, why)
        return self._line(number, {name: row.key[name] for name in self.windows.keys}, (), why)

    def _line(
        self, number: int, known: Mapping[str, Any], fed: Sequence[Any], wrong: RowError | None = None
    ) -> "_Line | _Unreadable":
        order = self.windows.order
        try:
            time = 0 if order is None else _time(known[order], order)
        except RowError as error:
            return _Unreadable(number, error)
        if time > _YEAR_9999 and (self.windows.gap or self.windows.duration):
            why = (
                f'"{order}" as seconds is beyond the year 9999. With gap or duration, write seconds instead of '
                "milliseconds, or text as ISO 8601 has it"
            )
            return _Unreadable(number, RowError(why, "not-a-time"))
        return _Line(number, time, known, fed, wrong)

    def _row(self, window: Sequence[_Line]) -> dict[str, Any] | RowError:
        """Return the columns of a window, or why it has none."""
        first, last = window[0], window[-1]
        row: dict[str, Any] = {name: last.known[name] for name in self.windows.by}
        row |= {FIRST_LINE: np.asarray(first.number), LAST_LINE: np.asarray(last.number)}
        if self.windows.order is not None:
            order = self.windows.order
            row |= {f"first_{order}": first.known[order], f"last_{order}": last.known[order]}
        bad = next((line for line in window if line.wrong is not None), None)
        if bad is not None and bad.wrong is not None:
            return RowError(f"line {bad.number}: {bad.wrong}", bad.wrong.code, known=row)
        names = [name for name in self.wanted.dtypes if name not in self.windows.beside]
        for place, name in enumerate(names):
            try:
                values = [one.fed[place] for one in ([last] if name in self.windows.by else window)]
                row[name] = _stacked(values)[0] if name in self.windows.by else _stacked(values)
            except ValueError:
                return RowError(f'"{name}" differs in shape from line to line', "ragged-rows", known=row)
        return row


class _Unreadable(Struct, frozen=True):
    """A line that cannot be read, and why."""

    number: int
    why: RowError


def _written(value: Any) -> str | None:
    """Return a value of `by` as text: what is written alike is one, such as 1, 1.0 and "1"."""
    plain = json_value(value)
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return None if plain is None else str(plain)


def _stacked(values: Sequence[Any]) -> Array:
    """Return the values of lines as one array [lines, …]. Raises ValueError."""
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    return np.stack([np.asarray(value) for value in values])


def _time(value: Any, name: str) -> int:
    """Return a time in nanoseconds: numbers are seconds, text is ISO 8601, in UTC unless it says. Raises RowError."""
    if isinstance(value, Nanoseconds):
        return value.count
    if isinstance(value, datetime):
        return _since_epoch(value)
    if isinstance(value, date):
        return _since_epoch(datetime(value.year, value.month, value.day, tzinfo=UTC))
    text = str(value).strip()
    try:
        return int(Decimal(text) * _SECOND)
    except (ArithmeticError, ValueError):  # no number, or one that is not finite or beyond all times
        pass
    try:
        return _since_epoch(datetime.fromisoformat(text))
    except ValueError as error:
        why = f'"{name}" is {text[:60]!r}, which is no time: a number of seconds, or text as ISO 8601 has it'
        raise RowError(why, "not-a-time") from error


def _since_epoch(value: datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _decoded(raw: RawRow) -> Mapping[str, Any]:
    if isinstance(raw.value, RowError):
        raise raw.value
    found: Mapping[str, Any] = raw.value
    return found
