"""The modules of a package by name, each imported when somebody asks for it: a job uses few formats and steps."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Kind = TypeVar("Kind")


class Modules(Mapping[str, Kind]):
    """A table of names, with what `make` makes of each module; names may be looked through without importing any."""

    def __init__(self, package: str, names: Sequence[str], make: Callable[[Any], Kind]) -> None:
        self._package, self._make = package, make
        self._made: dict[str, Kind | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Kind:
        made = self._made[name]
        if made is None:
            made = self._made[name] = self._make(importlib.import_module(f"{self._package}.{name}"))
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def as_it_is(module: Any) -> Any:
    """Return a module that is used as it is."""
    return module
