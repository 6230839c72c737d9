"""The record batches of an Arrow IPC file or stream before they are decoded: how many rows, how large decompressed.

Messages stand one after the other, each described by a flatbuffer (arrow/format/Message.fbs). A compressed batch is
decompressed whole, and each of its buffers begins with its size then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_DATA = 1
_BUFFER_BYTES = 16
_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a message says: `held_bytes` are those that it takes decompressed, 0 if it is mapped as it is."""

    rows: int
    held_bytes: int
    is_dictionary: bool


def batches(file: "pa.NativeFile") -> Iterator[Batch]:
    """Yield the batches of a stream of messages, from where a file stands. Raises whatever damage causes."""
    import pyarrow as pa  # noqa: PLC0415  an extra: only who reads tables needs it

    for message in pa.ipc.MessageReader.open_stream(file):
        kind, header = _header(message.metadata)
        if kind == _RECORD_BATCH:
            yield _batch(header, message.body, is_dictionary=False)
        elif kind == _DICTIONARY_BATCH:
            yield _batch(_table(header, _DATA), message.body, is_dictionary=True)


def _header(metadata: "pa.Buffer") -> tuple[int, Any]:
    """Return the type of a message's header, and the header."""
    from flatbuffers import encode, number_types, packer, table  # noqa: PLC0415  comes with onnxruntime

    buffer = memoryview(metadata)
    root = table.Table(buffer, encode.Get(packer.uoffset, buffer, 0))
    place = _field(root, _HEADER_TYPE)
    kind = int(root.Get(number_types.Uint8Flags, place)) if place else 0
    return kind, _table(root, _HEADER) if kind in {_RECORD_BATCH, _DICTIONARY_BATCH} else None


def _field(table: Any, index: int) -> int:
    """Return where a field of a table begins, 0 if it has its default."""
    offset = table.Offset(4 + 2 * index)
    return int(offset + table.Pos) if offset else 0


def _table(outer: Any, index: int) -> Any:
    from flatbuffers import table  # noqa: PLC0415

    return table.Table(outer.Bytes, outer.Indirect(_field(outer, index)))


def _batch(header: Any, body: "pa.Buffer", *, is_dictionary: bool) -> Batch:
    from flatbuffers import number_types  # noqa: PLC0415

    place = _field(header, _LENGTH)
    rows = int(header.Get(number_types.Int64Flags, place)) if place else 0
    held = sum(_sizes(header, memoryview(body))) if _field(header, _COMPRESSION) else 0
    if rows < 0 or held < 0:
        raise ValueError(f"a record batch says that it has {rows} rows of {held} bytes")
    return Batch(rows=rows, held_bytes=held, is_dictionary=is_dictionary)


def _sizes(header: Any, body: memoryview) -> Iterator[int]:
    """Yield the sizes of a batch's buffers when they are decompressed."""
    from flatbuffers import number_types  # noqa: PLC0415

    place = _field(header, _BUFFERS)
    if not place:
        return
    start, count = header.Vector(place - header.Pos), header.VectorLen(place - header.Pos)
    if start + count * _BUFFER_BYTES > len(header.Bytes):
        raise ValueError("a record batch has more buffers than its description holds")
    for index in range(count):
        offset = header.Get(number_types.Int64Flags, start + _BUFFER_BYTES * index)
        length = header.Get(number_types.Int64Flags, start + _BUFFER_BYTES * index + _SIZE_BYTES)
        if length:
            size = int.from_bytes(body[offset : offset + _SIZE_BYTES], "little", signed=True)
            yield length if size == -1 else size  # -1: this buffer is not compressed
