"""What it catches: a provider, session option or run option of a model that writes, which ONNX Runtime GenAI takes no
notice of or does not know.

Why: GenAI opens the sessions of a preset `generate` itself, and its config has fewer words than ONNX Runtime. What it
cannot be told would be left out silently.

Example:

    preset: generate
    session: {execution_mode: parallel}

How to fix: remove the option, or name a provider that GenAI knows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.genai import LEVELS, OPTIONS, PROVIDERS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import ModelSpec, Spec

RULE = Rule(id="unsupported-by-genai", summary="ONNX Runtime GenAI does not take this")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in (model for model in spec.models if model.generates):
        for session in model.sessions:
            for entry in spec.chain_of(session):
                provider = find_provider(entry.name)
                name = provider.name if provider else entry.name
                if name not in {CPU, *PROVIDERS} or entry.library is not None or entry.device is not None:
                    known = ", ".join((CPU, *sorted(PROVIDERS)))
                    detail = f"A model that writes runs on {known}, without library and device; not on {entry.name}."
                    yield Finding(at=entry.at, detail=detail, model=model.name)
        for what in _unknown(model):
            yield Finding(at=model.at, detail=f"GenAI's config has no word for {what}. Remove it.", model=model.name)


def _unknown(model: "ModelSpec") -> Iterator[str]:
    yield from (f"session: {{{name}: …}}" for name in model.session if name not in OPTIONS)
    level = model.session.get("graph_optimization_level", "all")
    if level not in LEVELS:
        yield f"session: {{graph_optimization_level: {level}}}"
    yield from (f"run: {{{name}: …}}" for name in model.run if name != "config")
    if model.cache:
        yield "cache: true"
