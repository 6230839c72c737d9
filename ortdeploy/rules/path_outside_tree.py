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

from ortdeploy.manifest.option_paths import find_option_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="path-outside-tree", summary="Path leaves the manifest's folder tree")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        yield from _check_path(spec, model.path, (*model.at, "path"))
    for adapter in spec.adapters:
        yield from _check_path(spec, adapter.path, (*adapter.at, "path"))
    for entry in (entry for chain in spec.written_chains() for entry in chain):
        if entry.library is not None:
            yield from _check_path(spec, entry.library, (*entry.at, "library"))
    for option in find_option_paths(spec):
        yield from _check_path(spec, option.path, option.at)
    for job in spec.jobs:
        for index, path in enumerate(job.input.paths):
            at = (*job.input.at, "path")
            yield from _check_path(spec, path, (*at, index) if len(job.input.paths) > 1 else at)
        yield from _check_path(spec, job.output.path, (*job.output.at, "path"))
        for step in job.postprocess:
            if "from" in step.options:
                yield from _check_path(spec, step.options["from"], (*step.at, "from"))


def _check_path(spec: "Spec", path: str, at: tuple[str | int, ...]) -> Iterator[Finding]:
    """Compare by text alone: links are followed where files are looked at."""
    full = os.path.normpath(os.path.join(spec.folder, path))  # noqa: PTH118  joined as text, nothing is looked at
    if not any(full == root or full.startswith(root.rstrip(os.sep) + os.sep) for root in (spec.folder, *spec.roots)):
        detail = (
            f'"{path}" leads out of {spec.folder}. Keep the file below the manifest, or allow its root on the '
            "command line with --allow-root."
        )
        yield Finding(at=at, detail=detail)
