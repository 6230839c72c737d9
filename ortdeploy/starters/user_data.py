"""Looks at rows that the user has: a file, or a folder of files of one kind."""

import glob
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.deployment.delimiters import likely_delimiter
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FORMATS_WITH_GAPS, DeclaredInput, Dialect, InputFacts
from ortdeploy.shell import pip_install
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.compression import format_suffix
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.starters.model_info import Data, is_installed

_FORMATS = {suffix: name for name, module in SOURCES.items() for suffix in module.SUFFIXES}


def look_at_data(path: Path, folder: Path, read_as: str | None = None) -> Data:
    """Return what a manifest in `folder` says of data; all of a folder is read as one format. Raises OrtdeployError."""
    if not path.exists():
        raise OrtdeployError(f"--from: there is no {path}")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OrtdeployError(f"--from: {path} must lie below the manifest's folder {folder}; choose another with -o")
    shown = path.resolve().relative_to(folder.resolve()).as_posix()
    patterns, left_out = _of_folder(path, shown, read_as) if path.is_dir() else ((shown,), "")
    packages = frozenset(
        module.PACKAGE.module for module in SOURCES.values() if module.PACKAGE and is_installed(module.PACKAGE.module)
    )
    declared = DeclaredInput(folder=str(folder), patterns=patterns, roots=(str(folder),), format=read_as)
    facts = probe_input(declared, packages)
    delimiter = likely_delimiter(facts)
    if delimiter is not None:
        facts = probe_input(replace(declared, dialect=Dialect(delimiter=delimiter)), packages)
    if facts.missing_package is not None:
        package = facts.missing_package
        raise OrtdeployError(f"--from: {path} needs {package.name}: {pip_install(f'ortdeploy[{package.extra}]')}")
    if facts.problem is not None:
        raise OrtdeployError(f"--from: {facts.problem.detail.rstrip('.')}")
    first = _first_row(facts, folder) if facts.format in FORMATS_WITH_GAPS else {}
    found = (name for name, cell in first.items() if str(cell) and not _is_number(str(cell)))
    return Data(
        patterns=patterns,
        format=facts.format or "",
        columns=facts.columns,
        texts=frozenset(found if facts.format == "csv" else ()),
        first=first,
        left_out=left_out,
        delimiter=delimiter,
        rates=frozenset(facts.rates),
    )


def _first_row(facts: InputFacts, folder: Path) -> dict[str, Any]:
    """Return the values of the first row of tables; none if it cannot be read."""
    names = tuple(facts.columns)
    wanted = Wanted(dtypes={}, keys=names, dialect=facts.dialect)
    with SOURCES[facts.format or ""].open_source(facts.files[:1], str(folder), wanted) as source:
        block = next(source.blocks(0, iter([1])), None)
    columns = {} if block is None else block.columns
    return {name: columns[name][0] for name in names if name in columns and len(columns[name])}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _of_folder(path: Path, shown: str, read_as: str | None) -> tuple[tuple[str, ...], str]:
    """Return a pattern for each suffix of the most frequent format in a folder, and which files they leave out."""
    folder = "" if shown == "." else f"{glob.escape(shown)}/"
    if read_as is not None:
        return (f"{folder}*",), ""
    found = [(_FORMATS.get(format_suffix(str(one))), one.suffix) for one in path.iterdir()]
    formats = Counter(name for name, _ in found if name is not None)
    if not formats:
        known = ", ".join(sorted(_FORMATS))
        raise OrtdeployError(f"--from: no file in {path} ends as one of the formats does: {known}")
    chosen = min(formats, key=lambda name: (-formats[name], name))
    suffixes = Counter(suffix for name, suffix in found if name == chosen)
    others = Counter(suffix for name, suffix in found if name not in {chosen, None})
    taken = tuple(f"{folder}*{suffix}" for suffix in _most_first(suffixes))
    return taken, ", ".join(f"{others[suffix]} of *{suffix}" for suffix in _most_first(others))


def _most_first(numbers: Counter[str]) -> list[str]:
    return sorted(numbers, key=lambda name: (-numbers[name], name))
