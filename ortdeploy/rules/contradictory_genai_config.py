"""What it catches: genai_config.json in the folder of a preset `generate` asks for other providers or session options
than the manifest.

Why: the manifest is what was reviewed, and what counts. Whoever reads the folder alone would expect something else of
it, such as a GPU, or one thread.

Example: providers: [CPU] in the manifest, and provider_options: [{"cuda": {}}] in genai_config.json

How to fix: change the manifest or the file, so that both say the same.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.genai import PROVIDERS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="contradictory-genai-config", summary="genai_config.json asks for something else", severity=Severity.WARNING
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    models = {model.spec.name: model.spec for model in deployment.models}
    for pipeline in deployment.spec.pipelines:
        said = deployment.facts.diffusion[pipeline.name].ports if pipeline.writer else {}
        model = models.get(pipeline.writer or "")
        if model is None or not said:
            continue
        chain = deployment.spec.chain_of(model.sessions[0])
        names = [provider.name if (provider := find_provider(one.name)) else one.name for one in chain]
        asked = {PROVIDERS[name].lower() for name in names if name in PROVIDERS}
        folder = [name for name in said.get("providers", ()) if name.lower() not in {*asked, "cpu"}]
        if folder:
            own = ", ".join(names) or CPU
            detail = f"It names the provider {', '.join(folder)}, and the manifest {own}, which runs."
            yield Finding(at=(*pipeline.at, "from"), detail=detail, model=model.name)
        for name, value in said.get("session", {}).items():
            own = model.session.get(name, value)
            if own != value:
                detail = f"It says {name} {value}, and the manifest {own}, which counts."
                yield Finding(at=(*pipeline.at, "from"), detail=detail, model=model.name)
