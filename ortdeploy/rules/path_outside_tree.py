"""What it catches: a path that leaves the manifest's folder tree, by .. or because it is absolute, on this system or on
Windows.

Why: a manifest is committed and reviewed as text. If it could read or write anywhere on the machine, it could take a
password file as data or overwrite another deployment's model.

Example:

    models: {digits: {path: ../../shared/digits.onnx}}

How to fix: keep the file below the manifest, or allow its root: ortdeploy apply … --allow-root ../../shared
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.files.gate import leaves_as_text
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.named_paths import named_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="path-outside-tree", summary="Path leaves the manifest's folder tree")


def check(spec: "Spec") -> Iterator[Finding]:
    for named in named_paths(spec):
        if not is_url(named.path) and leaves_as_text(named.path, spec.folder, spec.roots):
            detail = (
                f'"{named.path}" leads out of {spec.folder}. Keep the file below the manifest, or allow its root on '
                "the command line with --allow-root."
            )
            yield Finding(at=named.at, detail=detail)
