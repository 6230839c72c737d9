"""Rows of Arrow tables over several files; shared by Parquet and Arrow. Numbers and fixed-size lists are not copied."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.memory_budget import check_room, room
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, HIDDEN, Block, FailedRow
from ortdeploy.sources.empty_cells import null_if_empty
from ortdeploy.sources.files import shown
from ortdeploy.sources.joined import JoinedFiles
from ortdeploy.sources.protocol import Wanted, wanted_blocks
from ortdeploy.tensors.arrow_types import (
    arrow_element_name,
    is_list,
    is_single,
    joint_arrow_type,
    named_type,
    plain_type,
    rounded_rows,
    type_name,
)
from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.columns import Array, Column, constant, join, pick
from ortdeploy.tensors.conversion import rounded_places
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.json_values import json_value
from ortdeploy.tensors.nanoseconds import Nanoseconds
from ortdeploy.tensors.types import FLOATING, ROWS, USUAL, TensorType

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")
FIRST_ROWS = 64

_TIMES = ("timestamp[", "time32[", "time64[", "duration[")
_INT64_DIGITS = 18
"""Digits of whole numbers that int64 always holds."""


class TableError(OrtdeployError):
    """A file is not a readable table."""


class RaggedError(TableError):
    """A row's lists differ in length."""


class Table(Struct, frozen=True, kw_only=True):
    """An open file: how many rows it has, its columns, and its record batches from a row on.

    `batches` yields record batches that begin at or before that row, with the number of their first row in the file.
    `held_bytes` is the size of the largest piece that can only be decoded whole.
    """

    rows: int
    schema: "pa.Schema"
    held_bytes: int
    batches: Callable[[int, Sequence[str]], Iterator[tuple[int, "pa.RecordBatch"]]]


OpenTable = Callable[[str, int | None], Table]
"""Opens a file, with the job's memory limit. Raises TableError, and what the library raises."""


