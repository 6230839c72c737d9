"""Types of table columns: their names in plans and ledgers, and the one type that holds the values of two.

A name is `text`, an element type such as `int64`, `list<…>`, `map<text, …>`, or what Arrow calls a type, such as
`timestamp[us]`. A type without a name of its own, such as a struct, has its Arrow schema in base64 behind `arrow:`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.conversion import exact_up_to, rounds
from ortdeploy.tensors.nanoseconds import Nanoseconds
from ortdeploy.tensors.types import ELEMENT_TYPES, WIDER

if TYPE_CHECKING:
    import pyarrow as pa

_ENCODED = "arrow:"
_LIST, _MAP = re.compile(r"list<(.*)>(?:\[(\d+)\])?"), re.compile(r"map<text, (.*)>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_ALIASES = {TEXT: "string", "float16": "halffloat", "float32": "float", "float64": "double"}
_NAMES = {alias: name for name, alias in _ALIASES.items()}


def type_name(kind: "pa.DataType") -> str:
    """Return the name of a type; views, dictionaries and large types have that of what they hold."""
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    kind = plain_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return _encoded(kind)
    if pa.types.is_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    if pa.types.is_fixed_size_list(kind):
        return f"list<{type_name(kind.value_type)}>[{kind.list_size}]"
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and not kind.keys_sorted:
        return f"map<text, {type_name(kind.item_type)}>"
    name = _NAMES.get(str(kind), str(kind))
    try:
        is_named = named_type(name) == kind
    except ValueError:
        is_named = False
    return name if is_named else _encoded(kind)


def _encoded(kind: "pa.DataType") -> str:
    import base64  # noqa: PLC0415  for few types

    import pyarrow as pa  # noqa: PLC0415  as above

    return _ENCODED + base64.b64encode(pa.schema([("", kind)]).serialize()).decode()


@cache
def named_type(name: str) -> "pa.DataType":
    """Return the type of a name. Raises ValueError if no type is called so."""
    import pyarrow as pa  # noqa: PLC0415  as above

    if name.startswith(_ENCODED):
        import base64  # noqa: PLC0415  as above

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(name.removeprefix(_ENCODED)))).field(0).type
    if found := _LIST.fullmatch(name):
        return pa.list_(named_type(found[1]), int(found[2]) if found[2] else -1)
    if found := _MAP.fullmatch(name):
        return pa.map_(pa.string(), named_type(found[1]))
    if found := _ZONED.fullmatch(name):
        return pa.timestamp(found[1], found[2])
    if found := _DECIMAL.fullmatch(name):
        return getattr(pa, f"decimal{found[1]}")(int(found[2]), int(found[3]))
    return pa.type_for_alias(_ALIASES.get(name, name))


def innermost(name: str) -> str:
    """Return the name of the type of what lists of lists hold."""
    return name.replace("list<", "").partition(">")[0]


def shown_type(name: str) -> str:
    """Return a type as a message names it."""
    return str(named_type(name)) if _ENCODED in name else name


def plain_type(kind: "pa.DataType") -> "pa.DataType":
    """Return what a type holds: dictionaries, views, large types and tensors are only other ways to store that."""
    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _nested_lists(kind) if isinstance(kind, pa.FixedShapeTensorType) else kind
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type), keys_sorted=kind.keys_sorted)
    if is_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size if types.is_fixed_size_list(kind) else -1)
    if types.is_struct(kind):
        return pa.struct([(one.name, plain_type(one.type)) for one in kind])
    return kind


def _nested_lists(kind: "pa.FixedShapeTensorType") -> "pa.DataType":
    import pyarrow as pa  # noqa: PLC0415  as above

    inner = plain_type(kind.value_type)
    for axis in reversed(tensor_order(kind)):
        inner = pa.list_(inner, kind.shape[axis])
    return inner


def tensor_order(kind: "pa.FixedShapeTensorType") -> Sequence[int]:
    """Return which axis of stored tensors each axis of their values is."""
    return kind.permutation or range(len(kind.shape))


def is_list(kind: "pa.DataType") -> bool:
    """Return whether the values of a type are lists, of one size or of any, in any way to store them."""
    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def joint_arrow_type(one: "pa.DataType", other: "pa.DataType") -> "pa.DataType | None":
    """Return the plain type that holds the values of both; None if none does.

    They are pyarrow's own promotions: whole numbers become wider or floating, times get the finer unit. But text does
    not become bytes, and decimals beside floating numbers become float64.
    """
    import pyarrow as pa  # noqa: PLC0415  as above

    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    kinds = (one, other)
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if any(map(pa.types.is_binary, kinds)) and any(map(pa.types.is_string, kinds)):
        return None
    if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
        return pa.float64()
    if any(map(pa.types.is_decimal, kinds)):  # pyarrow gives int64 one digit too few
        kinds = tuple(_as_decimal(kind) for kind in kinds)
    if all(map(is_list, kinds)) and one.value_type != other.value_type:
        item = joint_arrow_type(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    try:
        found = pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except pa.ArrowException:
        return None
    return plain_type(found.field(0).type)


def _as_decimal(kind: "pa.DataType") -> "pa.DataType":
    """Return a type of whole numbers as that of decimals which hold them; other types as they are."""
    import pyarrow as pa  # noqa: PLC0415  as above

    if not pa.types.is_integer(kind):
        return kind
    limit = 2 ** (kind.bit_width - pa.types.is_signed_integer(kind))
    return pa.decimal128(len(str(limit)), 0)


def is_single(kind: "pa.DataType") -> bool:
    """Return whether a value of a type is one value, which has a text: no list, map or struct."""
    import pyarrow as pa  # noqa: PLC0415  as above

    return not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def arrow_element_name(kind: "pa.DataType") -> str | None:
    """Return the name of an element type; None if no model input takes values of this type."""
    name = _NAMES.get(str(plain_type(kind)), str(kind))
    name = "string" if name == TEXT else name
    return name if name in ELEMENT_TYPES and name not in WIDER else None


def result_type_name(dtype: str | None, sizes: Sequence[int | None] | None) -> str | None:
    """Return the name of the type of a result: rows of an element type in this shape; None if that is not known."""
    if dtype is None or sizes is None:
        return None
    name = TEXT if dtype == "string" else WIDER.get(dtype, dtype)
    for size in reversed(sizes):
        name = f"list<{name}>" if size is None else f"list<{name}>[{size}]"
    return name


def arrow_array(values: Sequence[Any], name: str) -> "pa.Array":
    """Return Python's values as an array of a named type. Raises ArrowException, TypeError if one does not fit it."""
    import pyarrow as pa  # noqa: PLC0415  as above

    kind = named_type(name)
    try:
        return _at_once(values, kind)
    except (pa.ArrowException, TypeError, OverflowError):  # 1 and 2**63 have no type of their own together, but uint64
        if len(values) < 2:  # noqa: PLR2004  it is this one
            raise
        return pa.concat_arrays([_at_once([value], kind) for value in values])


