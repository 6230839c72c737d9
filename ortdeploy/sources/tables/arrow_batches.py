"""Finds the record batches of an Arrow IPC file or stream, and reads some of their rows without the rest.

pyarrow reads whole record batches, or maps the file. If somebody cuts a mapped file, touching its end kills the
process. A batch may be the whole file, so only some rows of a large one are read at a time. The metadata are
FlatBuffers: Message.fbs and File.fbs of the Arrow format; its columnar specification gives the order of buffers.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from ortdeploy.sources.tables.arrow_values import TableError

if TYPE_CHECKING:
    import pyarrow as pa

    from ortdeploy.tensors.columns import Array

_CONTINUATION = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_FOOTER_DICTIONARIES, _FOOTER_RECORDS = 2, 3
_FOOTER_END = 10
"""The length of the footer, and the magic, with which a file ends."""
_BITS = 8
_NODE, _BUFFER, _BLOCK = 16, 16, 24


class UnknownLayoutError(Exception):
    """The buffers of a column's type are not known here; pyarrow reads the whole batch."""


class BatchPlace(Struct, frozen=True, kw_only=True):
    """A batch: its rows, where its body begins and how long it is, and nodes and buffers within it, in pairs.

    `decompressed` are the bytes of its buffers once they are decompressed, None if they are not compressed.
    """

    rows: int
    begin: int
    size: int
    nodes: Sequence[tuple[int, int]]
    buffers: Sequence[tuple[int, int]]
    decompressed: int | None
    is_dictionary: bool


@contextmanager
def _damage(path: str) -> Iterator[None]:
    """Turn every exception that damaged metadata cause into one error."""
    try:
        yield
    except (struct.error, IndexError, TypeError, ValueError, OverflowError) as error:  # flatbuffers checks nothing
        raise TableError(f"{path} is damaged: its metadata make no sense ({error})") from error


