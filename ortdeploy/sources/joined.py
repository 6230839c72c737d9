"""Files of one input as one table: columns are joined by name, and get the type that holds their values in all files.

Only what is fed or carried matters, and which columns these are the model says, later. So a column that cannot be read
from all files is noted with the reason, and nothing is refused here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.tensors.types import TensorType

_ADVICE = "or give files of another kind a job of their own, with a narrower path"


class JoinedFiles:
    """The columns of files, each with the types that it has and the first file of each type.

    `join` returns the type that holds the values of two, None if none does; `shown` names a type.
    """

    def __init__(self, join: Callable[[Any, Any], Any], shown: Callable[[Any], str]) -> None:
        """Begin without files."""
        self._join, self._shown = join, shown
        self._found: dict[str, dict[Any, str]] = {}
        self._lacking: dict[str, str] = {}
        self._first: str | None = None
        self._last: Sequence[tuple[str, Any]] | None = None
        self._repeated: dict[str, None] = {}

    def add(self, path: str, listed: Sequence[tuple[str, Any]]) -> None:
        """Add a file with its columns as it lists them; a name that it has twice stands for none of the two."""
        if listed == self._last:
            return
        self._last, columns = listed, dict(listed)
        if len(columns) < len(listed):
            counts = Counter(name for name, _ in listed)
            self._repeated |= dict.fromkeys(name for name, number in counts.items() if number > 1)
        for name in self._found.keys() - columns.keys():
            self._lacking.setdefault(name, path)
        for name, kind in columns.items():
            if name not in self._found and self._first is not None:
                self._lacking.setdefault(name, self._first)
            self._found.setdefault(name, {}).setdefault(kind, path)
        self._first = path if self._first is None else self._first

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that all files have, with their joint types; None if there is none."""
        left_out = {*self._lacking, *self._repeated}
        return {name: self._joint(kinds) for name, kinds in self._found.items() if name not in left_out}

    def completed(
        self, facts: InputFacts, columns: Mapping[str, TensorType], types: Mapping[str, str | None]
    ) -> InputFacts:
        """Return the facts with the columns that all files have, and the types in which they are carried."""
        problem = None
        if self._repeated and len(self._repeated) == len(self._found):
            problem = Problem(
                kind="unreadable", detail=f'"{next(iter(self._repeated))}" is there twice, and no column once.'
            )
        return replace(
            facts,
            columns=columns,
            types={name: kind for name, kind in types.items() if kind is not None},
            differing={name: why for name, why in self.differing.items() if name not in self._repeated},
            repeated=frozenset(self._repeated),
            problem=problem,
        )

    def kinds(self, name: str) -> tuple[Any, ...]:
        """Return the types that a column has."""
        return tuple(self._found[name])

    @property
    def differing(self) -> dict[str, str]:
        """Why columns cannot be read from all files as one."""
        found = {}
        for name, kinds in self._found.items():
            if name in self._lacking:
                kind, path = next(iter(kinds.items()))
                found[name] = (
                    f'{self._lacking[name]} has no column "{name}", which is {self._shown(kind)} in {path}. Write it '
                    f"into each file, {_ADVICE}"
                )
            elif self._joint(kinds) is None:
                found[name] = self._why_not(name, kinds)
        return found

    def _joint(self, kinds: Mapping[Any, str]) -> Any:
        return reduce(lambda one, other: None if one is None else self._join(one, other), kinds)

    def _why_not(self, name: str, kinds: Mapping[Any, str]) -> str:
        (first, before), *others = kinds.items()
        kind, path = next((one for one in others if self._join(first, one[0]) is None), others[-1])
        return (
            f'"{name}" is {self._shown(first)} in {before} and {self._shown(kind)} in {path}, and no type holds both. '
            f"Write it as one type into each file, {_ADVICE}"
        )
