"""What it catches: a URL that is not taken: of another scheme than the known ones, a chain, a local path in disguise.

Why: fsspec opens local files under many names (file://, simplecache::file://, zip://x::file://), and a manifest that is
reviewed as text must not read or write past the folder tree by one of them. Inputs may be s3, gs, az, abfs, hf, https,
http and sftp URLs, outputs those of them that can be written: not hf, https and http. Everything else is a local file.

Example:

    input: {path: "file:///var/data/*.csv"}

How to fix: write a local path as a path. Name the files themselves where a chain would unpack or cache them. Write the
signs of a password that have a meaning in URLs with a percent sign. A local file whose name looks like a URL is written
with ./ before it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.files.gate import objection
from ortdeploy.manifest.named_paths import named_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="refused-url", summary="URL is not taken")


def check(spec: "Spec") -> Iterator[Finding]:
    for named in named_paths(spec):
        why = objection(named.path, named.use)
        if why is not None:
            yield Finding(at=named.at, detail=why)
