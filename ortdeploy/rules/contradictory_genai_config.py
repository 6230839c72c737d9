"""What it catches: genai_config.json in the folder of a preset `generate` asks for other providers or session options
than the manifest.

Why: the manifest is what was reviewed, and what counts. Whoever reads the folder alone would expect something else of
it, such as a GPU, or one thread.

Example: providers: [CPU] in the manifest, and provider_options: [{"cuda": {}}] in genai_config.json

How to fix: change the manifest or the file, so that both say the same.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import Severity
from ortdeploy.manifest.pipelines import GENERATE
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.genai import PROVIDERS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import ModelSpec

RULE = Rule(
    id="contradictory-genai-config", summary="genai_config.json asks for something else", severity=Severity.WARNING
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    models = {model.spec.name: model.spec for model in deployment.models}
    for pipeline in deployment.spec.pipelines:
        preset = pipeline.preset
        if preset is None or preset.kind != GENERATE:
            continue
        for part, said in deployment.facts.diffusion[pipeline.name].ports.get("parts", {}).items():
            model = models.get(preset.parts[part])
            if model is None:
                continue
            for detail in _contradictions(deployment, model, said):
                yield Finding(at=(*pipeline.at, "from"), detail=f"Of the {part}, it {detail}", model=model.name)


def _contradictions(deployment: "Deployment", model: "ModelSpec", said: Mapping[str, Any]) -> Iterator[str]:
    """Yield what genai_config.json says of a model and the manifest does not."""
    chain = deployment.spec.chain_of(model.sessions[0])
    names = [provider.name if (provider := find_provider(one.name)) else one.name for one in chain]
    asked = {PROVIDERS[name].lower() for name in names if name in PROVIDERS}
    folder = [name for name in said.get("providers", ()) if name.lower() not in {*asked, "cpu"}]
    if folder:
        yield f"names the provider {', '.join(folder)}, and the manifest {', '.join(names) or CPU}, which runs."
    for name, value in said.get("session", {}).items():
        own = model.session.get(name, value)
        if own != value:
            yield f"says {name} {value}, and the manifest {own}, which counts."
