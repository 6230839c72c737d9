"""Records, as `dataclass(frozen=True, slots=True, kw_only=True)` makes them, in a hundredth of the time.

dataclasses writes the methods of each class as source and compiles it, half a millisecond for each of two hundred
classes, in every process. Here the same few methods serve all classes. Records are dataclasses to whoever asks:
`fields`, `replace` and `asdict` take them, and type checkers know what their parameters are.

What makes instances is compiled too, once many of a class were made: by the row or file, by the node of a graph or by
the line of a manifest. To compare two of them takes longer than with dataclasses.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import _FIELD, MISSING, Field, FrozenInstanceError, field  # type: ignore[attr-defined]  # for _Fields
from functools import cached_property
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)
_Set = Callable[[Any, Any], None]
_MANY = 64
"""Instances from which on it pays to compile what makes them."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(kind: _Class) -> _Class:
    """Make a class an immutable record, whose fields are given by name."""
    made: _Class = _make(kind, in_order=False)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def ordered_record(kind: _Class) -> _Class:
    """Make a class an immutable record, whose fields may also be given in their order."""
    made: _Class = _make(kind, in_order=True)
    return made


@dataclass_transform(field_specifiers=(field,))
def mutable_record(kind: _Class) -> _Class:
    """Make a class a record whose fields may be changed, and be given in their order."""
    made: _Class = _make(kind, in_order=True, frozen=False)
    return made


def _make(kind: type, *, in_order: bool, frozen: bool = True) -> Any:
    """Make a class again, with slots: they cannot be added to one that is there.

    What its methods need is found out when the first of them is called: many classes are only passed by.
    """
    types = kind.__annotations__
    names = tuple(types)
    body = dict(kind.__dict__)
    written = {name: body.pop(name) for name in names if name in body}
    if any(isinstance(one, Field) and not one.init for one in written.values()):
        raise TypeError(f"{kind.__qualname__} has a field that is not given: leave it to dataclass")
    shape = _Shape(kind.__qualname__, names, written)
    for unwanted in ("__dict__", "__weakref__"):
        body.pop(unwanted, None)
    made: Any = type(kind)(
        kind.__name__,
        kind.__bases__,
        {
            "__eq__": _equal_by(shape),
            "__hash__": _hash_by(shape) if frozen else None,
            "__repr__": _text_of(shape),
            **(_FROZEN if frozen else {}),
            "__getstate__": lambda self: tuple(getattr(self, name) for name in names),
            "__setstate__": _set_state(names),
            "__match_args__": names if in_order else (),
            **body,
            "__annotations__": types,
            "__dataclass_fields__": _Fields(types, written),
            "__qualname__": kind.__qualname__,
            "__slots__": names,
        },
    )
    made.__init__ = _first_init(made, shape, in_order=in_order)
    return made


class _Shape:
    """What the methods of one record need; each is found out when it is first asked for."""

    def __init__(self, kind: str, names: tuple[str, ...], written: Mapping[str, Any]) -> None:
        self.kind, self.names, self.written = kind, names, written

    @cached_property
    def compared(self) -> Callable[[Any], tuple[Any, ...]]:
        """What returns the values that two records are compared by."""
        return _values(self.fields_that("compare"))

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The fields that a record's text has."""
        return self.fields_that("repr")

    def fields_that(self, wanted: str) -> tuple[str, ...]:
        """Return the fields that take part in comparisons (`compare`) or in the text (`repr`)."""
        written = self.written
        return tuple(name for name in self.names if getattr(written.get(name), wanted, True) is not False)


class _Defaults:
    """What is taken for fields that are not given."""

    def __init__(self, shape: _Shape) -> None:
        self._kind, self._names = shape.kind, frozenset(shape.names)
        self.makers: dict[str, Callable[[], Any]] = {}
        self.values: dict[str, Any] = {}
        for name, one in shape.written.items():
            if not isinstance(one, Field):
                self.values[name] = one
            elif one.default_factory is not MISSING:
                self.makers[name] = one.default_factory
            elif one.default is not MISSING:
                self.values[name] = one.default

    def complete(self, given: dict[str, Any]) -> dict[str, Any]:
        """Add what is not given. Raises TypeError where a field lacks, or is none of the record's."""
        whole = {**self.values, **{name: make() for name, make in self.makers.items() if name not in given}, **given}
        if whole.keys() != self._names:
            lacking, unknown = sorted(self._names - whole.keys()), sorted(whole.keys() - self._names)
            raise TypeError(f"{self._kind}() lacks {lacking} and has no {unknown}")
        return whole