def _at_once(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    """Return values as an array of a type. Raises what `arrow_array` raises.

    pyarrow makes 2 of 2.5, times of numbers and 1 of true where it is asked for such. So values must be of the kind
    that the type holds; they get the type that they have themselves first, which is then cast without a loss.
    """
    import pyarrow as pa  # noqa: PLC0415  as above

    first = next((value for value in values if value is not None), None)
    if first is None:
        return pa.nulls(len(values), kind)
    if isinstance(first, Nanoseconds):
        return _times(values, first.kind, kind)
    _check_kinds(values, kind)
    if pa.types.is_map(kind):
        return pa.array([list(one.items()) if isinstance(one, dict) else one for one in values], kind)
    if pa.types.is_struct(kind) or isinstance(kind, pa.BaseExtensionType):
        return pa.array(values, kind)
    is_whole = pa.types.is_integer(kind) and float not in map(type, values)
    if is_whole or pa.types.is_decimal(kind) or pa.types.is_date64(kind):
        return pa.array(values, kind)
    found = pa.array(values)
    if found.type == kind:
        return found
    cast = found.cast(kind)
    for number in rounded_rows(found, cast).values():
        raise TypeError(f"{kind} would round {number}")
    return _without_infinities(found, cast)


def _times(values: Sequence[Any], counted: "pa.DataType", kind: "pa.DataType") -> "pa.Array":
    """Return times that are counted in nanoseconds in another type. Raises ArrowInvalid, TypeError."""
    import pyarrow as pa  # noqa: PLC0415  as above

    if counted.id != kind.id or getattr(counted, "tz", None) != getattr(kind, "tz", None):
        raise TypeError(f"{counted} is not {kind}")
    counts = pa.array([None if value is None else value.count for value in values], pa.int64())
    return counts.view(counted).cast(kind)


def _check_kinds(values: Iterable[Any], kind: "pa.DataType") -> None:
    """Raise TypeError, ArrowException if a value, or one in it, is of another kind than a type holds."""
    import pyarrow as pa  # noqa: PLC0415  as above

    known = [value for value in values if value is not None]
    if is_list(kind):
        if not all(isinstance(value, list) for value in known):
            raise TypeError("a value is no list")
        _check_kinds(chain.from_iterable(known), kind.value_type)
    elif pa.types.is_map(kind) or pa.types.is_struct(kind):
        _check_items(known, kind)
    elif pa.types.is_timestamp(kind):
        if not all(isinstance(one, datetime) and (one.tzinfo is None) == (kind.tz is None) for one in known):
            raise TypeError(f"a value is not {kind}")
    elif not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)):
        held = next((held for test, held in _held_kinds() if test(kind)), None)
        if held is not None and not set(map(type, known)) <= held:
            raise TypeError(f"a value is not {kind}")