def probe_tables(open_table: OpenTable, files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schema of every file, and join their columns by name."""
    last: pa.Schema | None = None
    joined = JoinedFiles(joint_arrow_type, str)
    rows = held = 0
    for path in files:
        table = open_table(path, facts.memory_limit)
        if last is None or not table.schema.equals(last):
            last = table.schema
            joined.add(path, [(one.name, plain_type(one.type)) for one in last])
        rows += table.rows
        held = max(held, table.held_bytes)
    columns = {name: TensorType() if kind is None else tensor_type(kind) for name, kind in joined.columns.items()}
    types = {name: _type_to_carry(kind, joined.kinds(name)) for name, kind in joined.columns.items()}
    return replace(joined.completed(facts, columns, types), rows=rows, held_bytes=held)


def _type_to_carry(joint: "pa.DataType | None", kinds: "Sequence[pa.DataType]") -> str | None:
    """Return the name of the type that holds a column beside results: text if no other does; None if none does."""
    if joint is not None:
        name = type_name(joint)
        return TEXT if name == "null" else name
    return TEXT if all(map(is_single, kinds)) else None


def tensor_type(kind: "pa.DataType") -> TensorType:
    """Return the type of a column's rows; without element type and shape if no model input takes it.

    Decimals are read as whole or floating numbers, for a step that casts them. Nulls alone have a shape and no element
    type: any fits them.
    """
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    shape: list[int | str | None] = [ROWS]
    kind = plain_type(kind)
    while True:
        if isinstance(kind, pa.FixedShapeTensorType):
            shape += kind.shape
        elif is_list(kind):
            shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        else:
            break
        kind = kind.value_type
    name = _element_type(kind)
    return TensorType(name, tuple(shape)) if name or pa.types.is_null(kind) else TensorType()


def _element_type(kind: "pa.DataType") -> str | None:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_decimal(kind):
        return "int64" if kind.scale <= 0 and kind.precision - kind.scale <= _INT64_DIGITS else "float64"
    return arrow_element_name(kind)


class TableSource(Struct, frozen=True):
    """Blocks over files that `open_table` opens."""

    files: Sequence[str]
    folder: str
    wanted: Wanted
    open_table: OpenTable

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks that run across record batches and files."""
        if self.wanted.only is None:
            return self._blocks(start, sizes)
        return wanted_blocks(self._blocks, self.wanted.only, sizes)

    def _blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        pieces = self._pieces(start)
        left: _Piece | None = None
        for size in sizes:
            taken: list[_Piece] = []
            wanted = size
            while wanted and (left := left or next(pieces, None)) is not None:
                piece, left = left.cut(wanted)
                taken.append(piece)
                wanted -= piece.batch.num_rows
            if not taken:
                return
            block = self._block(taken, start)
            yield block
            start += block.count

    def _pieces(self, start: int) -> Iterator["_Piece"]:
        """Yield the record batches from a row on."""
        first = self.wanted.first_row
        for path in self.files:
            table = self.open_table(path, self.wanted.memory_limit)
            if first + table.rows > start:
                names = [name for name in (*self.wanted.dtypes, *self.wanted.keys) if name in table.schema.names]
                for number, batch in table.batches(max(start - first, 0), list(dict.fromkeys(names))):
                    before = max(start - first - number, 0)
                    if before < batch.num_rows:
                        there = number + before
                        yield _Piece(path=path, first=first + there, file_row=there, batch=batch.slice(before))
            first += table.rows

    def _block(self, pieces: Sequence["_Piece"], start: int) -> Block:
        count = sum(piece.batch.num_rows for piece in pieces)
        table = _Columns(pieces, self.wanted)
        what = f"{count} rows from {shown(pieces[0].path, self.folder)} on, read together,"
        check_room(sum(piece.batch.nbytes for piece in pieces), what, self.wanted.memory_limit)
        keys = {name: self._key(name, pieces, table) for name in self.wanted.keys if name not in self.wanted.dtypes}
        columns = table.read()
        carried = {name: table.values(name) for name in self.wanted.keys if name in table.changed}
        if not table.without:
            columns |= keys
            rows: Sequence[int] = range(start, start + count)
            return Block(start=start, count=count, rows=rows, columns=columns, failed=[], carried=carried)
        kept = [place for place in range(count) if place not in table.without]
        paths = [shown(piece.path, self.folder) for piece in pieces for _ in range(piece.batch.num_rows)]
        known = {name: keys[name] if name in keys else self._key(name, pieces, table) for name in self.wanted.keys}
        failed = [
            FailedRow(
                row=start + place,
                source=paths[place],
                stage="read",
                code=code,
                message=message,
                key={name: json_value(one[place]) for name, one in known.items() if name not in HIDDEN},
                path=paths[place],
                file_row=int(keys[FILE_ROW][place]) if FILE_ROW in keys else None,
            )
            for place, (code, message) in sorted(table.without.items())
        ]
        chosen = {**columns, **{name: pick(column, kept) for name, column in keys.items()}}
        rows = [start + place for place in kept]
        carried = {name: pick(column, kept) for name, column in carried.items()}
        return Block(start=start, count=count, rows=rows, columns=chosen, failed=failed, carried=carried)

    def _key(self, name: str, pieces: Sequence["_Piece"], table: "_Columns") -> Column:
        if name in table.names:
            return table.values(name)
        if name in {"path", FILE_PATH}:
            return join([constant(shown(piece.path, self.folder), piece.batch.num_rows) for piece in pieces])
        firsts = [piece.file_row if name == FILE_ROW else piece.first for piece in pieces]
        return join([np.arange(one, one + piece.batch.num_rows) for one, piece in zip(firsts, pieces, strict=True)])


class _Piece(Struct, frozen=True, kw_only=True):
    """Some rows of a file; the first has the number `first` in the job and `file_row` in the file."""

    path: str
    first: int
    file_row: int
    batch: "pa.RecordBatch"

    def cut(self, rows: int) -> tuple["_Piece", "_Piece | None"]:
        """Return at most this number of rows, and the rest."""
        if self.batch.num_rows <= rows:
            return self, None
        return replace(self, batch=self.batch.slice(0, rows)), replace(
            self, first=self.first + rows, file_row=self.file_row + rows, batch=self.batch.slice(rows)
        )


class _Columns(Struct):
    """The columns of some pieces as arrays; `without` are the rows that lack a value: the failure's code, and why.

    `changed` are those that are fed otherwise than the file has them: with fillers, or as other numbers.
    """

    pieces: Sequence[_Piece]
    wanted: Wanted
    without: dict[int, tuple[str, str]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    @property
    def names(self) -> Sequence[str]:
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
        if _is_nanoseconds(column.type):
            return _nanoseconds(column)
        if column.null_count or arrow_element_name(column.type) is None:
            if _holds_nanoseconds(column.type):
                raise TableError(f'"{name}" is {column.type}, and Python has no nanoseconds inside of lists or maps')
            return column.to_pylist()  # type: ignore[no-any-return]
        return _flat(column)

    def read(self) -> dict[str, Column]:
        """Return the columns that are fed, for the rows that lack no value.

        They are arrays [rows, …], or lists of arrays if rows differ in shape.
        """
        found = {name: self._complete(name) for name in self.wanted.dtypes}
        while True:
            try:
                return {name: _rows(self._kept(column)) for name, column in found.items()}
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
                    _rows(column.slice(place, 1))
                except RaggedError as error:
                    self.without[place] = ("not-a-tensor", f'"{name}": {error}')

    def _complete(self, name: str) -> "pa.Array":
        """Return a column with fillers for its gaps; rows without a filler are noted."""
        whole = self._column(name)
        column = self._as_numbers(name, whole)
        kind = tensor_type(column.type)
        if kind.dtype is None and kind.shape is not None:
            column = column.cast(_typed(column.type, self.wanted.dtypes[name] or USUAL))
        elif self.wanted.missing.get(name) == "nan":
            column = self._as_floating(name, column)
        if _has_gaps(column):
            gaps = self._gaps(name, column.type, len(kind.shape or (ROWS,)) - 1)
            column = self._filled_lists(column, gaps) if gaps.depth else self._filled(column, gaps)
        if column is not whole:
            self.changed.add(name)
        return column

    def _gaps(self, name: str, kind: "pa.DataType", depth: int) -> "_Gaps":
        """Return what stands for the nulls of a column of a type, whose elements lie in lists of a depth."""
        filler, element = self.wanted.missing.get(name), _innermost(kind)
        if filler is None:
            return _Gaps(name, depth)
        filler = math.nan if filler == "nan" and _element_type(element) in FLOATING else filler
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
        is_text = bool(empty) and _element_type(_innermost(column.type)) == "string"
        return _nulls_for_empty(column, empty) if is_text else column

    def _check_room(self, name: str, part: "pa.Array") -> None:
        """Raise RoomError if a dictionary takes more than the room when it is decoded."""
        import pyarrow as pa  # noqa: PLC0415

        limit = self.wanted.memory_limit
        if pa.types.is_dictionary(part.type) and len(part) * part.dictionary.nbytes > room(limit):
            check_room(_decoded_bytes(part), f'"{name}" of {len(part)} rows', limit)

    def _parts(self, name: str) -> "list[pa.Array]":
        return [_runs_as_dictionary(piece.batch.column(name)) for piece in self.pieces]

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

        kind = _innermost(column.type)
        if not pa.types.is_decimal(kind):
            return column
        numbers = column.cast(_typed(column.type, _element_type(kind) or USUAL))
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
        filled = pa.array(values, _storage(column.type))
        return pa.ExtensionArray.from_storage(column.type, filled) if _storage(column.type) != column.type else filled


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


def _storage(kind: "pa.DataType") -> "pa.DataType":
    """Return how the values of a type are stored."""
    import pyarrow as pa  # noqa: PLC0415

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _innermost(kind: "pa.DataType") -> "pa.DataType":
    """Return the type of what is in lists, or the type itself."""
    kind = _storage(kind)
    return _innermost(kind.value_type) if is_list(kind) else kind


def _typed(kind: "pa.DataType", dtype: str) -> "pa.DataType":
    """Return a type of nulls or decimals, perhaps in lists, as one of elements of a type."""
    import pyarrow as pa  # noqa: PLC0415

    if not is_list(kind):
        return pa.type_for_alias(dtype)
    inner = _typed(kind.value_type, dtype)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _nulls_for_empty(column: "pa.Array", empty: Sequence[str]) -> "pa.Array":
    """Return a column of texts, or of lists of them, with null for those that stand for an empty cell."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415  takes a moment to import, and few manifests name such texts

    if is_list(column.type):
        return pa.array(null_if_empty(column.to_pylist(), frozenset(empty)), column.type)
    is_empty = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(empty, column.type))
    return pc.if_else(is_empty, pa.scalar(None, column.type), column)


def _is_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether a type counts time in nanoseconds."""
    import pyarrow as pa  # noqa: PLC0415

    is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    return bool(is_time and kind.unit == "ns")


def _holds_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether a type counts time in nanoseconds, at any depth."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_dictionary(kind):
        return _holds_nanoseconds(kind.value_type)
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return _is_nanoseconds(kind) or any(map(_holds_nanoseconds, inner))


def _nanoseconds(column: "pa.Array") -> list[Any]:
    """Return a column that counts nanoseconds as values that keep them."""
    import pyarrow as pa  # noqa: PLC0415

    kind, counts = column.type, column.view(pa.int64()).to_pylist()
    rough = pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
    rough = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else rough
    rounded = pa.array([None if count is None else count // 1000 for count in counts], pa.int64()).view(rough)
    pairs = zip(counts, rounded.to_pylist(), strict=True)
    return [None if count is None else Nanoseconds(count, kind, value) for count, value in pairs]


def _runs_as_dictionary(column: "pa.Array") -> "pa.Array":
    """Return a column of runs as one of a dictionary, in which each run has its value; others as they are.

    Runs of lists, maps or structs are written out: pyarrow reads no dictionaries of these.
    """
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_run_end_encoded(column.type):
        return column
    rows = np.arange(column.offset, column.offset + len(column))
    runs = pa.array(np.searchsorted(np.asarray(column.run_ends), rows, side="right"))
    values = column.values.cast(plain_type(column.type))
    return values.take(runs) if pa.types.is_nested(values.type) else pa.DictionaryArray.from_arrays(runs, values)


def _decoded_bytes(column: "pa.Array") -> int:
    """Return the decoded bytes of a dictionary column: a large value may occur many times."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415  takes a moment to import, and large dictionaries are rare

    if pa.types.is_primitive(column.dictionary.type):
        return int(len(column) * column.dictionary.type.bit_width // 8)
    lengths = pc.binary_length(column.dictionary.cast(pa.large_binary()))
    return int(pc.sum(lengths.take(column.indices)).as_py() or 0)


def _has_gaps(column: "pa.Array") -> bool:
    """Return whether a value is null, at any depth."""
    import pyarrow as pa  # noqa: PLC0415

    if column.null_count:
        return True
    if isinstance(column, pa.ExtensionArray):
        return _has_gaps(column.storage)
    return is_list(column.type) and _has_gaps(_items(column))


def _items(column: "pa.Array") -> "pa.Array":
    """Return the items of the lists of a column without nulls; for lists of one size without pyarrow.compute."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_fixed_size_list(column.type):
        return column.flatten()
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def _fill(value: Any, filler: Any, depth: int) -> Any:
    """Return nested lists of a depth with a filler for nulls in the innermost ones. Raises _GapError."""
    if value is None and (depth or filler is None):
        raise _GapError
    if depth:
        return [_fill(item, filler, depth - 1) for item in value]
    return filler if value is None else value


def _rows(column: "pa.Array") -> Column:
    """Return a column without gaps as one array [rows, …]; nested lists add dimensions."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(column, pa.FixedShapeTensorArray):
        return np.asarray(column.to_numpy_ndarray())
    if pa.types.is_fixed_size_list(column.type):
        inner, size = _rows(_items(column)), column.type.list_size
        if isinstance(inner, list):
            return [_stacked(inner[row * size : (row + 1) * size], column.type) for row in range(len(column))]
        return inner.reshape(len(column), size, *inner.shape[1:])
    if is_list(column.type):
        return _lists(column)
    return _flat(column)


def _lists(column: "pa.Array") -> Column:
    """Return lists of one length as one array [rows, length, …], others one by one."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    inner = _rows(_items(column))
    if len(lengths) and (lengths == lengths[0]).all() and isinstance(inner, np.ndarray):
        return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    ends = np.cumsum(lengths)
    parts = (inner[int(end - length) : int(end)] for end, length in zip(ends, lengths, strict=True))
    return [_stacked(part, column.type) for part in parts]


def _stacked(values: Column, kind: "pa.DataType") -> Array:
    """Return the value of a row, which is a list of a type, as an array […]. Raises RaggedError."""
    if isinstance(values, np.ndarray):
        return values
    if not values:
        told = tensor_type(kind)
        sizes = [size if isinstance(size, int) else 0 for size in (told.shape or ())[2:]]
        return np.empty((0, *sizes), numpy_dtype(told.dtype or USUAL))
    if len({value.shape for value in values}) > 1:
        raise RaggedError("a list holds lists of different lengths, which no tensor can hold")
    return np.stack(values)


def _flat(column: "pa.Array") -> Array:
    import pyarrow as pa  # noqa: PLC0415

    if _element_type(column.type) == "string":
        return np.asarray(column.to_numpy(zero_copy_only=False))
    zero_copy = not pa.types.is_boolean(column.type)
    return np.asarray(column.to_numpy(zero_copy_only=zero_copy))
