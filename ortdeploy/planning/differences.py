"""Finds the differences between two documents of plain data, place by place, with their secrets masked."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.redaction import without_secrets


class Nothing:
    """Stands for a value that one of two documents lacks."""


NOTHING = Nothing()
_LABELS = ("step", "kind", "provider", "name", "session", "instance", "adapter", "job", "deployment", "number", "index")
"""Keys that identify an item in another list, if it has them."""
_SHORT = 12
"""The most items of a list of scalars that is compared as a whole, such as a mean by channel."""
_PLAIN_KEY = re.compile(r"[\w-]+")


class Difference(Struct, frozen=True, kw_only=True):
    """A place where two documents differ, with both values without secrets; NOTHING if a document has none."""

    path: str
    old: Any
    new: Any


class Value(Struct, frozen=True):
    """A value of a document, and the same value with masked secrets, because what differs may be a secret."""

    raw: Any
    shown: Any

    @classmethod
    def plain(cls, value: Any) -> "Value":
        """Return a value without secrets."""
        return cls(value, value)

    def at(self, key: Any) -> "Value":
        """Return the value under a key or at a place, if there is one."""
        try:
            return Value(self.raw[key], self.shown[key])
        except (KeyError, IndexError, TypeError):
            return _ABSENT

    @property
    def is_open(self) -> bool:
        """Whether its items may be compared one by one; a mask stands for everything below it."""
        return isinstance(self.raw, dict | list | Nothing) and type(self.raw) is type(self.shown)


_ABSENT = Value(NOTHING, NOTHING)


def find_differences(old: Value, new: Value, at: str = "") -> Iterator[Difference]:
    """Yield where two documents differ, in the order of the new one, then what only the old one has.

    Items with names are compared with the items of the same names, at whatever place; the order of such lists is
    compared too.
    """
    kinds = {type(one.raw) if one.is_open else None for one in (old, new)} - {Nothing}
    if kinds == {dict} and any(one.raw for one in (old, new) if one is not _ABSENT):
        yield from _of_mappings(old, new, at)
    elif kinds == {list} and not all(map(_is_leaf, (old, new))):
        yield from _of_lists(old, new, at)
    elif _text(old.raw) != _text(new.raw):
        yield Difference(path=without_secrets(at), old=old.shown, new=new.shown)


def _text(value: Any) -> str | None:
    """Return a value as text, in which 1, 1.0 and true differ, and NaN equals NaN."""
    return None if isinstance(value, Nothing) else json.dumps(value, sort_keys=True, default=str)


def _is_leaf(value: Value) -> bool:
    """Return whether a list is compared as a whole: a short one of scalars, or a missing one."""
    if isinstance(value.raw, Nothing):
        return True
    return len(value.raw) <= _SHORT and not any(isinstance(item, dict | list) for item in value.raw)


def _of_mappings(old: Value, new: Value, at: str) -> Iterator[Difference]:
    for key in dict.fromkeys([*_items(new), *_items(old)]):
        name = str(key) if _PLAIN_KEY.fullmatch(str(key)) else f"[{json.dumps(key, ensure_ascii=False)}]"
        dot = "." if at and not name.startswith("[") else ""
        yield from find_differences(old.at(key), new.at(key), f"{at}{dot}{name}")


def _items(value: Value) -> Any:
    """Return the keys of a mapping or the items of a list; none if the value is missing."""
    return () if isinstance(value.raw, Nothing) else value.raw


def _of_lists(old: Value, new: Value, at: str) -> Iterator[Difference]:
    before, after = (_places([] if one is _ABSENT else one.shown) for one in (old, new))
    if before is None or after is None:
        for index in range(max(len(_items(old)), len(_items(new)))):
            yield from find_differences(old.at(index), new.at(index), f"{at}[{index}]")
        return
    for label in dict.fromkeys([*after, *before]):
        mine, theirs = (
            value.at(places[label]) if label in places else _ABSENT for value, places in ((old, before), (new, after))
        )
        yield from find_differences(mine, theirs, f"{at}[{label}]")
    orders = [[label for label in one if label in other] for one, other in ((before, after), (after, before))]
    if orders[0] != orders[1]:
        yield Difference(path=without_secrets(f"{at} (order)"), old=orders[0], new=orders[1])


def _places(items: Sequence[Any]) -> Mapping[str, int] | None:
    """Return the places of a list's items by name; None unless each has a name of its own."""
    labels = {_label(item): index for index, item in enumerate(items)}
    return labels if len(labels) == len(items) and "" not in labels else None


def _label(item: Any) -> str:
    """Return the name of an item: the values of some of its keys, or the first text of a list."""
    if isinstance(item, list):
        return item[0] if item and isinstance(item[0], str) else ""
    if not isinstance(item, dict):
        return ""
    return " ".join(str(item[key]) for key in _LABELS if isinstance(item.get(key), str | int))
