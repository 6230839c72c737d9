"""Makes ONNX Runtime open a deployment's models without their weights, so that a refusal is known before the run.

A success is remembered in the state directory by everything that it depends on. A refusal is not
remembered, because a refused model never runs.
"""

import hashlib
import json
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment, ResolvedModel
from ortdeploy.facts.host import RuntimeFacts
from ortdeploy.facts.models import HOLE
from ortdeploy.facts.preflight import Opening
from ortdeploy.providers.catalogue import CPU
from ortdeploy.providers.options import with_texts
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open
from ortdeploy.state import memo
from ortdeploy.versions import release_numbers, runtime_version

KIND = "opening"


def open_models(
    deployment: Deployment, rejected: Collection[str], state_dir: Path, *, elsewhere: bool
) -> dict[str, Opening]:
    """Return the outcome of opening each model, by name; models with errors found by rules are left out.

    `elsewhere`: the plan is for another machine.
    """
    tells_kernels = has_kernels_of(deployment.facts.runtime, elsewhere=elsewhere)
    models = [
        model
        for model in deployment.models
        if model.facts.problem is None and model.usable and model.spec.name not in rejected
    ]
    found = {}
    unknown: dict[str, tuple[ResolvedModel, str]] = {}
    for model in models:
        on_cpu = tells_kernels and is_on_cpu(model)
        key = _key(model, deployment, on_cpu=on_cpu, elsewhere=elsewhere)
        if memo.get(state_dir, KIND, key) is not None:
            found[model.spec.name] = Opening(with_kernels=on_cpu)
        else:
            unknown[model.spec.name] = model, key
    tried = _try([model for model, _ in unknown.values()], deployment, elsewhere=elsewhere)
    found.update(tried)
    for name, opening in tried.items():
        if opening.refusal is None:
            memo.put(state_dir, KIND, unknown[name][1], True)
    return found


def _try(models: Sequence[ResolvedModel], deployment: Deployment, *, elsewhere: bool) -> dict[str, Opening]:
    """Open models; nothing is proven if there is no disk space for their outlines."""
    if not models:
        return {}
    with ExitStack() as stack, suppress(OSError):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortdeploy-")))
        sizes = [model.facts.outline.largest for model in models if model.facts.outline]
        with (folder / HOLE).open("wb") as hole:
            hole.truncate(max(sizes, default=0))
        requests = []
        for number, model in enumerate(models):
            path = folder / f"{number}.onnx"
            if model.facts.outline is not None:
                path.write_bytes(model.facts.outline.model)
            requests.append(_request(model, path, deployment, elsewhere=elsewhere))
        names = [model.spec.name for model in models]
        return {name: one for name, one in zip(names, try_to_open(requests), strict=True) if one is not None}
    return {}


def _request(model: ResolvedModel, outline: Path, deployment: Deployment, *, elsewhere: bool) -> TrialRequest:
    runtime = deployment.facts.runtime
    return TrialRequest(
        outline=str(outline) if model.facts.outline is not None else None,
        file=model.facts.path,
        on_cpu=has_kernels_of(runtime, elsewhere=elsewhere) and is_on_cpu(model),
        options=with_texts(model.session),
        extensions=model.facts.uses_extensions,
        domains=sorted({node.domain for node in model.facts.nodes if not node.local}),
        opsets=model.facts.opsets,
        elsewhere=runtime.version if elsewhere else None,
    )


def is_on_cpu(model: ResolvedModel) -> bool:
    """Return whether a session of the model is the CPU provider's alone."""
    return any({one.name for one in session.chain} == {CPU} for session in model.usable)


def has_kernels_of(runtime: RuntimeFacts, *, elsewhere: bool) -> bool:
    """Return whether this machine's CPU provider tells which kernels that of an ONNX Runtime has.

    If those of the one `elsewhere` are not listed, it does unless that is newer: a type that has no kernel here had
    none before, and architectures differ in kernels of float16 alone, around which casts are put.
    """
    is_newer = release_numbers(runtime.version) > release_numbers(runtime_version())
    return not elsewhere or not (CPU in runtime.kernels or is_newer)


def _key(model: ResolvedModel, deployment: Deployment, *, on_cpu: bool, elsewhere: bool) -> str:
    """Return one digest of everything that an opening depends on."""
    depends = [
        model.sha256,
        deployment.facts.runtime.version,
        with_texts(model.session),
        on_cpu,
        elsewhere,
    ]
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()
