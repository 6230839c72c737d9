"""Reads the header of an ONNX Runtime adapter file into `AdapterFacts`: names, types and shapes, never the numbers.

The format is a flatbuffer (onnxruntime/lora/adapter_format/adapter_schema.fbs, format version 1): a table of versions
and parameters, each with a name, dimensions, an element type by TensorProto's number, and its bytes. There is no
checksum.
"""

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortdeploy.facts import AdapterFacts, ParameterFacts, Problem
from ortdeploy.tensors import ELEMENT_NUMBERS

_MAGIC = b"TORT"
_FORMAT_VERSION = 1
_NAMES = {number: name for name, number in ELEMENT_NUMBERS.items()}
_BYTES = {
    "float32": 4, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float64": 8,
    "uint32": 4, "uint64": 8, "bfloat16": 2, "float8_e4m3fn": 1,
}  # fmt: skip
"""Element types that adapters may have (seen on 1.31.1), and their sizes."""

_CONVERT = "Convert it: ortdeploy adapter convert"


class _DamagedError(Exception):
    """The file says something that cannot be."""


def read_adapter(path: Path, shown: str) -> AdapterFacts:
    """Read an adapter's header; whatever keeps it from being used becomes the facts' problem, without a digest."""
    try:
        problem = _look_at_file(path, shown)
        if problem is not None:
            return AdapterFacts(path=str(path), problem=problem)
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _facts(path, mapped)
    except OSError as error:
        problem = Problem(kind="unreadable", detail=f"{shown} cannot be read: {error.strerror}.")
    except Exception as error:  # noqa: BLE001  flatbuffers checks nothing: struct.error, IndexError, TypeError, …
        detail = f"{shown} is an adapter file that is cut off or damaged ({error}). Bring the whole file."
        problem = Problem(kind="damaged-adapter", detail=detail)
    return AdapterFacts(path=str(path), problem=problem)


def _look_at_file(path: Path, shown: str) -> Problem | None:
    """Recognise other formats that adapters come in. Raises OSError."""
    if path.is_dir():
        peft = (path / "adapter_config.json").is_file()
        detail = f"{shown} is a PEFT folder. {_CONVERT}." if peft else f"{shown} is a folder. Name the file in it."
        return Problem(kind="folder", detail=detail)
    if not path.exists():
        return Problem(kind="missing", detail=f"There is no file {shown}. Paths are relative to the manifest.")
    with path.open("rb") as file:
        head = file.read(64)
    if head[4:8] == _MAGIC:
        return None
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        what = f"in safetensors format. {_CONVERT}"
    elif head[:4] == b"PK\x03\x04":
        what = f"a .npz archive or a PyTorch checkpoint. {_CONVERT}, from .npz or safetensors"
    elif head.startswith(b"version https://git-lfs"):
        what = "a Git-LFS pointer, not the adapter. Run git lfs pull"
    else:
        what = "not an ONNX Runtime adapter file. Bring the .onnx_adapter file"
    return Problem(kind="not-an-adapter", detail=f"{shown} is {what}.")


def _facts(path: Path, buffer: memoryview) -> AdapterFacts:
    root = _root(buffer)
    version = _number(root, 0)
    if version != _FORMAT_VERSION:
        raise _DamagedError(f"its format version is {version}, and {_FORMAT_VERSION} is known")
    parameters = tuple(sorted(_parameters(root, len(buffer)), key=lambda one: one.name))
    names = [parameter.name for parameter in parameters]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise _DamagedError(f"it has two parameters {twice}")
    return AdapterFacts(
        path=str(path), adapter_version=_number(root, 1), model_version=_number(root, 2), parameters=parameters
    )


def _root(buffer: memoryview) -> Any:
    from flatbuffers import encode, packer, table  # noqa: PLC0415  comes with onnxruntime; only who has adapters

    return table.Table(buffer, encode.Get(packer.uoffset, buffer, 0))


def _field(table: Any, index: int) -> int:
    """Return where a field of a table begins, 0 where it has its default."""
    offset = table.Offset(4 + 2 * index)
    return int(offset + table.Pos) if offset else 0


def _number(table: Any, index: int) -> int:
    from flatbuffers import number_types  # noqa: PLC0415

    place = _field(table, index)
    return int(table.Get(number_types.Int32Flags, place)) if place else 0


def _parameters(root: Any, size: int) -> Iterator[ParameterFacts]:
    place = _field(root, 3)
    if not place:
        return
    from flatbuffers import table  # noqa: PLC0415

    start, count = root.Vector(place - root.Pos), root.VectorLen(place - root.Pos)
    if count * 4 > size:
        raise _DamagedError("it claims more parameters than it has bytes")
    for index in range(count):
        yield _parameter(table.Table(root.Bytes, root.Indirect(start + index * 4)), size)


def _parameter(written: Any, size: int) -> ParameterFacts:
    from flatbuffers import number_types  # noqa: PLC0415

    start, length = _vector(written, 0)
    if not length or start + length >= size or written.Bytes[start + length]:  # text ends in a zero byte
        raise _DamagedError("a parameter has no name")
    name = bytes(written.Bytes[start : start + length]).decode("utf-8", errors="replace")
    dims = _vector(written, 1)
    shape = tuple(
        int(written.Get(number_types.Int64Flags, dims[0] + 8 * index)) for index in range(_checked(dims[1], size // 8))
    )
    dtype = _NAMES.get(_number(written, 2))
    if dtype not in _BYTES or not shape or any(one < 0 for one in shape):
        raise _DamagedError(f"{name} has the type {dtype or _number(written, 2)} and the shape {list(shape)}")
    start, length = _vector(written, 3)
    if length != math.prod(shape) * _BYTES[dtype] or start + length > size:
        raise _DamagedError(f"{name} has {length:,} bytes, and {list(shape)} of {dtype} needs another number")
    return ParameterFacts(name=name, dtype=dtype, shape=shape)


def _vector(table: Any, index: int) -> tuple[int, int]:
    """Return where a vector's entries begin, and how many there are."""
    place = _field(table, index)
    return (table.Vector(place - table.Pos), table.VectorLen(place - table.Pos)) if place else (0, 0)


def _checked(count: int, most: int) -> int:
    if count > most:
        raise _DamagedError("a list in it is longer than the file")
    return count
