"""What it catches: a path that leaves the manifest's folder tree, by .. or by being absolute.

Why: a manifest is committed and reviewed as text. One that reads or writes anywhere on the machine could take a
password file as data or overwrite another deployment's model.

Example:

    models: {digits: {path: ../../shared/digits.onnx}}

How to fix: keep the file below the manifest, or allow its root: ortdeploy apply … --allow-root ../../shared
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.files.object_store import is_url
from ortdeploy.manifest.option_paths import find_option_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="path-outside-tree", summary="Path leaves the manifest's folder tree")


def check(spec: "Spec") -> Iterator[Finding]:
    for path, at in (*_paths_of_files(spec), *_paths_of_jobs(spec)):
        yield from _check_path(spec, path, at)


def _paths_of_files(spec: "Spec") -> "Iterator[tuple[str, Path]]":
    for model in spec.models:
        yield model.path, (*model.at, "path")
    for adapter in spec.adapters:
        yield adapter.path, (*adapter.at, "path")
    for golden in (*(one for m in spec.models for one in m.checks), *(one for a in spec.adapters for one in a.checks)):
        at = (*golden.at, "path")
        yield golden.path, at if at in spec.document.spans else golden.at
    for entry in (entry for chain in spec.written_chains() for entry in chain):
        if entry.library is not None:
            yield entry.library, (*entry.at, "library")
    for option in find_option_paths(spec):
        yield option.path, option.at


def _paths_of_jobs(spec: "Spec") -> "Iterator[tuple[str, Path]]":
    for job in spec.jobs:
        for index, path in enumerate(job.input.paths):
            at = (*job.input.at, "path")
            yield path, (*at, index) if len(job.input.paths) > 1 else at
        yield job.output.path, (*job.output.at, "path")
        for step in job.postprocess:
            if "from" in step.options:
                yield step.options["from"], (*step.at, "from")


def _check_path(spec: "Spec", path: str, at: "Path") -> Iterator[Finding]:
    """Compare by text alone: links are followed where files are looked at."""
    if is_url(path):
        return
    full = os.path.normpath(os.path.join(spec.folder, path))  # noqa: PTH118  joined as text, nothing is looked at
    if not any(full == root or full.startswith(root.rstrip(os.sep) + os.sep) for root in (spec.folder, *spec.roots)):
        detail = (
            f'"{path}" leads out of {spec.folder}. Keep the file below the manifest, or allow its root on the '
            "command line with --allow-root."
        )
        yield Finding(at=at, detail=detail)
