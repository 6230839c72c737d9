"""Reads an ONNX file without the bytes of its big constants, of which a plan needs types and shapes alone.

protobuf holds them twice: in what it is given, and in the model that it makes. So planning took twice the size of the
file, more than opening the model does. Here the fields of messages are walked through as they are in the file
(protobuf.dev/programming-guides/encoding). Passed over are the numbers of constants that the outline of the model has
in its sparse file (`outline.take_outline`): initializers, and values of Constant nodes. What does not come in the order
in which protobuf writes it is taken as it is.
"""

from pathlib import Path
from typing import Any, BinaryIO

import onnx
from google.protobuf.message import DecodeError

from ortdeploy.files.opening import open_regular, regular_path
from ortdeploy.graph.skeleton import MIN_IR_WITH_CONSTANTS, constant_size

_LARGE = 1024 * 1024
"""A file from which it is worth it."""

_BIG = 64 * 1024
"""Bytes of a message, or of a constant, that is not taken as it is."""

_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10
_NAME = b"\x0a"
"""The tag of the first field of an attribute."""

_RAW = "raw_data"
_NUMBERS = {_RAW, "float_data", "int32_data", "int64_data", "double_data", "uint64_data"}
_WITH_GRAPHS = {"If", "Loop", "Scan"}


def load_without_weights(path: Path) -> onnx.ModelProto:
    """Return a model some of whose big constants have no numbers. Raises DecodeError, OSError."""
    kind = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    size = path.stat().st_size
    if size < _LARGE or kind not in {None, "protobuf"}:
        return onnx.load(regular_path(str(path)), load_external_data=False)
    with open_regular(path) as file:
        return onnx.ModelProto.FromString(_Walk(file).message(size, onnx.ModelProto))


class _Walk:
    """A file from its beginning, and the place in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._ir_version = 0

    def message(self, end: int, kind: Any) -> bytes:
        """Return the message of some kind that goes on up to a place in the file."""
        kept: list[bytes] = []
        while self._at < end:
            tag = self._varint(end)
            number, encoding = _value(tag) >> 3, _value(tag) & 7
            if encoding == _VARINT:
                kept += [tag, self._varint(end)]
            elif encoding in {_EIGHT_BYTES, _FOUR_BYTES}:
                kept += [tag, self._take(8 if encoding == _EIGHT_BYTES else 4, end)]
            elif encoding != _WITH_LENGTH:
                raise DecodeError("a field of an encoding that ONNX does not use")
            else:
                self._with_length(tag, end, kind, kind.DESCRIPTOR.fields_by_number.get(number), kept)
        return b"".join(kept)

    def _with_length(self, tag: bytes, end: int, kind: Any, field: Any, kept: list[bytes]) -> None:
        """Add a field of a message to those that are kept before it."""
        length = self._varint(end)
        size = _value(length)
        if self._at + size > end:
            raise DecodeError("a field that is longer than its message, or a file that has been cut off")
        if kind is onnx.TensorProto and field is not None and field.name == "string_data":  # thousands may follow
            kept += [tag, length, self._take(end - self._at, end)]
            return
        inner = None if size <= _BIG or field is None else self._walked(kind, field.name, kept)
        if inner is not None:
            content = self.message(self._at + size, inner)
            kept += [tag, _varint(len(content)), content]
        elif size > _BIG and kind is onnx.TensorProto and _is_left_out(field, size, kept):
            self._at = self._file.seek(size, 1)
        else:
            kept += [tag, length, self._take(size, end)]

    def _walked(self, kind: Any, name: str, kept: list[bytes]) -> Any:
        """Return the kind of a big field that is walked through; None if it is taken as it is.

        Lists of numbers and texts in other messages have a field for each of them.
        """
        match kind, name:
            case onnx.ModelProto, "graph":
                self._ir_version = onnx.ModelProto.FromString(b"".join(kept)).ir_version
                return onnx.GraphProto
            case onnx.GraphProto, "initializer":
                return onnx.TensorProto
            case onnx.GraphProto, "node":
                return onnx.NodeProto
            case onnx.NodeProto, "attribute":
                operator = onnx.NodeProto.FromString(b"".join(kept)).op_type
                is_constant = operator == "Constant" and self._ir_version >= MIN_IR_WITH_CONSTANTS
                is_walked = operator in _WITH_GRAPHS or (is_constant and self._is_value())
                return onnx.AttributeProto if is_walked else None
            case onnx.AttributeProto, "t" | "g":
                return {"t": onnx.TensorProto, "g": onnx.GraphProto}[name]
        return None

    def _is_value(self) -> bool:
        """Return whether an attribute that begins here has this name."""
        begin = self._file.read(7)
        self._file.seek(-len(begin), 1)
        return begin == _NAME + b"\x05value"

    def _take(self, size: int, end: int) -> bytes:
        taken = self._file.read(size) if self._at + size <= end else b""
        if len(taken) < size:
            raise DecodeError("a field that is longer than its message, or a file that has been cut off")
        self._at += size
        return taken

    def _varint(self, end: int) -> bytes:
        """Return the bytes of a number: all but its last have the highest bit."""
        taken = self._take(1, end)
        while taken[-1] & 0x80:
            if len(taken) == _LONGEST_VARINT:
                raise DecodeError("a number that does not end")
            taken += self._take(1, end)
        return taken


def _is_left_out(field: Any, size: int, kept: list[bytes]) -> bool:
    """Return whether a constant's numbers are left out: type and shape, which come before, tell that they are big."""
    if field is None or field.name not in _NUMBERS:
        return False
    needed = constant_size(onnx.TensorProto.FromString(b"".join(kept)))
    return needed is not None and needed > _BIG and (field.name != _RAW or size == needed)


def _value(varint: bytes) -> int:
    value = 0
    for place, byte in enumerate(varint):
        value |= (byte & 0x7F) << (7 * place)
    return value


def _varint(value: int) -> bytes:
    low = [value >> (7 * place) & 0x7F for place in range(max(-(-value.bit_length() // 7), 1))]
    return bytes([*(byte | 0x80 for byte in low[:-1]), low[-1]])
