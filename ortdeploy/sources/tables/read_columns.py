"""Columns of Arrow tables as arrays, in one type for all files; rows that lack a value without a filler are noted."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.files.memory_budget import check_room, room
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables.arrow_values import (
    RaggedError,
    TableError,
    as_rows,
    decoded_bytes,
    depth_of,
    element_type,
    flat,
    has_gaps,
    holds_nanoseconds,
    innermost,
    is_nanoseconds,
    nanoseconds,
    nulls_for_empty,
    runs_as_dictionary,
    tensor_type,
    tensors_as_lists,
    typed_as,
)
from ortdeploy.tensors.arrow_types import arrow_element_name, named_type, plain_type, rounded_rows
from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.conversion import rounded_places
from ortdeploy.tensors.types import FLOATING, USUAL

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES = ("timestamp[", "time32[", "time64[", "duration[")


class Piece(Struct, frozen=True, kw_only=True):
    """Some rows of a file; the first has the number `first` in the job and `file_row` in the file."""

    path: str
    first: int
    file_row: int
    batch: "pa.RecordBatch"

    def cut(self, rows: int) -> tuple["Piece", "Piece | None"]:
        """Return at most this number of rows, and the rest."""
        if self.batch.num_rows <= rows:
            return self, None
        return replace(self, batch=self.batch.slice(0, rows)), replace(
            self, first=self.first + rows, file_row=self.file_row + rows, batch=self.batch.slice(rows)
        )


class ReadColumns(Struct):
    """The columns of some pieces as arrays; `without` are the rows that lack a value: the failure's code, and why.

    `changed` are those that are fed otherwise than the file has them: with fillers, or as other numbers.
    """

    pieces: Sequence[Piece]
    wanted: Wanted
    without: dict[int, tuple[str, str]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    @property
    def names(self) -> Sequence[str]:
        """The columns of the file."""
        return self.pieces[0].batch.schema.names  # type: ignore[no-any-return]  # pyarrow is loosely typed

    def values(self, name: str) -> Column:
        """Return a key column as each file has it: an array of numbers [rows, …], or Python's values.

        Times are counted in the finest unit of all files, since Python has no nanoseconds of its own.
        """
        kinds = {plain_type(part.type) for part in self._parts(name)}
        if len(kinds) == 1 or self.wanted.types.get(name, "").startswith(_TIMES):
            return self._plain_values(name, self._column(name, is_fed=False))
        plain = (self._without_empty(part.cast(plain_type(part.type))) for part in self._parts(name))
        return [value for part in plain for value in self._plain_values(name, part)]

    def _plain_values(self, name: str, column: "pa.Array") -> Column:
        if is_nanoseconds(column.type):
            return nanoseconds(column)
        if column.null_count or arrow_element_name(column.type) is None:
            if holds_nanoseconds(column.type):
                raise TableError(f'"{name}" is {column.type}, and Python has no nanoseconds inside of lists or maps')
            return column.to_pylist()  # type: ignore[no-any-return]
        return flat(column)

    def read(self) -> dict[str, Column]:
        """Return the columns that are fed, for the rows that lack no value.

        They are arrays [rows, …], or lists of arrays if rows differ in shape.
        """
        found = {name: self._complete(name) for name in self.wanted.dtypes}
        while True:
            try:
                return {name: as_rows(self._kept(column)) for name, column in found.items()}
            except RaggedError:
                for name, column in found.items():
                    self._note_ragged(name, column)

    def _kept(self, column: "pa.Array") -> "pa.Array":
        import pyarrow as pa  # noqa: PLC0415

        if not self.without:
            return column
        return column.take(pa.array([place for place in range(len(column)) if place not in self.without], pa.int64()))

    def _note_ragged(self, name: str, column: "pa.Array") -> None:
        """Note the rows whose lists no tensor can hold."""
        for place in range(len(column)):
            if place not in self.without:
                try:
                    as_rows(column.slice(place, 1))
                except RaggedError as error:
                    self.without[place] = ("not-a-tensor", f'"{name}": {error}')

    def _complete(self, name: str) -> "pa.Array":
        """Return a column with fillers for its gaps; rows without a filler are noted."""
        whole = self._column(name)
        column = self._as_numbers(name, whole)
        kind = tensor_type(column.type)
        if kind.dtype is None and kind.shape is not None:
            column = column.cast(typed_as(column.type, self.wanted.dtypes[name] or USUAL))
        elif self.wanted.missing.get(name) == "nan":
            column = self._as_floating(name, column)
        if has_gaps(column):
            gaps = self._gaps(name, column.type)
            column = self._filled_lists(column, gaps) if gaps.depth else self._filled(column, gaps)
        if column is not whole:
            self.changed.add(name)
        return column

    def _gaps(self, name: str, kind: "pa.DataType") -> "_Gaps":
        """Return what stands for the nulls of a column of a type."""
        filler, element, depth = self.wanted.missing.get(name), innermost(kind), depth_of(kind)
        if filler is None:
            return _Gaps(name, depth)
        filler = math.nan if filler == "nan" and element_type(element) in FLOATING else filler
        try:
            return _Gaps(name, depth, filler=_as_element(filler, element))
        except _MISFITS as error:
            why = f'what missing: gives for "{name}" does not fit its type {kind}: {error}'
            return _Gaps(name, depth, misfit=why)

    def _column(self, name: str, *, is_fed: bool = True) -> "pa.Array":
        """Return a column in the type that the plan has for it in all files, without dictionaries and views."""
        import pyarrow as pa  # noqa: PLC0415

        parts = self._parts(name)
        told = self.wanted.types.get(name, "")
        is_told = bool(told) and (is_fed or told.startswith(_TIMES))
        wanted = named_type(told) if is_told and not self._is_null(name, parts) else plain_type(parts[0].type)
        before, cast = 0, []
        for part in parts:
            self._check_room(name, part)
            cast.append(part if part.type == wanted else self._cast(name, part, wanted, before))
            before += len(part)
        return self._without_empty(cast[0] if len(cast) == 1 else pa.concat_arrays(cast))

    def _is_null(self, name: str, parts: "Sequence[pa.Array]") -> bool:
        """Return whether a column has nulls alone, which are carried as text and fed as what the model takes."""
        import pyarrow as pa  # noqa: PLC0415

        is_text = self.wanted.dtypes.get(name) == "string"
        return self.wanted.types[name] == TEXT and not is_text and all(pa.types.is_null(part.type) for part in parts)

    def _without_empty(self, column: "pa.Array") -> "pa.Array":
        """Return a column of texts, or of lists of them, with null for those that stand for an empty cell."""
        empty = self.wanted.dialect.empty
        is_text = bool(empty) and element_type(innermost(column.type)) == "string"
        return nulls_for_empty(column, empty) if is_text else column

    def _check_room(self, name: str, part: "pa.Array") -> None:
        """Raise RoomError if a dictionary takes more than the room when it is decoded."""
        import pyarrow as pa  # noqa: PLC0415

        limit = self.wanted.memory_limit
        if pa.types.is_dictionary(part.type) and len(part) * part.dictionary.nbytes > room(limit):
            check_room(decoded_bytes(part), f'"{name}" of {len(part)} rows', limit)

    def _parts(self, name: str) -> "list[pa.Array]":
        return [tensors_as_lists(runs_as_dictionary(piece.batch.column(name))) for piece in self.pieces]

    def _cast(self, name: str, part: "pa.Array", wanted: "pa.DataType", before: int) -> "pa.Array":
        """Return some rows, which others are `before`, in another type; rows that it does not hold are noted."""
        import pyarrow as pa  # noqa: PLC0415

        why = f"which does not fit {wanted}, the type that it has with other files"
        try:
            cast = part.cast(wanted)
        except pa.ArrowNotImplementedError as error:
            raise TableError(f'"{name}" is {part.type}, which cannot be read as {wanted}; write it as that') from error
        except pa.ArrowInvalid:
            found = []
            for place, value in enumerate(part):
                try:
                    found.append(value.cast(wanted))
                except pa.ArrowInvalid:
                    found.append(None)
                    self.without.setdefault(before + place, ("unfit-value", f'"{name}" is {value}, {why}'))
            return pa.array(found, wanted)
        for place, number in rounded_rows(part, cast).items():
            self.without.setdefault(before + place, ("unfit-value", f'"{name}" is {number}, {why}'))
        return cast

    def _as_numbers(self, name: str, column: "pa.Array") -> "pa.Array":
        """Return decimals, perhaps in lists, as whole or floating numbers; rows that get other whole ones are noted.

        Other columns stay as they are.
        """
        import pyarrow as pa  # noqa: PLC0415

        kind = innermost(column.type)
        if not pa.types.is_decimal(kind):
            return column
        numbers = column.cast(typed_as(column.type, element_type(kind) or USUAL))
        for place, exact in rounded_rows(column, numbers).items():
            why = f'"{name}" is {exact}, which float64 would round; decimals with decimals are read as that'
            self.without.setdefault(place, ("not-a-number", why))
        return numbers

    def _as_floating(self, name: str, column: "pa.Array") -> "pa.Array":
        """Return a column of whole numbers or booleans as float64, which has NaN; rows that it rounds are noted."""
        import pyarrow as pa  # noqa: PLC0415

        if pa.types.is_integer(column.type):
            for place in rounded_places(np.asarray(column.fill_null(0))):
                why = f'"{name}" is {column[place]}, which float64 would round; it is read as float64 for missing: nan'
                self.without.setdefault(place, ("not-a-number", why))
        whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        return column.cast(pa.float64(), safe=False) if whole else column

    def _filled(self, column: "pa.Array", gaps: "_Gaps") -> "pa.Array":
        """Return a column of single values with a filler for its nulls."""
        if gaps.filler is not None:
            return column.fill_null(gaps.filler)
        for place in np.flatnonzero(np.asarray(column.is_null())):
            self.without.setdefault(int(place), gaps.reason("is empty"))
        return column

    def _filled_lists(self, column: "pa.Array", gaps: "_Gaps") -> "pa.Array":
        """Return a column of lists with a filler for the nulls in them; it stands for no list."""
        import pyarrow as pa  # noqa: PLC0415

        filler = None if gaps.filler is None else gaps.filler.as_py()
        values = column.to_pylist()
        for place, value in enumerate(values):
            try:
                values[place] = _fill(value, filler, gaps.depth)
            except _GapError:
                values[place] = None
                what = "is empty" if value is None else "has an empty element"
                self.without.setdefault(place, gaps.reason(what))
        if filler is None:
            return column
        return pa.array(values, column.type)


_MISFITS = (ValueError, TypeError, OverflowError)
"""What pyarrow raises for a value that is not of a type; its own errors are kinds of these."""


class _GapError(Exception):
    """A list has a null that nothing stands for."""


class _Gaps(Struct, frozen=True):
    """What stands for the nulls of a column, which lie in lists of a depth: a filler, or nothing, perhaps for a reason.

    `misfit` says why what the manifest gives is no filler.
    """

    name: str
    depth: int
    filler: "pa.Scalar | None" = None
    misfit: str | None = None

    def reason(self, what: str) -> tuple[str, str]:
        """Return the code and the message of a row that nothing fills."""
        return ("missing-value", f'"{self.name}" {what}') if self.misfit is None else ("not-a-number", self.misfit)


def _as_element(filler: Any, kind: "pa.DataType") -> "pa.Scalar":
    """Return a filler as an element of a type. Raises ValueError, TypeError, OverflowError; pyarrow would cut 1.5."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_integer(kind) and isinstance(filler, float) and not filler.is_integer():
        raise ValueError(f"{filler} is no whole number")
    return pa.array([filler], kind)[0]


def _fill(value: Any, filler: Any, depth: int) -> Any:
    """Return nested lists of a depth with a filler for nulls in the innermost ones. Raises _GapError."""
    if value is None and (depth or filler is None):
        raise _GapError
    if depth:
        return [_fill(item, filler, depth - 1) for item in value]
    return filler if value is None else value
