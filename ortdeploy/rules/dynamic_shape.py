"""What it catches: a model input with a shape that is not all fixed, for a provider that needs fixed shapes: QNN,
VSINPU, any NPU of OpenVINO, and CoreML with RequireStaticInputShapes.

Why: such a provider takes no node of the graph. ONNX Runtime runs the whole graph on the CPU, still lists the provider,
and prints nothing. OpenVINO's NPU fails ("to_shape was called on a dynamic shape").

Example:

    providers: [QNN, CPU]      # the graph's input is [batch, 3, 224, 224]

How to fix: fix the dimension with session: {free_dimension_overrides: {batch: 1}} and use that batch size, or export
the model with fixed shapes. cpu_fallback: allow accepts a provider without nodes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts
from ortdeploy.providers.shape_options import read_shape_options
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel, ResolvedProvider

RULE = Rule(id="dynamic-shape", summary="Provider needs fixed shapes")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        if model.spec.cpu_fallback == "allow" or model.facts.problem is not None:
            continue
        loose = _loose_dimensions(model)
        for session in model.sessions if loose else ():
            for provider in session.chain:
                left = _left_loose(provider, loose)
                if left:
                    detail = _detail(provider, left)
                    yield Finding(at=(*session.spec.at, "providers"), detail=detail, model=model.spec.name)


def _left_loose(provider: "ResolvedProvider", loose: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the inputs that a provider cannot take as they are: without those that its options give a shape."""
    known = find_provider(provider.name)
    if known is None:
        return {}
    on_npu = (provider.device is not None and provider.device.kind == "NPU") or (
        "NPU" in str(provider.options.get("device_type", ""))
    )
    asked = any(provider.options[one] is True for one in provider.options if option_facts(known, one).get("x-static"))
    if not (known.static_shapes or asked or (known.short == "OpenVINO" and on_npu)):
        return {}
    given = {one.input for one in read_shape_options(known, provider.options).bounds}
    return {name: dimensions for name, dimensions in loose.items() if name not in given}


def _loose_dimensions(model: "ResolvedModel") -> dict[str, list[str]]:
    """Return input names with their dimensions that nothing fixes: symbols by name, unknown ones as ?."""
    loose = {
        value.name: [str(size or "?") for size in value.tensor.shape or ("?",) if not isinstance(size, int)]
        for value in model.facts.inputs
        if value.kind == "tensor"
    }
    return {name: dimensions for name, dimensions in loose.items() if dimensions}


def _detail(provider: "ResolvedProvider", loose: dict[str, list[str]]) -> str:
    shown = ", ".join(f"{name} ({', '.join(dimensions)})" for name, dimensions in loose.items())
    symbols = dict.fromkeys(size for dimensions in loose.values() for size in dimensions if size != "?")
    remedy = f"Add session: {{free_dimension_overrides: {{{', '.join(f'{name}: 1' for name in symbols)}}}}}"
    advice = f"{remedy} with the sizes that you run" if symbols else "Export the model with fixed shapes"
    return f"{provider.name} takes no node of a graph whose shapes are not fixed, and these are not: {shown}. {advice}."
