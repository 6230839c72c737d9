"""Conversions between all element types, against a model in fractions that knows the numbers of each type one by one."""

import math
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.tensors.carried import fit_elements
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.conversion import ConversionError, cast, convert, joint_type, rounded_places, rounds
from ortdeploy.tensors.elements import numpy_dtype, widened
from ortdeploy.tensors.types import ELEMENT_TYPES

NUMBERS = tuple(name for name in ELEMENT_TYPES if name != "string")
WHOLE = {
    f"{sign}int{bits}": (0 if sign else -(2 ** (bits - 1)), 2 ** (bits - (not sign)) - 1)
    for sign in ("", "u")
    for bits in (2, 4, 8, 16, 32, 64)
}
FLOATS = {"float16": (10, -14, 65504), "float32": (23, -126, None), "float64": (52, -1022, None)} | {
    "bfloat16": (7, -126, None),
    "float8_e4m3fn": (3, -6, 448),
    "float8_e4m3fnuz": (3, -7, 240),
    "float8_e5m2": (2, -14, 57344),
    "float8_e5m2fnuz": (2, -15, 57344),
    "float8_e8m0fnu": (0, -127, Fraction(2) ** 127),
}
"""Bits of the fraction, the least exponent of a normal number, and the largest number where it is not an IEEE one."""
BORDERS = sorted(
    {
        sign * (border + more)
        for border in (0, 1, *(2**n for n in range(1, 65)))
        for more in (-1, 0, 1)
        for sign in (-1, 1)
    }
)
FRACTIONS = [
    0.5,
    -0.5,
    0.1,
    65519.999,
    65520.0,
    1 + 2**-8 + 2**-40,
    1 + 2**-9,
    464.0,
    465.0,
    5e-324,
    2**-149.0,
    1e308,
    3.4e38,
]
SPECIAL = [math.nan, math.inf, -math.inf, -0.0]


def unfit_rows(column: Column, name: str) -> dict[int, str]:
    """Return the places of rows [rows, …] that the element type cannot hold, with the sentence that says why."""
    found = {}
    for place, row in enumerate(column):
        try:
            convert(row if isinstance(row, np.ndarray) else np.array([row], object), name)
        except ConversionError as error:
            found[place] = str(error)
    return found


def largest(name: str) -> Fraction:
    digits, least, most = FLOATS[name]
    return Fraction(most) if most else (2 - Fraction(1, 2**digits)) * Fraction(2) ** (1 - least)


@cache
def nearest(value: Fraction, name: str) -> Fraction | None:
    """Return the number of a floating type that is nearest, to even; None beyond the largest."""
    digits, least, _ = FLOATS[name]
    if name == "float8_e8m0fnu" and value <= 0:
        return None
    exponent = max(least, math.frexp(float(value))[1] - 2)  # or the next one
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - digits)
    found = round(value / step) * step  # Python rounds fractions to even
    if name == "float8_e8m0fnu":
        found = max(found, Fraction(2) ** -127)
    return found if abs(found) <= largest(name) else None


def expected(value: Any, name: str) -> Any:
    """Return what a value becomes; None if it does not fit."""
    if isinstance(value, float) and not math.isfinite(value):
        if name in WHOLE or name == "bool":
            return None
        no_infinity = math.isinf(value) and name not in {"float16", "float32", "float64", "bfloat16", "float8_e5m2"}
        return None if no_infinity else value
    if name in WHOLE:
        least, most = WHOLE[name]
        return int(value) if value == int(value) and least <= value <= most else None
    if name == "bool":
        return bool(value) if value in {0, 1} else None
    return nearest(Fraction(value), name)


def values_of(name: str) -> list[Any]:
    """Return numbers at the borders of all types, as the type has them."""
    if name == "bool":
        return [False, True]
    if name in WHOLE:
        least, most = WHOLE[name]
        return [value for value in BORDERS if least <= value <= most]
    with np.errstate(over="ignore"):
        held = widened(np.array([*map(float, BORDERS), *FRACTIONS, *SPECIAL], np.float64).astype(numpy_dtype(name)))
    return list(held.astype(np.float64).tolist())


def as_type(values: list[Any], name: str) -> np.ndarray:
    narrow = (
        np.array(values, np.int8 if name in WHOLE else np.float32)
        if name == "bfloat16" or "float8" in name
        else np.array(values)
    )
    return (
        np.array(values, numpy_dtype(name)) if hasattr(np, name) or name == "bool" else narrow.astype(numpy_dtype(name))
    )


def is_same(have: Any, want: Any) -> bool:
    if isinstance(want, float) and math.isnan(want):
        return isinstance(have, float) and math.isnan(have)
    if isinstance(want, float) and math.isinf(want):
        return bool(have == want)
    return bool(Fraction(have) == Fraction(want))


@pytest.mark.quick("float64", "uint64", "bfloat16", "float8_e8m0fnu", "int4", "bool")
@pytest.mark.parametrize("source", NUMBERS)
def test_each_number_becomes_the_nearest_one_or_is_refused_by_name(source: str) -> None:
    values = values_of(source)
    given_array = as_type(values, source)
    values = widened(given_array).tolist()
    for target in NUMBERS:
        wanted = [expected(value, target) for value in values]
        fits = np.array([one is not None for one in wanted])
        held = widened(convert(given_array[fits], target))
        assert held.dtype == widened(np.zeros(1, numpy_dtype(target))).dtype
        assert all(map(is_same, held.tolist(), [one for one in wanted if one is not None]))
        refused = unfit_rows(given_array[:, np.newaxis], target)
        assert list(refused) == np.flatnonzero(~fits).tolist()
        assert all(f"does not fit {target}, which holds" in why for why in refused.values())


