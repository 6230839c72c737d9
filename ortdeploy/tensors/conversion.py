"""The one place where an array changes its element type.

`convert` keeps each value, or raises an error that names the value and the type. `cast` is the manifest's word for a
conversion that may lose: decimals of a number that becomes a whole one, and all but "not zero" of one that becomes a
boolean. Everything else in ortdeploy converts with `convert`, so that nothing is lost unless the manifest says so.

How values are kept: a whole number stays the same number. A floating number becomes the nearest one that the type has,
ties to even; one whose nearest would be an infinity is refused. Infinities and NaN stay what they are, and are refused
by types that have none. A boolean is 0 or 1, and only 0 and 1 become booleans. Text stays text.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import is_narrow, numpy_dtype, widened
from ortdeploy.tensors.types import INTEGERS, WIDER
from ortdeploy.terminal_text import shortened

_WHOLE = frozenset({*INTEGERS, *(name for name, wider in WIDER.items() if wider in INTEGERS)})
_LONGEST = 60


class ConversionError(ValueError):
    """A value that a type cannot hold; the text names both, in a sentence without its full stop."""


def convert(array: Array, name: str) -> Array:
    """Return the same values […] in the element type `name`. Raises ConversionError for one that it cannot hold."""
    if array.dtype.name == name and array.dtype.isnative:
        return array
    if name == "string":
        return _text(array)
    numbers = _numbers(array, name)
    if name == "bool":
        return _booleans(numbers)
    return _whole(numbers, name) if name in _WHOLE else _floating(numbers, name)


def cast(array: Array, name: str) -> Array:
    """Return values […] in another element type; what the type has no room for is lost where ONNX's Cast loses it.

    Numbers lose their decimals as whole ones, towards zero, and become True as booleans unless they are 0. Numbers
    become text. Raises ConversionError for a number that is larger than the type has, and for text.
    """
    if name == "string":
        return np.asarray(widened(array).astype(str).astype(object))
    if name == "bool":
        return np.asarray(_numbers(array, name) != 0)
    if name in _WHOLE:
        numbers = _numbers(array, name)
        _hold_limits(numbers, name)
        return _as_whole(numbers, name)
    return convert(array, name)


def joint_type(values: Iterable[Any]) -> str | None:
    """Return the element type that holds Python's values of one column as they are; None if no type holds all.

    Whole numbers are int64, or uint64 if one is larger. Beside floating ones they are float64, if that is exact.
    """
    values = list(values)
    kinds = set(map(_kind, set(map(type, values))))
    if kinds in ({"bool"}, {"string"}, {"float64"}):
        return str(*kinds)
    if kinds == {"int"}:
        low, high = min(values), max(values)
        limits = {name: whole_limits(name) for name in ("int64", "uint64")}
        return next((name for name, (least, most) in limits.items() if least <= low and high <= most), None)
    return "float64" if kinds == {"int", "float64"} and not any(map(rounds, values)) else None


def _kind(kind: type) -> str | None:
    """Return what values of a type of Python or of numpy are."""
    if issubclass(kind, bool | np.bool_):
        return "bool"
    if issubclass(kind, int | np.integer):
        return "int"
    if issubclass(kind, float | np.floating):
        return "float64"
    return "string" if issubclass(kind, str) else None


def rounds(value: Any, name: str = "float64") -> bool:
    """Return whether a value is a whole number, Python's, numpy's or a decimal, that a floating type makes another."""
    is_decimal = hasattr(value, "to_integral_value") and value == value.to_integral_value()
    if not is_decimal and not isinstance(value, int | np.integer):
        return False
    try:
        with np.errstate(over="ignore"):
            return int(np.dtype(name).type(int(value))) != int(value)
    except OverflowError:
        return True


def rounded_places(whole: Array, name: str = "float64") -> list[int]:
    """Return the places of whole numbers [rows] that a floating type makes others."""
    limit = exact_up_to(name)
    beyond = np.flatnonzero((whole > limit) | (whole < -limit))
    return [int(place) for place in beyond if rounds(whole[place], name)]


def exact_up_to(name: str) -> int:
    """Return the number up to which a floating type holds all whole ones."""
    return 1 << int(np.finfo(name).nmant) + 1


def is_whole(name: str) -> bool:
    """Return whether an element type has whole numbers."""
    return name in _WHOLE


def whole_limits(name: str) -> tuple[int, int]:
    """Return the least and the largest number of a type of whole numbers."""
    if name in WIDER:
        import ml_dtypes  # noqa: PLC0415  only for such tensors

        limits = ml_dtypes.iinfo(numpy_dtype(name))
        return int(limits.min), int(limits.max)
    usual = np.iinfo(name)
    return int(usual.min), int(usual.max)


def _numbers(array: Array, name: str) -> Array:
    """Return numbers or booleans […] in a type of numpy that holds them all. Raises ConversionError for others."""
    if array.dtype.kind in "biuf":
        return array
    if is_narrow(array):
        return widened(array)
    if array.dtype.kind != "O":
        raise ConversionError(_unfit(array.reshape(-1)[0], name) if array.size else _unfit(array.dtype, name))
    for value in array.flat:
        if _kind(type(value)) not in {"bool", "int", "float64"}:
            raise ConversionError(_unfit(value, name))
    items = [value.item() if isinstance(value, np.generic) else value for value in array.flat]
    if items and all(isinstance(item, int) or item.is_integer() for item in items):
        whole = list(map(int, items))
        if name in _WHOLE:
            _hold_whole(min(whole), max(whole), name)
        return _array_of(whole, joint_type(whole) or "float64", name).reshape(array.shape)
    return _array_of(items, "float64", name).reshape(array.shape)


def _array_of(items: list[Any], dtype: str, name: str) -> Array:
    try:
        return np.array(items, dtype)
    except OverflowError as error:
        raise ConversionError(_unfit(max(items, key=abs), name)) from error


def _text(array: Array) -> Array:
    """Return text […] as Python's strings; bytes are UTF-8. Raises ConversionError."""
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "S":
        try:
            return np.array([value.decode() for value in array.flat], dtype=object).reshape(array.shape)
        except UnicodeDecodeError as error:
            raise ConversionError(f"{_shown(error.object)} is not UTF-8 text") from error
    other = [value for value in array.flat if not isinstance(value, str)] if array.dtype.kind == "O" else array.flat
    for value in other:
        raise ConversionError(_unfit(value, "string"))
    return array.astype(object, copy=False)