def _check_items(values: Sequence[Any], kind: "pa.DataType") -> None:
    """Convert what maps or structs hold, to see whether it fits. Raises TypeError, ArrowException.

    Where pyarrow makes maps and structs, it makes 2 of 2.5, and leaves out fields that the type lacks.
    """
    import pyarrow as pa  # noqa: PLC0415  as above

    if pa.types.is_struct(kind):
        names = {field.name for field in kind}
        if not all(isinstance(value, dict) and value.keys() <= names for value in values):
            raise TypeError(f"a value has other fields than {kind}")
        for field in kind:
            _at_once([value.get(field.name) for value in values], field.type)
        return
    if not all(isinstance(value, list | dict) for value in values):
        raise TypeError("a value is no map")
    pairs = [pair for value in values for pair in (value.items() if isinstance(value, dict) else value)]
    _at_once([key for key, _ in pairs], kind.key_type)
    _at_once([item for _, item in pairs], kind.item_type)


@cache
def _held_kinds() -> "list[tuple[Callable[[pa.DataType], bool], set[type]]]":
    """Return Python's types of the values that Arrow's types hold."""
    from decimal import Decimal  # noqa: PLC0415  takes a moment, and only tables need it

    import pyarrow as pa  # noqa: PLC0415  as above

    types = pa.types
    return [
        (types.is_boolean, {bool}),
        (types.is_integer, {int, float}),
        (types.is_floating, {int, float, Decimal}),
        (types.is_decimal, {int, Decimal}),
        (types.is_string, {str}),
        (types.is_date, {date}),
        (types.is_time, {time}),
        (types.is_duration, {timedelta}),
        (lambda kind: types.is_binary(kind) or types.is_fixed_size_binary(kind), {bytes}),
    ]


def rounded_rows(decimals: "pa.Array", numbers: "pa.Array") -> dict[int, Any]:
    """Return the whole numbers that were rounded when decimals, perhaps in lists, became floating, by their places.

    pyarrow tells that of its own whole numbers. Of other types, none is returned.
    """
    import pyarrow as pa  # noqa: PLC0415  as above

    exact, held = decimals, numbers
    while is_list(exact.type):
        exact, held = exact.flatten(), held.flatten()
    if not (pa.types.is_decimal(exact.type) and pa.types.is_floating(held.type)):
        return {}
    name = arrow_element_name(held.type) or "float64"
    if not (np.abs(np.asarray(held.fill_null(0))) >= exact_up_to(name)).any():
        return {}
    found = {place: _first_rounded(value, name) for place, value in enumerate(decimals.to_pylist())}
    return {place: number for place, number in found.items() if number is not None}


def _first_rounded(value: Any, name: str) -> Any:
    """Return the first number, in a value or its lists, that a floating type rounds; None if there is none."""
    if isinstance(value, list):
        return next((found for one in value if (found := _first_rounded(one, name)) is not None), None)
    return value if rounds(value, name) else None


def _without_infinities(numbers: "pa.Array", cast: "pa.Array") -> "pa.Array":
    """Return numbers that were cast. Raises TypeError if one has become an infinity, of which pyarrow says nothing."""
    import pyarrow as pa  # noqa: PLC0415  as above

    before, after = numbers, cast
    while is_list(after.type):
        before, after = before.flatten(), after.flatten()
    if pa.types.is_floating(after.type) and pa.types.is_floating(before.type):
        lost = np.isinf(after.to_numpy(zero_copy_only=False)) & ~np.isinf(before.to_numpy(zero_copy_only=False))
        if lost.any():
            raise TypeError(f"a number is more than {after.type} holds")
    return cast
