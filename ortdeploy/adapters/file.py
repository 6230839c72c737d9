"""Reads the header of an ONNX Runtime adapter file into `AdapterFacts`: names, types and shapes, never the numbers.

The format is a flatbuffer (onnxruntime/lora/adapter_format/adapter_schema.fbs, format version 1): a table of versions
and parameters, each with a name, dimensions, an element type by TensorProto's number, and its bytes. There is no
checksum.
"""

import math
import mmap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from ortdeploy.facts.models import AdapterFacts, ParameterFacts
from ortdeploy.facts.problems import Problem, unnameable, unreadable
from ortdeploy.files.content import HEAD, recognise
from ortdeploy.files.opening import open_regular
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ELEMENT_NUMBERS

_MAGIC = b"TORT"
_FORMAT_VERSION = 1
_NAMES = {number: name for name, number in ELEMENT_NUMBERS.items()}
_TYPES = frozenset(
    {"float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float64", "uint32", "uint64"}
    | {"bfloat16", "float8_e4m3fn"}
)
"""Element types that adapters may have (seen on 1.31.1)."""

_CONVERT = "Convert it: ortdeploy adapter convert"


class _DamagedError(Exception):
    """The file says something that cannot be."""


def read_adapter(path: Path, shown: str) -> AdapterFacts:
    """Read an adapter's header; whatever keeps it from being used becomes the facts' problem, without a digest."""
    try:
        problem = unnameable(str(path), shown) or _look_at_file(path, shown)
        if problem is not None:
            return AdapterFacts(path=str(path), problem=problem)
        with open_regular(path) as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _facts(path, mapped)
    except OSError as error:
        problem = unreadable(shown, error)
    except Exception as error:  # noqa: BLE001  flatbuffers checks nothing: struct.error, IndexError, TypeError, …
        detail = f"{shown} is an adapter file that is cut off or damaged ({error}). Provide the whole file."
        problem = Problem(kind="damaged-adapter", detail=detail)
    return AdapterFacts(path=str(path), problem=problem)


def _look_at_file(path: Path, shown: str) -> Problem | None:
    """Recognise other formats that adapters come in. Raises OSError."""
    if path.is_dir():
        peft = (path / "adapter_config.json").is_file()
        detail = f"{shown} is a PEFT folder. {_CONVERT}." if peft else f"{shown} is a folder. Name the file in it."
        return Problem(kind="folder", detail=detail)
    with open_regular(path) as file:
        head = file.read(HEAD)
    if head[4:8] == _MAGIC:
        return None
    content = recognise(head)
    if not head:
        detail = f"{shown} is empty and is not an ONNX Runtime adapter file. Provide the whole file."
        return Problem(kind="not-an-adapter", detail=detail)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        what = f"in safetensors format. {_CONVERT}"
    elif head[:4] == b"PK\x03\x04":
        what = f"a .npz archive or a PyTorch checkpoint. {_CONVERT}, from .npz or safetensors"
    elif content is not None:
        what = f"{content.what}, not the adapter. {content.advice.removesuffix('.')}"
    elif path.suffix.lower() == ".onnx":
        what = "a model by its name, not an ONNX Runtime adapter file. Provide the .onnx_adapter file"
    else:
        what = "not an ONNX Runtime adapter file. Provide the .onnx_adapter file"
    return Problem(kind="not-an-adapter", detail=f"{shown} is {what}.")


def _facts(path: Path, buffer: memoryview) -> AdapterFacts:
    root = _root(buffer)
    version = _number(root, 0)
    if version != _FORMAT_VERSION:
        raise _DamagedError(f"its format version is {version}, and {_FORMAT_VERSION} is known")
    parameters = tuple(sorted(_parameters(root), key=lambda one: one.name))
    twice = next((one.name for one, other in pairwise(parameters) if one.name == other.name), None)
    if twice is not None:
        raise _DamagedError(f"it has two parameters {twice}")
    return AdapterFacts(
        path=str(path), adapter_version=_number(root, 1), model_version=_number(root, 2), parameters=parameters
    )


def _root(buffer: memoryview) -> Any:
    from flatbuffers import encode, packer, table  # noqa: PLC0415  comes with onnxruntime; only for adapters

    return table.Table(buffer, encode.Get(packer.uoffset, buffer, 0))


def _field(table: Any, index: int) -> int:
    """Return where a field of a table begins, 0 if it has its default."""
    offset = table.Offset(4 + 2 * index)
    return int(offset + table.Pos) if offset else 0


def _number(table: Any, index: int) -> int:
    from flatbuffers import number_types  # noqa: PLC0415

    place = _field(table, index)
    return int(table.Get(number_types.Int32Flags, place)) if place else 0


def _parameters(root: Any) -> Iterator[ParameterFacts]:
    from flatbuffers import table  # noqa: PLC0415

    start, count = _vector(root, 3, 4)
    for index in range(count):
        yield _parameter(table.Table(root.Bytes, root.Indirect(start + index * 4)))


def _parameter(written: Any) -> ParameterFacts:
    from flatbuffers import number_types  # noqa: PLC0415

    start, length = _vector(written, 0, 1)
    if not length or written.Bytes[start + length]:  # text ends in a zero byte
        raise _DamagedError("a parameter has no name")
    name = bytes(written.Bytes[start : start + length]).decode("utf-8", errors="replace")
    start, rank = _vector(written, 1, 8)
    shape = tuple(int(written.Get(number_types.Int64Flags, start + 8 * index)) for index in range(rank))
    dtype = _NAMES.get(_number(written, 2))
    if dtype not in _TYPES or not shape or any(one < 0 for one in shape):
        raise _DamagedError(f"{name} has the type {dtype or _number(written, 2)} and the shape {list(shape)}")
    _, length = _vector(written, 3, 1)
    if length != math.prod(shape) * numpy_dtype(dtype).itemsize:
        raise _DamagedError(f"{name} has {length:,} bytes, and {list(shape)} of {dtype} needs another number")
    return ParameterFacts(name=name, dtype=dtype, shape=shape)


def _vector(table: Any, index: int, width: int) -> tuple[int, int]:
    """Return where the entries of a vector begin, of a given size each, and how many there are."""
    place = _field(table, index)
    if not place:
        return 0, 0
    start, count = table.Vector(place - table.Pos), table.VectorLen(place - table.Pos)
    if start + count * width > len(table.Bytes):
        raise _DamagedError("a list in it is longer than the file")
    return start, count