def _first_init(made: Any, shape: _Shape, *, in_order: bool) -> Callable[..., None]:
    """Return what makes the first instance of a record, and puts what makes the others into its own place."""

    def init(self: Any, /, *first: Any, **given: Any) -> None:
        setters = {name: made.__dict__[name].__set__ for name in shape.names}
        defaults, after = _Defaults(shape), getattr(made, "__post_init__", None)

        def many() -> None:
            if not in_order:
                made.__init__ = _compiled_init(setters, defaults, after)

        by_name = _init_by_name(setters, defaults, after, many)
        made.__init__ = _init_in_order(shape.kind, shape.names, by_name) if in_order else by_name
        made.__init__(self, *first, **given)

    return init


def _init_by_name(
    setters: Mapping[str, _Set], defaults: _Defaults, after: Any, many: Callable[[], None]
) -> Callable[..., None]:
    """Return what makes an instance, and calls `many` when it has made many."""
    count, pairs, left = len(setters), tuple(setters.items()), _MANY

    def init(self: Any, /, **given: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            many()
        if len(given) != count:
            given = defaults.complete(given)
        try:
            for name, put in pairs:
                put(self, given[name])
        except KeyError:
            defaults.complete(given)
            raise
        if after is not None:
            after(self)

    return init


def _compiled_init(setters: Mapping[str, _Set], defaults: _Defaults, after: Any) -> Callable[..., None]:
    """Return what makes an instance, written out field by field, as dataclasses does it."""
    space: dict[str, Any] = {"_MISSING": MISSING, "_AFTER": after}
    parameters, lines = [], []
    for name, put in setters.items():
        space[f"_PUT_{name}"] = put
        value = name
        if name in defaults.makers:
            space[f"_MAKE_{name}"] = defaults.makers[name]
            value = f"_MAKE_{name}() if {name} is _MISSING else {name}"
            parameters.append(f"{name}=_MISSING")
        elif name in defaults.values:
            space[f"_VALUE_{name}"] = defaults.values[name]
            parameters.append(f"{name}=_VALUE_{name}")
        else:
            parameters.append(name)
        lines.append(f"    _PUT_{name}(self, {value})\n")
    end = "" if after is None else "    _AFTER(self)\n"
    exec(f"def __init__(self, /, *, {', '.join(parameters)}):\n{''.join(lines)}{end}", space)  # noqa: S102  of our own names
    made: Callable[..., None] = space["__init__"]
    return made


def _init_in_order(kind: str, names: tuple[str, ...], by_name: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, /, *first: Any, **given: Any) -> None:
        named = dict(zip(names, first, strict=False))
        if len(first) > len(names) or not named.keys().isdisjoint(given):
            raise TypeError(f"{kind}() got a field twice, or more than {len(names)}")
        by_name(self, **named, **given)

    return init


def field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a record or another dataclass; None if the class is neither."""
    found = kind.__dict__.get("__dataclass_fields__")
    return None if found is None else tuple(found)


class _Fields:
    """What the functions of dataclasses ask a class for, made when one of them does."""

    def __init__(self, types: Mapping[str, Any], written: Mapping[str, Any]) -> None:
        self._types, self._written = types, written

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __get__(self, _: object, kind: Any) -> "dict[str, Field[Any]]":
        found = {name: self._field(name, type_) for name, type_ in self._types.items()}
        kind.__dataclass_fields__ = found
        return found

    def _field(self, name: str, type_: Any) -> "Field[Any]":
        """Return a field with what `dataclass` would note in it; `make_dataclass` takes a hundred times as long."""
        one: Any = self._written.get(name, MISSING)
        if not isinstance(one, Field):
            one = field() if one is MISSING else field(default=one)
        one.name, one.type, one.kw_only, one._field_type = name, type_, True, _FIELD  # noqa: SLF001
        made: Field[Any] = one
        return made


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of fields: attrgetter, if it returns a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _equal_by(shape: _Shape) -> Callable[[Any, Any], bool]:
    def equal(self: Any, other: Any) -> bool:
        values = shape.compared
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hash_by(shape: _Shape) -> Callable[[Any], int]:
    return lambda self: hash(shape.compared(self))


def _text_of(shape: _Shape) -> Callable[[Any], str]:
    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shape.shown)})"

    return text


def _set_state(names: tuple[str, ...]) -> Callable[[Any, Any], None]:
    def set_state(self: Any, state: Any) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return set_state


def _refuse_to_set(_self: Any, name: str, _value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN = {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