def _booleans(numbers: Array) -> Array:
    is_held = (numbers == 0) | (numbers == 1)
    if not is_held.all():
        raise ConversionError(_unfit(numbers[~is_held].flat[0], "bool"))
    return numbers.astype(bool)  # each is 0 or 1


def _whole(numbers: Array, name: str) -> Array:
    _hold_limits(numbers, name)
    if numbers.dtype.kind == "f" and (broken := numbers != np.trunc(numbers)).any():
        raise ConversionError(_unfit(numbers[broken].flat[0], name))
    return _as_whole(numbers, name)


def _hold_limits(numbers: Array, name: str) -> None:
    """Refuse numbers beyond the limits of a type of whole numbers, and NaN. Raises ConversionError."""
    is_safe = name not in WIDER and np.can_cast(numbers.dtype, name, "safe")
    if numbers.size and numbers.dtype.kind != "b" and not is_safe:
        _hold_whole(numbers.min().item(), numbers.max().item(), name)  # both are NaN, if any of them is


def _hold_whole(low: float, high: float, name: str) -> None:
    least, most = whole_limits(name)
    for value in (low, high):
        if not least <= value <= most:
            raise ConversionError(_unfit(value, name))


def _as_whole(numbers: Array, name: str) -> Array:
    """Return numbers within the limits of a type of whole numbers in it, without their decimals."""
    return numbers.astype(WIDER.get(name, name)).astype(numpy_dtype(name), copy=False)


def _floating(numbers: Array, name: str) -> Array:
    dtype = numpy_dtype(name)
    if name not in WIDER and np.can_cast(numbers.dtype, dtype, "safe"):
        return numbers.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        held = (_odd_floats(numbers) if name in WIDER else numbers).astype(dtype)
    wide = widened(held)
    if not np.isfinite(wide).all():
        is_held = np.isfinite(wide) | (np.isnan(wide) & np.isnan(numbers)) | (np.isinf(wide) & np.isinf(numbers))
        if not is_held.all():
            raise ConversionError(_unfit(numbers[~is_held].flat[0], name))
    return held


def _odd_floats(numbers: Array) -> Array:
    """Return numbers […] as float32 from which a narrower type is rounded as if from the numbers themselves.

    ml_dtypes rounds by way of float32, and what is rounded twice may not be the nearest. So this first rounding makes
    the last digit of each number that changes odd, which no tie is.
    """
    if numbers.dtype.kind in "biu" and numbers.dtype.itemsize > 2:  # noqa: PLR2004  float32 holds those of 16 bits
        numbers = _odd_doubles(numbers)
    if numbers.dtype != np.float64:
        return numbers.astype(np.float32)  # which is exact
    near = numbers.astype(np.float32)
    toward_zero = np.where(np.abs(near) > np.abs(numbers), np.nextafter(near, np.float32(0)), near)
    is_odd = (near != numbers) & np.isfinite(numbers)
    return np.asarray((toward_zero.view(np.int32) | is_odd.astype(np.int32)).view(np.float32))


def _odd_doubles(whole: Array) -> Array:
    """Return whole numbers […] as float64: those that it lacks as one beside them whose last digit is odd."""
    digits = whole.dtype.type(11)  # which int64 has more than float64
    cut = ((whole >> digits) | ((whole & whole.dtype.type(2047)) != 0)) << digits
    limit = exact_up_to("float64")
    return np.where((whole > limit) | (whole < -limit), cut, whole).astype(np.float64)


def _unfit(value: Any, name: str) -> str:
    """Return the sentence about a value that does not fit a type."""
    return f"{_shown(value)} does not fit {name}, which holds {_held_by(name)}"


def _held_by(name: str) -> str:
    if name in _WHOLE:
        least, most = whole_limits(name)
        return f"whole numbers from {least} to {most}"
    if name in {"string", "bool"}:
        return "text" if name == "string" else "0 and 1"
    if name in WIDER:
        import ml_dtypes  # noqa: PLC0415  only for such tensors

        numbers = "powers of two from 2^-127" if name == "float8_e8m0fnu" else "numbers"
        return f"{numbers} up to {float(ml_dtypes.finfo(numpy_dtype(name)).max):g}"
    return f"numbers up to {np.finfo(name).max:g}"


def _shown(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return "null"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return shortened(text, _LONGEST)
