"""What it catches: a model quantized to uint8 activations and int8 weights, on an x86 processor without VNNI.

Why: on such a processor, ONNX Runtime adds two products of 8 bits in 16 bits. The sum can saturate, and then the
numbers are silently wrong. Processors with AVX512-VNNI, AVX-VNNI or AMX add in 32 bits, and so do all Arm processors.

Source: onnxruntime's page on quantization, "When and why do I need to try U8U8?" and "reduce_range".

Example: a QDQ model made with activation_type QUInt8 and weight_type QInt8, on a Haswell box.

How to fix: session: {config: {session.x64quantprecision: true}}, which is exact and slower; or quantize with
reduce_range, or to uint8 weights.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.providers.catalogue import CPU
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel
    from ortdeploy.facts.host import MachineFacts
    from ortdeploy.facts.models import NodeFacts

RULE = Rule(
    id="saturating-int8",
    summary="Quantized products may saturate on this processor",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)

_EXACT = {"amx_int8", "avx512_vnni", "avx_vnni"}
_PRECISE = "session.x64quantprecision"
_PRODUCTS = {
    "ConvInteger": ("x", "w"),
    "MatMulInteger": ("A", "B"),
    "QLinearConv": ("x", "w"),
    "QLinearMatMul": ("a", "b"),
}
_UINT8, _INT8 = "tensor(uint8)", "tensor(int8)"


def check(deployment: "Deployment") -> Iterator[Finding]:
    if not _saturates(deployment.facts.machine):
        return
    for model in deployment.models:
        on_cpu = any(provider.name == CPU for session in model.usable for provider in session.chain)
        precise = model.spec.session.get("config", {}).get(_PRECISE) in {True, "1"}
        if on_cpu and not precise and _mixes(model):
            detail = (
                f'Model "{model.spec.name}" multiplies uint8 by int8, and this processor has no VNNI: sums of products '
                f"may saturate, and results be wrong. Set session: {{config: {{{_PRECISE}: true}}}}, or quantize with "
                "reduce_range."
            )
            yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)


def _saturates(machine: "MachineFacts | None") -> bool:
    if machine is None or machine.architecture not in {"x86_64", "AMD64"}:
        return False
    flags = set(machine.cpu_flags)
    return "avx2" in flags and not flags & _EXACT


def _mixes(model: "ResolvedModel") -> bool:
    """Return whether a node takes uint8 and int8 itself, or dequantized inputs of both are about."""
    nodes = model.facts.nodes
    kinds = {node.types.get("x") for node in nodes if node.operator == "DequantizeLinear"}
    return {_UINT8, _INT8} <= kinds or any(map(_is_mixed_product, nodes))


def _is_mixed_product(node: "NodeFacts") -> bool:
    names = _PRODUCTS.get(node.operator)
    return names is not None and tuple(node.types.get(name) for name in names) == (_UINT8, _INT8)
