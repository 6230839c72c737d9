"""What it catches: two models whose provider keeps what it compiled in one folder, under names that do not tell them
apart.

Why: TensorRT names an engine by the model's file name and by names in the graph, not by the weights. A model whose
names are the same, such as another training of the same network, gets the engine of the first one, and its results are
those of the first one or wrong altogether. Nothing says so.

Example:

    models:
      a: {path: a/model.onnx, providers: [{provider: TensorRT, options: {trt_engine_cache_enable: true,
        trt_engine_cache_path: engines}}]}
      b: {path: b/model.onnx, providers: [{provider: TensorRT, options: {trt_engine_cache_enable: true,
        trt_engine_cache_path: engines}}]}

How to fix: give each model a folder of its own, or another trt_engine_cache_prefix. If a model is replaced by another
training, clear its folder.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ortdeploy.providers.catalogue import find_provider, full_name
from ortdeploy.providers.options import model_caches
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel
    from ortdeploy.manifest.spec import ProviderSpec

RULE = Rule(id="shared-engine-cache", summary="Two models share a cache of compiled models")


def check(deployment: "Deployment") -> Iterator[Finding]:
    first: dict[Any, ResolvedModel] = {}
    for model in deployment.models:
        if model.facts.problem is not None:
            continue
        for entry in (entry for session in model.sessions for entry in session.written):
            for option, named in _caches(model, entry):
                other = first.setdefault((full_name(entry.name), option, *named), model)
                if other.facts.sha256 != model.facts.sha256:
                    detail = (
                        f'{entry.name} keeps what it compiles of "{model.spec.name}" under the same names as of '
                        f'"{other.spec.name}", and one would get what was compiled of the other. Give each model '
                        f"another {option}."
                    )
                    at = (*entry.at, "options", option) if option in entry.options else entry.at
                    yield Finding(at=at, detail=detail, model=model.spec.name)


def _caches(model: "ResolvedModel", entry: "ProviderSpec") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the option of each cache of a chain's entry, and all by which the provider names the files in it."""
    for option, cache in model_caches(find_provider(entry.name)).items():
        folder, switch, told = entry.options.get(option), cache.get("when"), cache.get("metadata")
        is_on = folder is not None if switch is None else entry.options.get(switch)
        if not is_on or (told is not None and told not in model.facts.metadata):
            continue
        graph = tuple(tuple(value.name for value in values) for values in (model.facts.inputs, model.facts.outputs))
        apart = [entry.options.get(one) for one in cache.get("apart", ())]
        yield option, (os.path.normpath(folder or "."), *apart, graph if told is None else model.facts.metadata[told])
