"""The files that a manifest names, for those who keep or carry them all: what a deployment is made of."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.data import HashedFile
from ortdeploy.facts.facts import Facts
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.names import is_file, is_folder
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.option_paths import find_option_paths
from ortdeploy.manifest.spec import Spec

_OPENED = frozenset({"document", "file", "folder"})
"""Kinds of paths in options whose files are opened."""


class NamedFiles(Struct, frozen=True, kw_only=True):
    """What a manifest names by one path, as written: one file (`single`; it comes first) or a folder, and its files.

    `kind` is that of a bundle's files.
    """

    path: str
    single: bool
    files: Sequence[HashedFile]
    kind: str


def named_files(spec: Spec, facts: Facts, digests: DigestCache) -> Iterator[NamedFiles]:
    """Yield the files of each path that a manifest names, but for inputs, outputs and libraries."""
    for model in spec.models:
        yield NamedFiles(path=model.path, single=True, files=facts.models[model.name].files, kind="weight")
    for adapter in spec.adapters:
        own = hashed(path_from_manifest(spec, adapter.path), facts.adapters[adapter.name].sha256)
        yield NamedFiles(path=adapter.path, single=True, files=(own,), kind="weight")
    for path, labels in facts.labels.items():
        own = hashed(path_from_manifest(spec, path), labels.sha256)
        yield NamedFiles(path=path, single=True, files=(own,), kind="config")
    latents = {one.preset.latents for one in spec.pipelines if one.preset is not None}
    for path, resource in facts.resources.items():
        place = path_from_manifest(spec, path)
        kind = "dataset" if path in latents else "config"
        files = resource.files or (hashed(place, resource.sha256),)
        yield NamedFiles(path=path, single=is_file(place), files=files, kind=kind)
    for pipeline in spec.pipelines:
        if pipeline.preset is not None:
            found = facts.diffusion[pipeline.name].files
            yield NamedFiles(path=pipeline.preset.folder, single=False, files=found, kind="weight")
    opened = {option.path for option in find_option_paths(spec) if option.kind in _OPENED}
    for path, of_option in facts.option_files.items():
        if path in opened:
            single = is_file(path_from_manifest(spec, path))
            yield NamedFiles(path=path, single=single, files=of_option.files, kind="config")
    yield from _golden(spec, digests)


def _golden(spec: Spec, digests: DigestCache) -> Iterator[NamedFiles]:
    for _, check in spec.checks():
        place = path_from_manifest(spec, check.path)
        inside = [one for one in sorted(place.rglob("*")) if one.is_file()] if is_folder(place) else [place]
        root = place if is_folder(place) else place.parent
        found = [replace(hashed(one, digests.digest(one)), name=one.relative_to(root).as_posix()) for one in inside]
        yield NamedFiles(path=check.path, single=not is_folder(place), files=found, kind="dataset")


def hashed(path: Path, sha256: str) -> HashedFile:
    """Return a file with its digest and size. Raises OSError."""
    return HashedFile(name=path.name, path=str(path), sha256=sha256, size=path.stat().st_size)
