"""What it catches: settings for a component that a preset does not have.

Why: they would reach no session. diffusers and optimum take such a mapping as an option with the name of the component,
and ignore it silently.

Example:

    preset: text-to-image
    components: {unett: {providers: [QNN, CPU]}}

How to fix: correct the name. text-to-image has text_encoder, unet and vae_decoder; diffusion also has transformer,
vae_encoder, text_encoder_2 and text_encoder_3.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unknown-component", summary="Component is not known")


def check(spec: "Spec") -> Iterator[Finding]:
    for pipeline in spec.pipelines:
        if pipeline.preset is None and pipeline.components:
            detail = f'"{pipeline.name}" has steps and no preset. Its models get their providers under models:.'
            yield Finding(at=(*pipeline.at, "components"), detail=detail, key=True)
            continue
        known = list(pipeline.preset.known_parts) if pipeline.preset else []
        for name in pipeline.components:
            if name not in known:
                detail = f'"{pipeline.name}" has no component "{name}". {did_you_mean(name, known)}'
                yield Finding(at=(*pipeline.at, "components", name), detail=detail, key=True)
