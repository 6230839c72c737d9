"""What it catches: a URL that is not allowed: an unknown scheme, a chain of file systems, or a local path in disguise.

Why: fsspec opens local files under many names (file://, simplecache::file://, zip://x::file://). A manifest is reviewed
as text, and none of these names may take it out of its folder tree. Inputs, models and adapters may be s3, gs, az,
abfs, sftp, hf, https and http URLs. Outputs may have the schemes that can be written: not hf, https and http.
Everything else is a local file.

Example:

    input: {path: "file:///var/data/*.csv"}

How to fix: write a local path as a path. Instead of a chain that unpacks or caches files, name the files themselves. In
a password, write signs such as / and @ as %2F and %40. Write ./ before a local file whose name looks like a URL.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.files.gate import objection
from ortdeploy.manifest.named_paths import named_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="refused-url", summary="URL is not allowed")


def check(spec: "Spec") -> Iterator[Finding]:
    for named in named_paths(spec):
        why = objection(named.path, named.use)
        if why is not None:
            yield Finding(at=named.at, detail=why)