@settings(max_examples=effort(60, 1000))
@example(1 + 2**-8 + 2**-40, "bfloat16")
@example(-(1 + 2**-8 + 2**-40), "bfloat16")
@given(st.floats() | st.integers(-(2**63), 2**63 - 1), st.sampled_from(NUMBERS))
def test_any_number_becomes_the_nearest_one_or_is_refused(value: float, target: str) -> None:
    want = expected(value, target)
    if want is None:
        with pytest.raises(ConversionError):
            convert(np.array([value]), target)
    else:
        (have,) = widened(convert(np.array([value]), target)).tolist()
        assert is_same(have, want)


@given(
    st.lists(st.integers(-(2**70), 2**70) | st.booleans() | st.floats(), min_size=1, max_size=4),
    st.sampled_from([*WHOLE, "float64"]),
)
def test_numbers_of_python_are_held_to_the_digit(values: list[Any], target: str) -> None:
    wanted = [expected(value, target) for value in values]
    given_array = np.array([None, *values], object)[1:]
    if None in wanted:
        assert list(unfit_rows(values, target)) == [place for place, want in enumerate(wanted) if want is None]
        with pytest.raises(ConversionError):
            convert(given_array, target)
    else:
        assert all(map(is_same, widened(convert(given_array, target)).tolist(), wanted))


def test_text_becomes_no_number_and_numbers_become_no_text() -> None:
    for array in (np.array(["1"]), np.array(["1"], object), np.array([b"1"]), np.array([None], object), np.array([1j])):
        with pytest.raises(ConversionError, match="does not fit float32"):
            convert(array, "float32")
    for other in (1, None, b"a"):
        with pytest.raises(ConversionError, match="does not fit string, which holds text"):
            convert(np.array(["a", other], object), "string")
    with pytest.raises(ConversionError, match="does not fit string"):
        convert(np.array([1.5]), "string")
    assert convert(np.array([b"\xc3\xa4"]), "string").tolist() == ["ä"]
    with pytest.raises(ConversionError, match="not UTF-8"):
        convert(np.array([b"\xff"]), "string")


def test_the_message_names_the_value_and_the_type() -> None:
    for array, target, told in (
        (np.array([1, 70000]), "uint16", "70000 does not fit uint16, which holds whole numbers from 0 to 65535"),
        (np.array([0.5]), "int8", "0.5 does not fit int8, which holds whole numbers from -128 to 127"),
        (np.array([1, np.nan]), "int64", "nan does not fit int64"),
        (np.array([2**63], np.uint64), "int64", "9223372036854775808 does not fit int64"),
        (np.array([1e39]), "float32", "1e+39 does not fit float32, which holds numbers up to 3.40282e+38"),
        (np.array([2]), "bool", "2 does not fit bool, which holds 0 and 1"),
        (np.array([10**400], object), "float64", "does not fit float64"),
    ):
        with pytest.raises(ConversionError) as caught:
            convert(array, target)
        assert str(caught.value).startswith(told) or told in str(caught.value)


def test_what_needs_no_conversion_is_not_copied() -> None:
    for name in ("float32", "bfloat16", "int4", "bool"):
        array = np.zeros(3, numpy_dtype(name))
        assert convert(array, name) is array
    swapped = np.array([1, 2], ">i4")
    assert convert(swapped, "int32").tolist() == [1, 2]
    assert convert(swapped, "int32").dtype.isnative


def test_a_cast_loses_decimals_and_nothing_else() -> None:
    assert cast(np.array([0.9, -0.9 + 1, 254.9]), "uint8").tolist() == [0, 0, 254]
    assert cast(np.array([0.0, -0.0, 0.5, np.nan, 2]), "bool").tolist() == [False, False, True, True, True]
    assert cast(np.array([1.5], ml_dtypes.bfloat16), "string").tolist() == ["1.5"]
    for value, name in ((255.5, "uint8"), (-0.5, "uint8"), (np.nan, "int64"), (2.0**63, "int64"), (1e39, "float32")):
        with pytest.raises(ConversionError, match=f"does not fit {name}"):
            cast(np.array([value]), name)


def test_the_joint_type_holds_every_value_as_it_is() -> None:
    assert joint_type([1, -2]) == "int64"
    assert joint_type([1, 2**63 + 1]) == "uint64"
    assert joint_type([-1, 2**63 + 1]) is None
    assert joint_type([1, 2.5]) == "float64"
    assert joint_type([2**53 + 1, 2.5]) is None
    assert joint_type([10**400, 2.5]) is None
    assert joint_type([True, False]) == "bool"
    assert joint_type([True, 2]) is None
    assert joint_type([1, None]) is None
    assert joint_type(["a", "b"]) == "string"
    assert joint_type(["a", 1]) is None
    assert joint_type([]) is None


@pytest.mark.parametrize(("name", "limit"), [("float64", 2**53), ("float32", 2**24), ("float16", 2**11)])
def test_a_whole_number_stays_the_same_in_a_floating_type_or_is_told(name: str, limit: int) -> None:
    for kind in (int, np.int64, Decimal):
        assert not rounds(kind(limit), name)
        assert not rounds(kind(-limit), name)
        assert rounds(kind(limit + 1), name)
    assert not rounds(limit + 2, name)
    assert rounds(10**400, name)
    assert not any(rounds(value, name) for value in (0.1, True, Decimal("0.1"), Decimal("NaN"), "1", None))
    assert rounded_places(np.array([0, limit + 1, limit, -limit - 1]), name) == [1, 3]
    _, unfit = fit_elements(np.array([limit, limit + 1]), name)
    assert unfit == {1: f"{limit + 1} does not fit {name}"}