class BatchFile:
    """An open file of record batches."""

    def __init__(self, path: str, file: "pa.OSFile") -> None:
        """Take an open file; nothing is read yet."""
        self._path, self._file, self._size = path, file, file.size()

    def in_file(self) -> list[BatchPlace]:
        """Return the batches that a file's footer lists, dictionaries first. Raises TableError."""
        with _damage(self._path):
            (length,) = struct.unpack("<i", self._read(self._size - _FOOTER_END, 4))
            footer = _root(self._read(self._size - _FOOTER_END - length, length))
            return [*self._listed(footer, _FOOTER_DICTIONARIES), *self._listed(footer, _FOOTER_RECORDS)]

    def _listed(self, footer: Any, field: int) -> Iterator[BatchPlace]:
        start, count = _vector(footer, field)
        for index in range(count):
            offset, size = struct.unpack_from("<qi", footer.Bytes, start + index * _BLOCK)
            place = self._place(offset, size)
            if place is not None:
                yield place

    def in_stream(self) -> list[BatchPlace]:
        """Return the batches of a stream, one after the other. Raises TableError."""
        found, offset = [], 0
        with _damage(self._path):
            while offset + 8 <= self._size:
                prefix = 4 if struct.unpack("<I", self._read(offset, 4))[0] != _CONTINUATION else 8
                (length,) = struct.unpack("<i", self._read(offset + prefix - 4, 4))
                if length == 0:
                    break
                place = self._place(offset, prefix + length)
                offset += prefix + length + self._body_size(offset, prefix, length)
                if place is not None:
                    found.append(place)
        return found

    def held_bytes(self, place: BatchPlace, schema: "pa.Schema") -> int:
        """Return the bytes of a batch that only pyarrow can read, as a whole; 0 if its rows can be read in pieces.

        Raises TableError if the metadata of one that is read in pieces say more of its columns than they hold.
        """
        if place.decompressed is not None or place.is_dictionary:
            return place.size + (place.decompressed or 0)
        try:
            with _damage(self._path):
                parts = _Parts(place)
                for field in schema:
                    parts.column(field.type).check(place.rows)
        except UnknownLayoutError:
            return place.size
        return 0

    def rows(self, place: BatchPlace, schema: "pa.Schema", names: Sequence[str], begin: int, end: int) -> Any:
        """Return some rows of some columns of a batch. Raises TableError, UnknownLayoutError."""
        import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

        with _damage(self._path):
            parts = _Parts(place)
            columns = {field.name: parts.column(field.type) for field in schema}
            arrays = [self._array(columns[name], place, begin, end) for name in names]
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))

    def _read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0:
            raise ValueError("a place before the beginning")
        found = bytes(self._file.read_at(size, offset))
        if len(found) != size:
            raise TableError(f"{self._path} ends before its last row; was it cut while it was read?")
        return found

    def _message(self, offset: int, size: int) -> Any:
        """Return a message's root table; `size` counts what stands before it."""
        content = self._read(offset, size)
        prefix = 4 if struct.unpack("<I", content[:4])[0] != _CONTINUATION else 8
        return _root(content[prefix:])

    def _body_size(self, offset: int, prefix: int, length: int) -> int:
        return _long(_root(self._read(offset + prefix, length)), 3)

    def _place(self, offset: int, size: int) -> BatchPlace | None:
        """Return the batch of a message; None for one of another kind."""
        message = self._message(offset, size)
        kind = _byte(message, 1)
        if kind not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
            return None
        batch, body = _table(message, 2), _long(message, 3)
        if kind == _DICTIONARY_BATCH:
            batch = _table(batch, 1)
        if body < 0 or offset + size + body > self._size:
            raise TableError(f"{self._path} ends before its last row; was it cut?")
        buffers = _pairs(batch, 2, _BUFFER)
        if any(begin < 0 or length < 0 or begin + length > body for begin, length in buffers):
            raise ValueError("a buffer that lies outside of its batch")
        rows, nodes = _long(batch, 0), _pairs(batch, 1, _NODE)
        if rows < 0 or any(length < 0 for length, _ in nodes):
            raise ValueError("fewer than no rows")
        return BatchPlace(
            rows=rows,
            begin=offset + size,
            size=body,
            nodes=nodes,
            buffers=buffers,
            decompressed=self._decompressed(offset + size, buffers) if _field(batch, 3) else None,
            is_dictionary=kind == _DICTIONARY_BATCH,
        )

    def _decompressed(self, begin: int, buffers: Sequence[tuple[int, int]]) -> int:
        """Return what buffers take decompressed: each begins with its size, or with -1 if it is as it is."""
        total = 0
        for offset, length in buffers:
            if length:
                (size,) = struct.unpack("<q", self._read(begin + offset, 8))
                if size < -1:
                    raise ValueError("a buffer of a negative size")
                total += length if size == -1 else size
        return total

    def _array(self, column: "_Column", place: BatchPlace, begin: int, end: int) -> "pa.Array":
        """Return values of a column, which begin with a whole byte of its validity and are cut then."""
        import pyarrow as pa  # noqa: PLC0415  as above

        kind, first = column.kind, begin - begin % _BITS
        if end > column.length:
            raise ValueError("a column with fewer values than its batch has rows")
        if isinstance(kind, pa.BaseExtensionType):
            return kind.wrap_array(self._array(column.storage(kind.storage_type), place, begin, end))
        count = end - first
        if pa.types.is_null(kind):
            return pa.nulls(end - begin)
        valid = None
        if column.nulls and column.buffers[0][1]:
            valid = self._buffer(place, column.buffers[0], first // _BITS, -(-count // _BITS))
        data, children = self._content(column, place, first, end)
        array = pa.Array.from_buffers(kind, count, [valid, *data], children=children)
        return array.slice(begin - first)

    def _content(
        self, column: "_Column", place: BatchPlace, first: int, end: int
    ) -> tuple[list["pa.Buffer"], list["pa.Array"]]:
        """Return what holds values, beside their validity: buffers and children."""
        import pyarrow as pa  # noqa: PLC0415  as above

        kind = column.kind
        if pa.types.is_struct(kind):
            return [], [self._array(child, place, first, end) for child in column.children]
        if pa.types.is_fixed_size_list(kind):
            size = kind.list_size
            return [], [self._array(column.children[0], place, first * size, end * size)]
        if not _has_offsets(kind):
            bits = kind.bit_width
            begin, count = first * bits // _BITS, -(-(end - first) * bits // _BITS)
            return [self._buffer(place, column.buffers[1], begin, count)], []
        offsets = self._offsets(column, place, first, end)
        low, high = int(offsets[0]), int(offsets[-1])
        if low < 0 or (np.diff(offsets) < 0).any():
            raise ValueError("a list that ends before it begins")
        rebased = pa.py_buffer(np.ascontiguousarray(offsets - offsets[0]))
        if column.children:
            return [rebased], [self._array(column.children[0], place, low, high)]
        return [rebased, self._buffer(place, column.buffers[2], low, high - low)], []

    def _offsets(self, column: "_Column", place: BatchPlace, first: int, end: int) -> "Array":
        width = 8 if _is_large(column.kind) else 4
        if not column.buffers[1][1]:  # which may be left out where there are no values
            return np.zeros(end - first + 1, f"<i{width}")
        content = self._buffer(place, column.buffers[1], first * width, (end - first + 1) * width)
        return np.frombuffer(content, f"<i{width}")

    def _buffer(self, place: BatchPlace, buffer: tuple[int, int], begin: int, size: int) -> "pa.Buffer":
        import pyarrow as pa  # noqa: PLC0415  as above

        if begin + size > buffer[1]:
            raise ValueError("a buffer with fewer values than its column has")
        return pa.py_buffer(self._read(place.begin + buffer[0] + begin, size))


class _Column(Struct, frozen=True, kw_only=True):
    """A column's part of a batch: its type, how many values it has and whether some are null, buffers and children."""

    kind: Any
    length: int
    nulls: int
    buffers: Sequence[tuple[int, int]]
    children: Sequence["_Column"]

    def check(self, rows: int) -> None:
        """Raise ValueError if it holds fewer values."""
        import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

        kind = self.kind
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        lists = pa.types.is_fixed_size_list(kind)
        if self.length < rows or (self.nulls and self.buffers and self.buffers[0][1] * _BITS < rows):
            raise ValueError("a column with fewer values than its batch has rows")
        if lists or pa.types.is_struct(kind):
            for child in self.children:
                child.check(rows * (kind.list_size if lists else 1))
        elif _has_offsets(kind):
            if rows and self.buffers[1][1] < (rows + 1) * (8 if _is_large(kind) else 4):
                raise ValueError("a column of lists with fewer offsets than rows")
        elif not pa.types.is_null(kind) and self.buffers[1][1] * _BITS < rows * kind.bit_width:
            raise ValueError("a column with fewer bytes than its rows need")

    def storage(self, kind: Any) -> "_Column":
        """Return the same values as another type."""
        return _Column(kind=kind, length=self.length, nulls=self.nulls, buffers=self.buffers, children=self.children)


class _Parts:
    """Yields the nodes and buffers of a batch, in the order of its columns."""

    def __init__(self, place: BatchPlace) -> None:
        self._nodes, self._buffers = iter(place.nodes), iter(place.buffers)

    def column(self, kind: Any) -> _Column:
        """Return the next column. Raises UnknownLayoutError, ValueError if there is none."""
        import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

        stored = kind
        while isinstance(stored, pa.BaseExtensionType):
            stored = stored.storage_type
        count, inner = _layout(stored)
        try:
            length, nulls = next(self._nodes)
            buffers = tuple(next(self._buffers) for _ in range(count))
        except (StopIteration, RuntimeError):
            raise ValueError("fewer columns than the schema has") from None
        children = tuple(map(self.column, inner))
        return _Column(kind=kind, length=length, nulls=nulls, buffers=buffers, children=children)


def _layout(kind: Any) -> tuple[int, Sequence[Any]]:
    """Return how many buffers a type has, and the types of its children. Raises UnknownLayoutError."""
    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    if types.is_null(kind):
        return 0, ()
    if types.is_struct(kind):
        return 1, [kind.field(index).type for index in range(kind.num_fields)]
    if types.is_fixed_size_list(kind):
        return 1, [kind.value_type]
    if types.is_list(kind) or types.is_large_list(kind):
        return 2, [kind.value_type]
    if _has_offsets(kind):
        return 3, ()
    if types.is_dictionary(kind):
        raise UnknownLayoutError(str(kind))  # its values lie in another message
    if types.is_boolean(kind) or types.is_primitive(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        return 2, ()
    raise UnknownLayoutError(str(kind))


def _has_offsets(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    lists = types.is_list(kind) or types.is_large_list(kind)
    texts = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    return bool(lists or texts)


def _is_large(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    return bool(types.is_large_list(kind) or types.is_large_string(kind) or types.is_large_binary(kind))


def _root(content: bytes) -> Any:
    from flatbuffers import encode, packer, table  # noqa: PLC0415  comes with onnxruntime; only for Arrow files

    return table.Table(content, encode.Get(packer.uoffset, content, 0))


def _field(table: Any, index: int) -> int:
    """Return where a field of a table begins, 0 if it has its default."""
    offset = table.Offset(4 + 2 * index)
    return int(offset + table.Pos) if offset else 0


def _long(table: Any, index: int) -> int:
    place = _field(table, index)
    return int(struct.unpack_from("<q", table.Bytes, place)[0]) if place else 0


def _byte(table: Any, index: int) -> int:
    place = _field(table, index)
    return int(table.Bytes[place]) if place else 0


def _table(table: Any, index: int) -> Any:
    from flatbuffers import table as tables  # noqa: PLC0415  as above

    place = _field(table, index)
    if not place:
        raise ValueError("a message without content")
    return tables.Table(table.Bytes, table.Indirect(place))


def _vector(table: Any, index: int) -> tuple[int, int]:
    """Return where the entries of a vector begin, and how many there are."""
    place = _field(table, index)
    return (table.Vector(place - table.Pos), table.VectorLen(place - table.Pos)) if place else (0, 0)


def _pairs(table: Any, index: int, width: int) -> list[tuple[int, int]]:
    """Return the entries of a vector of structs of two longs."""
    start, count = _vector(table, index)
    if start + count * width > len(table.Bytes):
        raise ValueError("a list that is longer than its message")
    return [struct.unpack_from("<qq", table.Bytes, start + at * width) for at in range(count)]
