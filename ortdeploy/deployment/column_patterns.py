"""Columns that a manifest names by a pattern: `f*` for those whose names begin with f; `?` stands for one letter."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


def is_pattern(name: str, known: Collection[str]) -> bool:
    """Return whether a name stands for columns that it matches; a column of that very name wins."""
    return ("*" in name or "?" in name) and name not in known


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, in their order."""
    wanted = re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
    return [name for name in names if wanted.fullmatch(name)]


def expanded(written: Sequence[str], known: Collection[str], before: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns that are named, patterns replaced by what they match, in the order of the files.

    A column that is named, or that an earlier pattern matches, is not among those of a pattern. A pattern that matches
    nothing stays as it is. `before` is the order in which earlier rows were fed, which files of another order keep.
    """
    known = dict.fromkeys((*(name for name in before if name in known), *known))
    named = {name for name in written if not is_pattern(name, known)}
    found: list[str] = []
    for name in written:
        if is_pattern(name, known):
            fitting = [one for one in matching(name, known) if one not in named]
            named.update(fitting)
            found += fitting or [name]
        else:
            found.append(name)
    return tuple(found)


def fillers(missing: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return what stands for a missing value by column: as its name says, else the first pattern that matches it."""
    found = {}
    for column in columns:
        key = column if column in missing else next((one for one in missing if matching(one, [column])), None)
        if key is not None:
            found[column] = missing[key]
    return found
