"""Where the nodes of a graph would go, from kernel definitions alone: before any session, for any machine.

A provider with a kernel for each node takes what it has a kernel for; one that compiles decides by itself, so nothing
is predicted of a chain that has one. The prediction is of the graph as the file has it: ONNX Runtime fuses and folds
nodes before it assigns them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortdeploy.facts import Kernel, ModelFacts, NodeFacts
from ortdeploy.providers.catalogue import CPU, find_provider

Kernels = Mapping[str, Mapping[str, Sequence[Kernel]]]
"""Kernels by provider and by `domain.operator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Nodes by provider, operator types on the CPU, and nodes that no provider of the chain can run, with the reason.

    Nodes that would be replaced by the body of their function are in none of them.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    cpu_operators: tuple[str, ...] = ()
    impossible: tuple[tuple[NodeFacts, str], ...] = ()


def predict_placement(model: ModelFacts, chain: Sequence[str], kernels: Kernels) -> Prediction | None:
    """Predict for one session's chain, the CPU provider last. None where kernels do not decide, or are not known."""
    providers = [*(name for name in chain if name != CPU and _claims(name)), CPU]
    if any(_compiles(name) for name in providers) or any(name not in kernels for name in providers):
        return None
    counts: dict[str, int] = {}
    on_cpu: list[str] = []
    impossible: list[tuple[NodeFacts, str]] = []
    domains = {operator.rpartition(".")[0] for operator in kernels[CPU]}
    opset = model.opsets.get("ai.onnx", 1)
    takers = [name for name in providers if _oldest_opset(name) <= opset]
    for node in model.nodes:
        taker = next((name for name in takers if not _why_not(node, kernels[name])), None)
        if taker is not None:
            counts[taker] = counts.get(taker, 0) + 1
            on_cpu += [node.operator] if taker == CPU else []
        elif _runs_as_float(node, kernels[CPU]):
            counts[CPU] = counts.get(CPU, 0) + 1
            on_cpu.append(node.operator)
        elif not (node.local or (node.expandable and node.domain in domains)):
            impossible.append((node, _why_not(node, kernels[CPU])))
    return Prediction(nodes=counts, cpu_operators=tuple(dict.fromkeys(on_cpu)), impossible=tuple(impossible))


def _claims(name: str) -> bool:
    provider = find_provider(name)
    return provider is None or provider.claims_nodes


def _oldest_opset(name: str) -> int:
    provider = find_provider(name)
    return provider.oldest_opset if provider else 1


def _compiles(name: str) -> bool:
    provider = find_provider(name)
    return provider is None or provider.compiles


def _why_not(node: NodeFacts, kernels: Mapping[str, Sequence[Kernel]]) -> str:
    """Return why none of a provider's kernels takes a node; nothing where one does."""
    known = kernels.get(f"{node.domain}.{node.operator}", ())
    if not known:
        return "there is no kernel for this operator"
    fitting = [kernel for kernel in known if kernel.first <= node.since <= kernel.last]
    if not fitting:
        return f"there is no kernel for version {node.since} of this operator"
    for kernel in fitting:
        wrong = next(
            (
                f"{node.types[key]} as {key}"
                for key, types in kernel.types.items()
                if key in node.types and node.types[key] not in types
            ),
            None,
        )
        if wrong is None:
            return ""
    return f"no kernel takes {wrong}"


def _runs_as_float(node: NodeFacts, kernels: Mapping[str, Sequence[Kernel]]) -> bool:
    """Tell whether ONNX Runtime would put casts around a float16 node: it does so for the CPU."""
    half = {key: "tensor(float)" if kind == "tensor(float16)" else kind for key, kind in node.types.items()}
    if half == dict(node.types):
        return False
    as_float = NodeFacts(name=node.name, domain=node.domain, operator=node.operator, since=node.since, types=half)
    return not _why_not(as_float, kernels)
