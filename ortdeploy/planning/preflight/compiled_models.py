"""Asks the providers of this machine whether they run the models that they have compiled elsewhere."""

from collections.abc import Collection, Iterator

from ortdeploy.deployment.resolved import Deployment, ResolvedModel
from ortdeploy.facts.preflight import CompiledModel
from ortdeploy.runtime.compiled_models import METADATA, ask_compatibility


def ask_about_compiled(
    deployment: Deployment, rejected: Collection[str], *, elsewhere: bool
) -> dict[str, tuple[CompiledModel, ...]]:
    """Return what was answered of each model, by name; nothing of models with errors found by rules.

    `elsewhere`: the plan is for another machine, whose providers cannot be asked.
    """
    asked = (one for one in deployment.models if one.facts.compiled_by and one.spec.name not in rejected)
    found = {} if elsewhere else {model.spec.name: tuple(_answers(model)) for model in asked}
    return {name: answers for name, answers in found.items() if answers}


def _answers(model: ResolvedModel) -> Iterator[CompiledModel]:
    for session in model.usable:
        for provider in session.chain:
            compiled = model.facts.metadata.get(f"{METADATA}{provider.name}")
            if compiled is None or provider.device is None or provider.name not in model.facts.compiled_by:
                continue
            answer = ask_compatibility(provider.device, compiled)
            if answer is not None:
                verdict, here = answer
                name = session.spec.name
                yield CompiledModel(provider=provider.name, session=name, verdict=verdict, compiled=compiled, here=here)
