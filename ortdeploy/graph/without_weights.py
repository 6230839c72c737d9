"""Reads an ONNX file without the bytes of its big constants, of which a plan needs types and shapes alone.

protobuf holds them twice: in what it is given, and in the model that it makes. So planning took twice the size of the
file, more than opening the model does. Here the fields of messages are walked through as they are in the file
(protobuf.dev/programming-guides/encoding), and the numbers of big constants are passed over.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from google.protobuf.message import DecodeError

from ortdeploy.graph.external_data import check_raw_size

_LARGE = 1024 * 1024
"""A file from which it is worth it."""

_BIG = 64 * 1024
"""Bytes of a message or of a constant's numbers that is not taken as it is."""

_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10
_NUMBERS = {"raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"}
_RAW = "raw_data"


def load_without_weights(path: Path) -> onnx.ModelProto:
    """Return a model whose big constants have no numbers. Raises DecodeError, TensorProblemError, OSError."""
    kind = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    size = path.stat().st_size
    if size < _LARGE or kind not in {None, "protobuf"}:
        return onnx.load(str(path), load_external_data=False)
    with path.open("rb") as file:
        return onnx.ModelProto.FromString(_Fields(file).message(size, onnx.ModelProto.DESCRIPTOR))


class _Fields:
    """A file from its beginning, and the place in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0

    def message(self, end: int, kind: Any) -> bytes:
        """Return the message that goes on up to a place in the file, without the numbers of big constants."""
        left_out: dict[str, int] = {}
        content = b"".join(self._kept(end, kind, left_out))
        if _RAW in left_out:
            check_raw_size(onnx.TensorProto.FromString(content), left_out[_RAW])
        return content

    def _kept(self, end: int, kind: Any, left_out: dict[str, int]) -> Iterator[bytes]:
        """Yield the fields of a message of some kind; note the sizes of those that are left out."""
        while self._at < end:
            tag = self._varint(end)
            number, encoding = _value(tag) >> 3, _value(tag) & 7
            if encoding == _VARINT:
                yield tag + self._varint(end)
            elif encoding in {_EIGHT_BYTES, _FOUR_BYTES}:
                yield tag + self._take(8 if encoding == _EIGHT_BYTES else 4, end)
            elif encoding == _WITH_LENGTH:
                yield from self._with_length(tag, kind.fields_by_number.get(number), end, left_out)
            else:
                raise DecodeError("a field of an encoding that ONNX does not use")

    def _with_length(self, tag: bytes, field: Any, end: int, left_out: dict[str, int]) -> Iterator[bytes]:
        length = self._varint(end)
        size = _value(length)
        if size <= _BIG or field is None:
            yield tag + length + self._take(size, end)
        elif self._at + size > end:
            raise DecodeError("a field that is longer than its message")
        elif field.message_type is not None:
            inner = self.message(self._at + size, field.message_type)
            yield tag + _varint(len(inner)) + inner
        elif field.containing_type.name == "TensorProto" and field.name in _NUMBERS:
            left_out[field.name] = size
            self._at = self._file.seek(size, 1)
        else:
            yield tag + length + self._take(size, end)

    def _take(self, size: int, end: int) -> bytes:
        taken = self._file.read(size) if self._at + size <= end else b""
        if len(taken) < size:
            raise DecodeError("a field that is longer than its message, or a file that has been cut off")
        self._at += size
        return taken

    def _varint(self, end: int) -> bytes:
        """Return the bytes of a number: all but its last have the highest bit."""
        taken = b""
        while not taken or taken[-1] & 0x80:
            if len(taken) == _LONGEST_VARINT:
                raise DecodeError("a number that does not end")
            taken += self._take(1, end)
        return taken


def _value(varint: bytes) -> int:
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(varint))


def _varint(value: int) -> bytes:
    low = [value >> (7 * place) & 0x7F for place in range(max(-(-value.bit_length() // 7), 1))]
    return bytes([*(byte | 0x80 for byte in low[:-1]), low[-1]])
