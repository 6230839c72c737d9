"""What it catches: a job whose adapter was declared for another model than the job's.

Why: an adapter replaces inputs of one graph. On another graph, ONNX Runtime fails at the first run with "Invalid input
name". If names happen to agree, the results are wrong.

Example:

    adapters: {french: {path: french.onnx_adapter, model: translator}}
    jobs: {read: {model: digits, adapter: french, …}}

How to fix: let the job run the adapter's model, or name an adapter of the job's model.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="adapter-for-another-model", summary="Adapter belongs to another model")


def check(spec: "Spec") -> Iterator[Finding]:
    models = {model.name for model in spec.models}
    for use in (use for use in spec.adapter_uses() if use.model in models):
        for adapter in (spec.adapter(name) for name in use.names):
            if adapter is None or adapter.model == use.model:
                continue
            detail = (
                f'{use.who} runs model "{use.model}" with adapter "{adapter.name}", which was made for '
                f'"{adapter.model}". Name an adapter of "{use.model}", or run "{adapter.model}".'
            )
            yield Finding(at=use.at, detail=detail, job=use.job, model=use.model)
