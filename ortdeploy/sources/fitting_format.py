"""Which format the files of an input have, and whether what the manifest says fits it."""

import glob
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.facts.data import FORMATS_WITH_GAPS, PLAIN, DeclaredInput, Dialect
from ortdeploy.facts.problems import Problem
from ortdeploy.files.decoding import decoding
from ortdeploy.sources.catalogue import FILE_IS_ROW, SOURCES, STREAMED, Opened, format_of_suffix
from ortdeploy.sources.compression import format_suffix, is_compressed
from ortdeploy.sources.files import shown
from ortdeploy.sources.format_check import find_mistaken
from ortdeploy.sources.settings import misplaced

_SHOWN_GLOBS = 3


def unfit(name: str, files: Iterable[str], declared: DeclaredInput) -> Problem | None:
    """Return which key of the input does not fit its format."""
    detail = misplaced(name, declared.settings, SOURCES)
    if detail is not None:
        return Problem(kind="unfit", detail=detail)
    key = _unfit_key(name, declared.dialect or PLAIN)
    if key is not None:
        detail = f"{key}: is for tables ({', '.join(_OF_TABLES[key])}), and the format is {name}. Remove it."
        return Problem(kind="tabled", detail=detail)
    if declared.row_type is not None and name != "raw":
        detail = f"dtype: and shape: are for raw tensors; {name} files say themselves what they hold. Remove both."
        return Problem(kind="typed", detail=detail)
    packed = next(filter(is_compressed, files), None)
    if packed is not None and name not in {*STREAMED, "bytes"}:
        detail = (
            f"{shown(packed, declared.folder)} is compressed, which only {', '.join(STREAMED)} files may be. Unpack it."
        )
        return Problem(kind="compressed", detail=detail)
    return None


_OF_SUFFIXES = {
    ".json": "If it has one object a line, write format: jsonl.",
    ".ndjson": "If it has one object a line, write format: jsonl.",
    ".tsv": 'Write format: csv, delimiter: "\\t".',
    ".xls": "Save the sheet as CSV; there is no format for it.",
    ".xlsx": "Save the sheet as CSV; there is no format for it.",
}
"""What to do about files whose suffix is well known and of no format."""
_OF_TABLES = {"delimiter": ("csv",), "lines_per_record": ("csv",), "empty": FORMATS_WITH_GAPS}
"""The keys that say how a table is written, with the formats that they are for."""


def _unfit_key(name: str, dialect: Dialect) -> str | None:
    """Return which key of a dialect says something that its format does not have."""
    said = (key for key in _OF_TABLES if getattr(dialect, key) != getattr(PLAIN, key))
    return next((key for key in said if name not in _OF_TABLES[key]), None)


def mistaken(name: str, files: Sequence[str], folder: str, *, declared: bool) -> Problem | None:
    """Return which file holds another format than its suffix, or the manifest, says. Raises OrtdeployError."""
    if name in FILE_IS_ROW:
        return None
    opened = Opened(files)
    with decoding(lambda: shown(opened.last, folder), name):
        found = find_mistaken(name, opened, declared=declared, may_be_packed=name in STREAMED)
    if found is None:
        return None
    return Problem(kind="mistaken", detail=f"{shown(opened.last, folder)} {found}")


def format_of_files(some: Iterable[str], files: Sequence[str], folder: str) -> tuple[str | None, Problem | None]:
    """Return the format from the suffixes, which must all agree; `some` has a file of each."""
    found: dict[str | None, str] = {}
    for path in some:
        found.setdefault(format_of_suffix(format_suffix(path)), path)
    if None in found:
        advice = _OF_SUFFIXES.get(format_suffix(found[None]), f"Add format: to the input. {did_you_mean('', SOURCES)}")
        narrower = f" Or write path: {_patterns(files, folder)}." if len(found) > 1 else ""
        detail = f"The format of {shown(found[None], folder)} cannot be told from its suffix. {advice}{narrower}"
        return None, Problem(kind="unknown-format", detail=detail)
    if len(found) > 1:
        examples = " and ".join(f"{shown(path, folder)} ({name})" for name, path in found.items())
        detail = f"The input mixes formats: {examples}. A job reads one; write path: {_patterns(files, folder)}."
        return None, Problem(kind="mixed-formats", detail=detail)
    return next(iter(found)), None


def _patterns(files: Sequence[str], folder: str) -> str:
    """Return globs for the files of the format that most of some files have, as a manifest has them."""
    formats = Counter(format_of_suffix(format_suffix(path)) for path in files)
    del formats[None]
    chosen = min(formats, key=lambda name: (-formats[name], str(name)))
    chosen_files = (path for path in files if format_of_suffix(format_suffix(path)) == chosen)
    globs = Counter(os.path.join(*_place(shown(path, folder))) for path in chosen_files)  # noqa: PTH118  text
    first, *others = (json.dumps(pattern, ensure_ascii=False) for pattern, _ in globs.most_common(_SHOWN_GLOBS))
    return f"[{', '.join([first, *others])}]" if others else first


def _place(path: str) -> tuple[str, str]:
    """Return the folder of a file, as it stands in a glob, and a glob for its suffix."""
    place, name = os.path.split(path)
    return glob.escape(place), f"*{os.path.splitext(name)[1]}"  # noqa: PTH122  text
