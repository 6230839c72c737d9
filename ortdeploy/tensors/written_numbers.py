"""Numbers as files of text have them, read as what is written or not at all.

Python alone would read 1_000 and ١٢ as numbers, 1e400 as infinity, and 9007199254740993.0 as an even number.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.conversion import convert, is_whole, rounds


class JsonNumber(str):
    """A number with a point or an exponent as a JSON text has it: what a float would round is still there."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return it as it is written, without quotes."""
        return str(self)


def is_plain(text: str) -> bool:
    """Return whether Python reads no other numbers in a text than one that is written in ASCII digits alone."""
    return text.isascii() and "_" not in text


def read_numbers(array: Array, name: str) -> Array:
    """Return texts and numbers […] as numbers or booleans of one type.

    Raises ValueError, TypeError or OverflowError for what is none, or more than the type holds. A floating number is
    the nearest one that the type has to the nearest one of float64.
    """
    if name == "bool":
        return np.array([_boolean(item) for item in array.flat], dtype=bool).reshape(array.shape)
    if is_whole(name):
        return convert(np.array([_whole(item) for item in array.flat], dtype=object).reshape(array.shape), name)
    return convert(np.array([_real(item) for item in array.flat], np.float64).reshape(array.shape), name)


def rounded_wholes(written: Array, name: str) -> Iterator[Any]:
    """Yield what is written as whole numbers, of objects […], and is another number in a type."""
    for item in written.flat:
        is_text = isinstance(item, str) and _is_whole(item.strip())
        if rounds(_whole_of_text(item.strip()) if is_text else item, name):
            yield item


def _is_whole(text: str) -> bool:
    """Return whether a text has a whole number, written without an exponent."""
    whole, _, decimals = text.partition(".")
    return whole.lstrip("+-").isdigit() and not decimals.strip("0")


def _boolean(item: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    key = str(item).lower()
    if key not in words:
        raise ValueError("write true, false, 1 or 0")
    return words[key]


def _whole(item: Any) -> int:
    """Return a whole number. Raises ValueError, TypeError, OverflowError for anything else."""
    if isinstance(item, str):
        return _whole_of_text(_plain(item).strip())
    number = int(item)
    if number != item:
        raise ValueError(f"{item} is not a whole number")
    return number


def _real(item: Any) -> float:
    """Return a number as a float; infinity only if it is written. Raises ValueError, TypeError, OverflowError."""
    if isinstance(item, list):
        raise ValueError("lists in it differ in length")  # noqa: TRY004  as of other values
    number = float(_plain(item) if isinstance(item, str) else item)
    if isinstance(item, str) and math.isinf(number) and "inf" not in item.lower():
        raise ValueError("it is more than any floating number holds")
    return number


def _plain(text: str) -> str:
    if not is_plain(text):
        raise ValueError("the digits of a number are 0 to 9, without anything between them")
    if "," in text:
        raise ValueError("a number has a point before its decimals, and nothing between thousands")
    return text


def _whole_of_text(text: str) -> int:
    """Return the whole number that a text has, which may be written as 3.0 or 3e2."""
    if _is_whole(text):
        return int(text.partition(".")[0])
    from decimal import Decimal, InvalidOperation  # noqa: PLC0415  only for such numbers

    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError("it is not a number") from None
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError("it is not a whole number")
    if number and number.adjusted() > _MOST_DIGITS:
        raise ValueError("it has too many digits")
    return int(number)


_MOST_DIGITS = 40
"""The digits of a whole number with an exponent that are looked at; those of 1e999999999 would fill the memory."""
