"""What it catches: a folder named in the manifest contains a link that leads out of the manifest's folder tree.

Why: a file outside of the tree was not committed and reviewed with the manifest, and whoever can write to it decides
what runs. This holds for every folder of golden data, presets, vocabularies or external data, as it does for single
files.

Example: models/painter/tokenizer/vocab.json is a link to /var/shared/vocab.json

How to fix: copy the file into the folder, or allow its root: ortdeploy apply … --allow-root /var/shared
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.named_paths import named_paths
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="link-out-of-tree", summary="Link in a folder leaves the manifest's folder tree")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for named in named_paths(deployment.spec):
        link = deployment.facts.links_out.get(named.path)
        if link is not None:
            detail = (
                f"{link} is a link out of the manifest's folder tree. Copy the file into the folder, or allow its root "
                "with --allow-root."
            )
            yield Finding(at=named.at, detail=detail)
