"""Predicts the providers of a graph's nodes from kernel definitions: before any session, for any machine.

A provider with a kernel for each node takes what it has a kernel for; one that compiles decides by itself, so nothing
is predicted of a chain that has one. The prediction is of the graph as the file has it: ONNX Runtime fuses and folds
nodes before it assigns them.

The choice of kernels is imitated; it was compared with the versions of `versions.TESTED_WITH`. Of another version,
findings that rest on it are assumed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.facts.host import EXTENSION_DOMAINS, Kernel
from ortdeploy.facts.models import ModelFacts, NodeFacts
from ortdeploy.providers.catalogue import CPU, find_provider

Attributes = Mapping[str, Mapping[int, Collection[str]]]
"""The attributes that ONNX Runtime knows, by `domain.operator` and version."""

Kernels = Mapping[str, Mapping[str, Sequence[Kernel]]]
"""Kernels by provider and by `domain.operator`."""


class Prediction(Struct, frozen=True, kw_only=True):
    """Nodes by provider, operator types on the CPU, and nodes that no provider of the chain can run, with the reason.

    Nodes that would be replaced by the body of their function are in none of them.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    cpu_operators: tuple[str, ...] = ()
    impossible: tuple[tuple[NodeFacts, str], ...] = ()


Predict = Callable[[ModelFacts, Sequence[str], Kernels, Attributes | None], Prediction | None]
"""What predicts: `predict_placement`, or what remembers what that said."""

_REFUSED_VALUES = {(f"ai.onnx.{operator}", "layout"): "1" for operator in ("GRU", "LSTM", "RNN")}
"""Values of attributes that kernels of the CPU provider refuse (deep_cpu_gru.h, lstm_base.h, rnn.h)."""

_OPEN = 2147483647

_HALF = frozenset(("tensor(bfloat16)", "tensor(float16)"))
"""Types of inputs that ONNX Runtime does not bring to the CPU for the sake of sizes."""


def predict_placement(
    model: ModelFacts, chain: Sequence[str], kernels: Kernels, attributes: Attributes | None = None
) -> Prediction | None:
    """Predict for one session's chain, the CPU provider last. None if kernels do not decide, or are not known."""
    providers = [*(name for name in chain if name != CPU and _claims(name)), CPU]
    if any(_compiles(name) for name in providers) or any(name not in kernels for name in providers):
        return None
    opset = model.opsets.get("ai.onnx", 1)
    placer = _Placer([name for name in providers if _oldest_opset(name) <= opset], kernels, attributes or {})
    counts: dict[str, int] = {}
    on_cpu: list[str] = []
    impossible: list[tuple[NodeFacts, str]] = []
    for node in model.nodes:
        taker, refusal = placer.place(node)
        if refusal:
            impossible.append((node, refusal))
        elif taker is not None:
            counts[taker] = counts.get(taker, 0) + 1
            on_cpu += [node.operator] if taker == CPU else []
    return Prediction(
        nodes=counts,
        cpu_operators=tuple(dict.fromkeys(on_cpu)),
        impossible=tuple(impossible),
    )


class _Placer:
    """Places single nodes on the providers of one chain."""

    def __init__(self, takers: Sequence[str], kernels: Kernels, attributes: Attributes) -> None:
        self._takers = takers
        self._kernels = kernels
        self._attributes = attributes
        self._domains = {operator.rpartition(".")[0] for operator in kernels[CPU]}

    def place(self, node: NodeFacts) -> tuple[str | None, str]:
        """Return the provider that takes a node, none if its function's body stands in; and why none can."""
        if node.domain in EXTENSION_DOMAINS:
            return CPU, ""
        node = self._as_known(node)
        taker = next((name for name in self._takers if self._takes(name, node)), None)
        if taker is None and _runs_as_float(node, self._kernels[CPU]):
            taker = CPU
        refusal = self._refused_attribute(node, on_cpu=taker == CPU)
        if refusal or taker is not None or node.local:
            return taker, refusal
        if node.expandable and node.domain in self._domains:
            return None, self._refused_body(node)
        return None, _why_not(node, self._kernels[CPU])

    def _takes(self, name: str, node: NodeFacts) -> bool:
        """Return whether a provider takes a node; one with a memory of its own leaves what has to do with sizes."""
        if _why_not(node, self._kernels[name]):
            return False
        fed = [node.types.get("T1")] if node.operator == "Cast" else node.types.values()
        stays = node.of_sizes and _has_own_memory(name) and not _HALF.intersection(fed)
        return not stays or bool(_why_not(node, self._kernels[CPU]))

    def _as_known(self, node: NodeFacts) -> NodeFacts:
        """Return a node with the version that this runtime's schemas give it: the onnx package may know later ones."""
        known = self._attributes.get(f"{node.domain}.{node.operator}", {})
        since = max((version for version in known if version <= node.since), default=node.since)
        return node if since == node.since else replace(node, since=since)

    def _refused_attribute(self, node: NodeFacts, *, on_cpu: bool) -> str:
        """Return why an attribute is refused: its operator has none of that name, or no kernel for its value."""
        operator = f"{node.domain}.{node.operator}"
        known = self._attributes.get(operator, {}).get(node.since)
        for name, value in sorted(node.attributes.items()):
            if known is not None and name not in known:
                return f"this ONNX Runtime knows no attribute {name} of this operator"
            if on_cpu and _REFUSED_VALUES.get((operator, name)) == value:
                return f"the CPU provider has no kernel for {name} = {value}"
        return ""

    def _refused_body(self, node: NodeFacts) -> str:
        for inner in node.body:
            _, refusal = self.place(inner)
            if refusal:
                return f"its function needs {inner.operator} {inner.since}, and {refusal}"
        return ""


def _has_own_memory(name: str) -> bool:
    provider = find_provider(name)
    return provider is not None and provider.memory is not None


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
    """Return why none of a provider's kernels takes a node; nothing if one does."""
    known = kernels.get(f"{node.domain}.{node.operator}", ())
    if not known:
        return "there is no kernel for this operator"
    fitting = [kernel for kernel in known if _implements(kernel, node.since)]
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


def _implements(kernel: Kernel, since: int) -> bool:
    """Return whether a kernel is for a version of its operator: an open range stands for its first version alone.

    ONNX Runtime does not know of it whether the kernel fits what came later (kernel_registry.cc, VerifyKernelDef).
    """
    return kernel.first == since or (kernel.last != _OPEN and kernel.first <= since <= kernel.last)


def _runs_as_float(node: NodeFacts, kernels: Mapping[str, Sequence[Kernel]]) -> bool:
    """Return whether ONNX Runtime would put casts around a float16 node: it does so for the CPU."""
    half = {key: "tensor(float)" if kind == "tensor(float16)" else kind for key, kind in node.types.items()}
    if half == dict(node.types):
        return False
    as_float = NodeFacts(name=node.name, domain=node.domain, operator=node.operator, since=node.since, types=half)
    return not _why_not(as_float, kernels)
