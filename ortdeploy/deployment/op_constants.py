"""Turns the constants and attributes of an op step into the types that its operator takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortdeploy.diagnostics import with_article
from ortdeploy.facts.data import ConstantArray
from ortdeploy.tensors.types import ELEMENT_NUMBERS, FLOATING

_ELEMENT_TYPE_ATTRIBUTES = {"dtype", "output_datatype", "output_dtype", "stash_type", "to"}
"""Attributes of type INT that number an element type; its name may be written."""

_KINDS: Mapping[str, type | tuple[type, ...]] = {"FLOAT": (int, float), "INT": int, "STRING": str}
_CALLED = {"FLOAT": "a number", "INT": "a whole number", "STRING": "text"}


class ConstantError(Exception):
    """What is written is not what the operator takes; the text says why, in full sentences."""


def constant_type(content: Any, allowed: Sequence[str], neighbour: str | None) -> str:
    """Return the element type of a constant: its neighbours', the only one allowed, else int64 or float32.

    Raises ConstantError.
    """
    if isinstance(content, ConstantArray):
        return content.dtype
    kind = _kind(content)
    if neighbour is not None:
        _require(kind, neighbour, content)
        return neighbour
    if len(allowed) == 1:
        _require(kind, allowed[0], content)
        return allowed[0]
    wanted = {"int": ("int64", "float32"), "float": ("float32",), "bool": ("bool",), "text": ("string",)}[kind]
    found: str | None = next(
        (name for name in (*wanted, *(FLOATING if kind in {"int", "float"} else ())) if name in allowed), None
    )
    if found is None:
        raise ConstantError(f"{content} is no {' or '.join(allowed)}.")
    return found


def _kind(content: Any) -> str:
    """Return what a number, text or nested lists of them are: whole numbers, numbers, booleans or text."""
    kinds: set[str] = {_kind(one) for one in content} if isinstance(content, list) else {_kind_of_one(content)}
    if kinds <= {"int", "float"}:
        return "float" if "float" in kinds else "int"
    if len(kinds) > 1:
        raise ConstantError(f"{content} mixes numbers and text.")
    (kind,) = kinds
    return kind


def _kind_of_one(content: Any) -> str:
    if isinstance(content, bool):
        return "bool"
    if isinstance(content, int):
        return "int"
    if isinstance(content, float):
        return "float"
    if isinstance(content, str):
        return "text"
    raise ConstantError(f"{content} is neither a number, text nor a list of them.")


def _require(kind: str, dtype: str, content: Any) -> None:
    floating = dtype in FLOATING or "float" in dtype
    fits = {
        "int": floating or dtype not in {"bool", "string"},
        "float": floating,
        "bool": dtype == "bool",
        "text": dtype == "string",
    }
    if not fits[kind]:
        raise ConstantError(f"{content} is no {dtype}, which its neighbours are or the operator wants.")


def attribute_value(name: str, written: Any, kind: str) -> Any:
    """Return an attribute as its type has it. Raises ConstantError."""
    if kind in {"FLOATS", "INTS", "STRINGS"}:
        if not isinstance(written, list):
            raise ConstantError(f"It takes a list, not {written}.")
        return [attribute_value(name, one, kind.removesuffix("S")) for one in written]
    if kind == "TENSOR":
        _kind(written)
        return written
    if kind not in _KINDS:
        raise ConstantError(
            f"It is {with_article(kind.lower())}, which a manifest cannot write. Put this operator into a model."
        )
    if kind == "INT" and isinstance(written, str) and name in _ELEMENT_TYPE_ATTRIBUTES:
        if written not in ELEMENT_NUMBERS:
            raise ConstantError(f'"{written}" is no element type. Known: {", ".join(ELEMENT_NUMBERS)}.')
        return ELEMENT_NUMBERS[written]
    if kind == "INT" and isinstance(written, bool):
        return int(written)
    if not isinstance(written, _KINDS[kind]) or isinstance(written, bool):
        raise ConstantError(f"It takes {_CALLED[kind]}, not {written}.")
    return float(str(written)) if kind == "FLOAT" else written
