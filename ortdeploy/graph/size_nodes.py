"""Finds the nodes that compute with sizes, which ONNX Runtime leaves on the CPU although a GPU's provider has kernels.

Shape and Size give their results in the CPU's memory. A node whose inputs are such results, and small constants, would
copy them to the GPU and back; ONNX Runtime puts it on the CPU, and so on with what it gives (GetCpuPreferredNodes in
fallback_cpu_capability.cc, used by CUDA, DirectML and WebGPU). Where the provider's own kernel takes the input from the
CPU's memory, as Reshape does its sizes, the node stays.
"""

from collections.abc import Collection, Iterator
from math import prod

import onnx

_OF_SHAPES = {"Shape", "Size"}
_SMALL = 100
"""Elements of a constant that is as good on the CPU (kSmallInitializerThreshold)."""

_ON_CPU = {
    "Clip": (1, 2), "ConstantOfShape": (0,), "CumSum": (1,), "Expand": (1,), "If": (0,), "Loop": (0, 1),
    "OneHot": (1, 2), "Pad": (1, 2, 3), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,),
    "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
"""Inputs that kernels of CUDA take from the CPU's memory (InputMemoryType(OrtMemTypeCPUInput, …) of its kernels)."""


def small_constants(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of a graph's constants of few elements; those in nodes too, which ONNX Runtime takes out."""
    yield from (tensor.name for tensor in graph.initializer if prod(tensor.dims) <= _SMALL)
    for node in graph.node:
        if node.op_type == "Constant" and all(
            one.name != "value" or prod(one.t.dims) <= _SMALL for one in node.attribute
        ):
            yield from node.output


def nodes_of_sizes(graph: onnx.GraphProto, small: Collection[str]) -> set[int]:
    """Return the places of the nodes of one graph that compute with sizes; `small` are the small constants in sight."""
    on_cpu: set[str] = set()
    found: set[int] = set()
    for place, node in enumerate(graph.node):
        if node.op_type in _OF_SHAPES:
            on_cpu.update(node.output)
            continue
        fed = [(index, name) for index, name in enumerate(node.input) if name]
        taken = _ON_CPU.get(node.op_type, ())
        computes = any(name in on_cpu for _, name in fed)
        if computes and all(name in small or (name in on_cpu and index not in taken) for index, name in fed):
            found.add(place)
            on_cpu.update(node.output)
    return found
