"""Finds out if manifests, the files that they name, or their inputs have changed, by states of files; none is opened.

URLs are not looked at, nor are files that no manifest names, such as a model's external data.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence

from ortdeploy.files.digests import signature
from ortdeploy.files.gate import Use
from ortdeploy.files.listing import expand
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.loader import LoadOptions, find_manifests
from ortdeploy.manifest.named_paths import named_paths, pattern_from_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.validation import validate


class Arrivals:
    """The files of some manifests. A manifest that is refused is still watched, with all files that it named before."""

    def __init__(self, paths: Sequence[str], options: LoadOptions) -> None:
        """Take the manifests of a command line, and look at them."""
        self._paths, self._options = paths, options
        self._texts = ""
        self._specs: dict[str, list[Spec]] = {}
        self.look()

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of all jobs of manifests that are not refused."""
        return tuple(dict.fromkeys(job.name for spec in self._all for job in spec.jobs))

    @property
    def stable_for(self) -> float:
        """The longest time in seconds for which a file must not have changed before a job takes it."""
        return max((job.input.arrivals.stable_for for spec in self._all for job in spec.jobs), default=0.0)

    @property
    def _all(self) -> Iterator[Spec]:
        """All specs; of a manifest that chooses among profiles, with each of them."""
        return (spec for specs in self._specs.values() for spec in specs)

    def look(self) -> str:
        """Return a digest of the states of all files; it changes if a file comes, goes or changes."""
        try:
            manifests = (*find_manifests(self._paths)[0], *self._options.overlays)
            texts = _digest(manifests)
            if texts != self._texts:
                found: dict[str, list[Spec]] = {}
                for spec in validate(self._paths, self._options).all_specs:
                    found.setdefault(spec.path, []).append(spec)
                self._specs |= found
                self._texts = texts
            here = [spec for spec in self._all if spec.path in manifests]
            return _digest((*manifests, *dict.fromkeys(file for spec in here for file in _files(spec))))
        except OSError as error:  # a folder that may not be read now
            return f"unreadable: {error}"


def _files(spec: Spec) -> Iterator[str]:
    for named in named_paths(spec):
        if named.use is not Use.WRITE and not is_url(named.path):
            yield from expand(pattern_from_manifest(spec, named.path))


def _digest(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            state: object = tuple(signature(os.stat(file)).values())  # noqa: PTH116  of thousands of files
        except (OSError, ValueError) as error:
            state = type(error).__name__
        digest.update(f"{file}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
