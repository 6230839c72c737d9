"""Gives inputs of a graph the shapes that a manifest declares, where exporters fixed sizes that its nodes do not need.

ONNX Runtime refuses a tensor of another size than the graph declares, whether its nodes could take it or not.
"""

from collections.abc import Mapping

import onnx

from ortdeploy.graph.shapes import infer_shapes
from ortdeploy.graph.walk import inner_graphs
from ortdeploy.tensors.types import Dimension, Shape


def overruling_shapes(model: onnx.ModelProto, declared: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return by name the new shapes of inputs whose fixed sizes are declared otherwise: as another number, or a name.

    None of them has a new shape if the nodes contradict: those are asked with sizes twice as large, and half as large.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    written = {value.name: _sizes(value) for value in model.graph.input if value.name not in constants}
    shapes = {
        name: tuple(map(_overruled, written[name], shape))
        for name, shape in declared.items()
        if written.get(name) and len(written[name]) == len(shape)
    }
    changed = {name: shape for name, shape in shapes.items() if shape != written[name]}
    skeleton = model.SerializeToString() if changed else b""
    for factor in (2, 0.5) if changed else ():
        tried = {
            name: [_tried(*pair, factor) for pair in zip(written[name], shape, strict=True)]
            for name, shape in changed.items()
        }
        if infer_shapes(skeleton, tried).problem is None:
            return changed
    return {}


def give_shapes(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
    """Give inputs their shapes, and forget the sizes of all that is computed from them."""
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.Clear()
            if size is not None:
                setattr(dim, "dim_value" if isinstance(size, int) else "dim_param", size)
    for graph in (model.graph, *inner_graphs(model.graph.node)):
        del graph.value_info[:]
        for value in graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()


def _sizes(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param or None for dim in dims)


def _overruled(size: Dimension, declared: Dimension) -> Dimension:
    return declared if isinstance(size, int) and declared is not None else size


def _tried(size: Dimension, new: Dimension, factor: float) -> int | None:
    """Return a size with which the nodes are asked, never 1, which fits beside any other; None if it is open anyway."""
    if isinstance(new, int):
        return new
    if not isinstance(size, int):
        return None
    found = int(size * factor)
    return found if found > 1 else 2 * size + 1
