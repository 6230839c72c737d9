"""Says whether a file that a flag would write is one that the manifests of the command line name or make."""

import argparse
import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.plans import saved_plans
from ortdeploy.files.gate import Use
from ortdeploy.files.listing import as_name, expand
from ortdeploy.files.names import STATE_DIR, is_folder, is_there, relative
from ortdeploy.files.urls import is_url
from ortdeploy.ledger.damage import FILE
from ortdeploy.manifest.loader import LoadOptions, find_manifests, load_variants
from ortdeploy.manifest.named_paths import NamedPath, named_paths, path_from_manifest, pattern_from_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.plan_file.planning_again import options_of

_MADE = ("part-", "_", ".")
"""How the names of what a job writes into its output folder begin."""


def role_of(path: str, arguments: argparse.Namespace) -> str | None:
    """Return what a file is to the manifests of a command line, or to those of its saved plan; None if it is nothing.

    Manifests that are refused are compared themselves, and what they name is not known.
    """
    target = _Target(path)
    for manifest, options in _manifests(arguments):
        if any(map(target.is_at, (manifest, *options.overlays))):
            return "a manifest or an overlay"
        roles = (_role_in(spec, target, arguments.state_dir) for spec in load_variants(manifest, options))
        if (role := next(filter(None, roles), None)) is not None:
            return role
    return None


class _Target:
    """A file to write, which other ways of writing its path, links among them, lead to as well."""

    def __init__(self, path: str) -> None:
        self.real = os.path.realpath(path)
        self.is_there = is_there(path)

    def is_at(self, path: str | Path) -> bool:
        with suppress(OSError, ValueError):
            return os.path.realpath(path) == self.real or (self.is_there and Path(path).samefile(self.real))
        return False

    def is_in(self, folder: str | Path) -> bool:
        return self.real.startswith(f"{os.path.realpath(folder).rstrip(os.sep)}{os.sep}")

    def is_made_in(self, output: Path) -> bool:
        """Return whether it is in the folder of an output, under a name that a job may give."""
        return self.is_in(output) and relative(self.real, os.path.realpath(output)).startswith(_MADE)

    def is_read_by(self, pattern: str) -> bool:
        """Return whether the pattern of an input matches the file, or will once it is there."""
        if self.is_there:
            return any(map(self.is_at, expand(pattern)))
        is_whole = is_folder(as_name(pattern)) or pattern.endswith("**")
        folder, name = (pattern, "*") if is_whole else os.path.split(pattern)
        own = Path(self.real).name
        is_like = fnmatch(own, name) and (name.startswith(".") or not own.startswith("."))
        folders = [folder, *glob.iglob(folder, recursive=True)] if is_like else ()  # noqa: PTH207  keeps a glob's text
        return any(os.path.realpath(one) == str(Path(self.real).parent) for one in folders)


def _manifests(arguments: argparse.Namespace) -> Iterator[tuple[str, LoadOptions]]:
    """Yield the manifests of a command line with how each is read; a saved plan says both. Raises OrtdeployError."""
    for one in saved_plans(arguments):
        yield one.manifest, options_of(one, LoadOptions(digest=False, roots=one.roots))
    for manifest in find_manifests(arguments.paths)[0]:
        yield manifest, load_options(arguments, digest=False)


def _role_in(spec: Spec, target: _Target, state_dir: str | None) -> str | None:
    ledger = Path(state_dir or Path(spec.folder) / STATE_DIR) / FILE
    if any(target.is_at(f"{ledger}{end}") for end in ("", "-journal", "-shm", "-wal")):
        return "the ledger"
    return next(filter(None, (_role(spec, one, target) for one in named_paths(spec))), None)


def _role(spec: Spec, named: NamedPath, target: _Target) -> str | None:
    """Return what the target is if it is what a manifest names in one place."""
    if is_url(named.path) and named.use is not Use.WRITE:
        return None
    where = ".".join(map(str, named.at))
    path = path_from_manifest(spec, named.path)
    match named.use:
        case Use.READ:
            return f"an input ({where})" if target.is_read_by(pattern_from_manifest(spec, named.path)) else None
        case Use.WRITE:
            written = (path_from_manifest(spec, job.output.path) for job in spec.jobs if job.output.at == named.at[:-1])
            return f"what a job writes ({where})" if any(map(target.is_made_in, written)) else None
        case Use.FETCH if target.is_there and target.is_in(path.parent) and _is_data_of(path, target):
            return f"external data ({where})"
        case _:
            holds = target.is_in(path) and not _Target(spec.path).is_in(path)
            return f"named by {where}" if target.is_at(path) or holds else None


def _is_data_of(model: Path, target: _Target) -> bool:
    from ortdeploy.graph.external_data import external_places  # noqa: PLC0415  brings onnx

    return any(map(target.is_at, external_places(model)))
