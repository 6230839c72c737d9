"""Finds every path and URL that a manifest names, where it is written, and what it is for."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ortdeploy.files.gate import Use
from ortdeploy.files.listing import in_full
from ortdeploy.manifest.option_paths import WRITTEN, find_option_paths

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import Spec


class NamedPath(Struct, frozen=True):
    """A path or URL, the place of its value, and what is done with it."""

    path: str
    at: "Path"
    use: Use


def path_from_manifest(spec: "Spec", path: str) -> FilePath:
    """Return the full path of what a manifest names, or of what was kept of it; no link is followed."""
    return FilePath(spec.places.get(path) or os.path.normpath(FilePath(spec.folder) / path))


def pattern_from_manifest(spec: "Spec", pattern: str) -> str:
    """Return the pattern of an input in full, or the path of what was kept of it."""
    return spec.places.get(pattern) or in_full(spec.folder, pattern)


def option_path(spec: "Spec", path: str) -> str:
    """Return the full path of what an option names, as it is written, or of what was kept of it."""
    return spec.places.get(path) or str(FilePath(spec.folder) / path)


def named_paths(spec: "Spec") -> Iterator[NamedPath]:
    """Yield them all: those of files that may be fetched, those of files that must be local, and the others."""
    yield from (NamedPath(one.path, one.at, Use.FETCH) for one in pinned_files(spec))
    yield from (NamedPath(path, at, Use.LOCAL) for path, at in _local_files(spec))
    for job in spec.jobs:
        at = job.input.source_at
        for index, path in enumerate(job.input.paths):
            yield NamedPath(path, (*at, index) if len(job.input.paths) > 1 else at, Use.READ)
        yield NamedPath(job.output.url or job.output.path, (*job.output.at, "path"), Use.WRITE)
    for pipeline in spec.pipelines:
        if pipeline.preset is not None and pipeline.preset.image_folder is not None:
            yield NamedPath(pipeline.preset.image_folder, (*pipeline.at, "image_folder"), Use.READ)
    if spec.on_end is not None and spec.on_end.url is not None:
        yield NamedPath(spec.on_end.url, ("on_end", "url"), Use.POST)


def paths_of_bundle(spec: "Spec") -> Iterator[NamedPath]:
    """Yield those that a bundle brings: of what is read, all but data and a command."""
    written = {option.path for option in find_option_paths(spec) if option.kind in WRITTEN}
    for named in named_paths(spec):
        if named.use in {Use.FETCH, Use.LOCAL} and named.path not in written and named.at[0] != "on_end":
            yield named


class PinnedFile(Struct, frozen=True):
    """A file whose digest the manifest may pin: a model's or an adapter's; `beside` are digests of files that it needs.

    If there are such, `sha256` is that of all of them together.
    """

    path: str
    sha256: str | None
    at: "Path"
    beside: "Mapping[str, str]" = field(default_factory=dict)


def pinned_files(spec: "Spec") -> Iterator[PinnedFile]:
    """Yield the files of models and adapters."""
    yield from (PinnedFile(model.path, model.sha256, (*model.at, "path"), model.external_data) for model in spec.models)
    yield from (PinnedFile(adapter.path, adapter.sha256, (*adapter.at, "path")) for adapter in spec.adapters)


def _local_files(spec: "Spec") -> "Iterator[tuple[str, Path]]":
    for _, golden in spec.checks():
        at = (*golden.at, "path")
        yield golden.path, at if at in spec.document.spans else golden.at
    for entry in (entry for chain in spec.written_chains() for entry in chain):
        if entry.library is not None:
            yield entry.library, (*entry.at, "library")
    yield from ((option.path, option.at) for option in find_option_paths(spec))
    if spec.on_end is not None and spec.on_end.command is not None and "/" in spec.on_end.command[0]:
        yield spec.on_end.command[0], ("on_end", "command", 0)
    for pipeline in spec.pipelines:
        if pipeline.preset is not None:
            yield pipeline.preset.folder, (*pipeline.at, "from")
    for step in (step for job in spec.jobs for step in job.postprocess):
        if "from" in step.options:
            yield step.options["from"], (*step.at, "from")
