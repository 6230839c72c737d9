"""The input formats by name, and the probe that every one of them shares."""

import os
from collections.abc import Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError, did_you_mean
from ortdeploy.facts import InputFacts, KnownFile, Problem
from ortdeploy.sources import arrow, csv, image, jsonl, npy, npz, parquet
from ortdeploy.sources.files import file_states, list_files, not_accounted_for, outside, shown, states_digest
from ortdeploy.sources.protocol import SourceModule

SOURCES: dict[str, SourceModule] = {
    "arrow": arrow,
    "csv": csv,
    "image": image,
    "jsonl": jsonl,
    "npy": npy,
    "npz": npz,
    "parquet": parquet,
}

_BY_SUFFIX = {suffix: name for name, module in SOURCES.items() for suffix in module.SUFFIXES}


def probe_input(
    folder: str,
    patterns: Sequence[str],
    declared: str | None,
    roots: Sequence[str],
    packages: frozenset[str],
    known: Sequence[KnownFile] = (),
) -> InputFacts:
    """Find a job's files, settle their format and look at the beginning of the data.

    Of files that are known, those whose rows are accounted for are left out, unless there are no others.
    """
    files = list_files(folder, patterns)
    if not files:
        detail = f"No file matches {', '.join(patterns)} in {folder}. Paths are relative to the manifest."
        return InputFacts(problem=Problem(kind="unmatched", detail=detail))
    strays = [path for path in files if outside(path, (folder, *roots))]
    if strays:
        detail = (
            f"{shown(strays[0], folder)} leads out of the manifest's folder tree. Allow its root with --allow-root."
        )
        return InputFacts(problem=Problem(kind="outside", detail=detail))
    name, problem = (declared, None) if declared else _format(files, folder)
    if name is None:
        return InputFacts(files=files, problem=problem)
    module = SOURCES[name]
    try:
        states = file_states(files, folder)
        left, changed = not_accounted_for(states, known)
        read = tuple(os.path.join(folder, state.path) for state in left) if known and left else files  # noqa: PTH118
        facts = InputFacts(format=name, files=read, states=left, changed=changed, digest=states_digest(states))
        if module.PACKAGE and module.PACKAGE.module not in packages:
            return InputFacts(format=name, files=files, missing_package=module.PACKAGE)
        return module.probe(files, facts)
    except OrtdeployError as error:
        return InputFacts(format=name, files=files, problem=Problem(kind="unreadable", detail=f"{error}."))


def _format(files: Sequence[str], folder: str) -> tuple[str | None, Problem | None]:
    """Settle the format from the suffixes, which must all say the same."""
    found: dict[str | None, str] = {}
    for path in files:
        found.setdefault(_BY_SUFFIX.get(Path(path).suffix.lower()), path)
    if None in found:
        detail = (
            f"The format of {shown(found[None], folder)} cannot be told from its suffix. Add format: to the input. "
            f"{did_you_mean('', SOURCES)}"
        )
        return None, Problem(kind="unknown-format", detail=detail)
    if len(found) > 1:
        examples = " and ".join(f"{shown(path, folder)} ({name})" for name, path in found.items())
        detail = f"The input mixes formats: {examples}. A job reads one; narrow the path."
        return None, Problem(kind="mixed-formats", detail=detail)
    return next(iter(found)), None
