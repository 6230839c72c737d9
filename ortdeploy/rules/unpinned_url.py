"""What it catches: a model or an adapter that is named by a URL and has no sha256.

Why: a file that is fetched is kept by its digest, once on a machine. Without one, nobody knows whether what a server
gives today is what was tested yesterday, and each machine could run another model.

Example:

    models:
      digits: {path: "https://models.example/digits.onnx"}

How to fix: write the file's digest beside it, as sha256sum prints it: sha256: 4f1c…
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.files.gate import Use, objection
from ortdeploy.files.urls import is_url, parse_url
from ortdeploy.manifest.named_paths import pinned_files
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unpinned-url", summary="File that is fetched has no digest")


def check(spec: "Spec") -> Iterator[Finding]:
    for file in pinned_files(spec):
        if is_url(file.path) and file.sha256 is None and objection(file.path, Use.FETCH) is None:
            detail = (
                f'"{parse_url(file.path)}" is fetched, and only its digest says what it is. Write sha256: beside it.'
            )
            yield Finding(at=file.at, detail=detail)
