"""What somebody may have meant by the path of a file that is not there."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath

from ortdeploy.diagnostics import nearest
from ortdeploy.files.listing import has_magic, is_folder_entry

_MOST = 1_000
"""Names of a folder that are compared; a larger folder is one of data, where each name is like many others."""


def advice_on_path(written: str, place: str) -> str:
    """Return a sentence on a path of a manifest at whose `place` nothing is, with a space before it; else nothing."""
    if written.startswith("~") or "$" in written:
        return " A path takes neither ~ nor variables."
    if "\\" in written and os.sep == "/":
        return " Write / between folders."
    if (other := _in_another_case(Path(place))) is not None:
        return f" {other} is there: letters of upper and lower case are not the same."
    near = _near(written, place)
    return f" Did you mean {near}?" if near else ""


def _in_another_case(pattern: Path) -> str | None:
    """Return a name, of the first ones in the folder of a pattern, that it would match if case made no difference."""
    if not has_magic(pattern.name):
        return None
    try:
        with os.scandir(pattern.parent) as entries:
            names = [one.name for one in islice(entries, _MOST)]
    except (OSError, ValueError):
        return None
    alike = (name for name in names if fnmatchcase(name.casefold(), pattern.name.casefold()))
    return next((name for name in alike if name.isprintable() and not fnmatchcase(name, pattern.name)), None)


def _near(written: str, place: str) -> str | None:
    """Return the path with its first name that is not there replaced by one like it; None if none is."""
    path, here = PurePath(written), Path(place)
    last = len(path.parts) - 1
    for depth in reversed(range(last + 1)):
        try:
            known = _names(here.parent, folders=depth < last, hidden=here.name.startswith("."))
        except (OSError, ValueError):  # it is not there either
            here = here.parent
            continue
        is_compared = here.name not in known and not has_magic(here.name)
        found = _alike(here, filter(str.isprintable, known)) if is_compared else None
        return None if found is None else PurePath(*path.parts[:depth], found, *path.parts[depth + 1 :]).as_posix()
    return None


def _names(folder: Path, *, folders: bool, hidden: bool) -> list[str]:
    """Return the names of the folders in a folder, or of what else is there; none if it has more than `_MOST` names.

    Nobody means a hidden one, such as .git, unless they wrote a dot.
    """
    with os.scandir(folder) as entries:
        some = list(islice(entries, _MOST + 1))
    if len(some) > _MOST:
        return []
    return [one.name for one in some if is_folder_entry(one) == folders and (hidden or not one.name.startswith("."))]


def _alike(path: Path, known: Iterable[str]) -> str | None:
    """Return the name with the same suffix whose rest is most like, or the one that differs in the suffix alone."""
    if not path.suffix:
        return nearest(path.name, known)
    others = [PurePath(one) for one in known]
    near = nearest(path.stem, (one.stem for one in others if one.suffix == path.suffix))
    return f"{near}{path.suffix}" if near else next((one.name for one in others if one.stem == path.stem), None)
