"""What it catches: a key of a pipeline that its preset does not have, but another one.

Why: it would have no effect, and nobody would notice.

Example:

    preset: generate
    guidance_scale: 5.0

How to fix: remove the key, or name the preset that has it.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.pipelines import GENERATE, OWN_KEYS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="key-of-another-preset", summary="Key belongs to another preset")


def check(spec: "Spec") -> Iterator[Finding]:
    for pipeline in spec.pipelines:
        kind = pipeline.preset.kind if pipeline.preset else ""
        known = OWN_KEYS[kind] if kind else ("steps",)
        others = {key for keys in OWN_KEYS.values() for key in keys}.difference(known)
        for key in json.loads(pipeline.definition):
            if key in others:
                owners = " and ".join(name for name, keys in OWN_KEYS.items() if key in keys)
                detail = f'"{key}" is a key of {owners}, and "{pipeline.name}" has {kind or "steps"}. Remove it.'
                yield Finding(at=(*pipeline.at, key), detail=detail, key=True)
        for part in pipeline.preset.files if pipeline.preset and kind != GENERATE else ():
            detail = f'"file" is a key of components of {GENERATE}, and "{pipeline.name}" has {kind}. Remove it.'
            yield Finding(at=(*pipeline.at, "components", part, "file"), detail=detail, key=True)
