"""ONNX's operator schemas as facts, and the types of what a graph of op steps gives: onnx's own inference.

Operators of other domains are those whose schemas an ONNX Runtime tells; onnx infers nothing of what they give.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import onnx
from msgspec import Struct, field
from onnx import helper

from ortdeploy.facts.models import InferredShapes
from ortdeploy.facts.operators import OPTIONAL, SINGLE, VARIADIC, OperatorAttribute, OperatorFacts, OperatorParameter
from ortdeploy.graph.op_model import ONNX, onnx_domain, op_model
from ortdeploy.graph.random_ops import ALWAYS_DRAW
from ortdeploy.graph.row_followers import FEW_AND_MORE, following
from ortdeploy.graph.shapes import infer_shapes
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.tensors.types import ELEMENT_NUMBERS, ELEMENT_TYPES, ROWS, InapplicableError, Shape, TensorType

_OPTIONS = {
    onnx.defs.OpSchema.FormalParameterOption.Single: SINGLE,
    onnx.defs.OpSchema.FormalParameterOption.Optional: OPTIONAL,
    onnx.defs.OpSchema.FormalParameterOption.Variadic: VARIADIC,
}
_DTYPES = {f"tensor({word})": name for name, word in ELEMENT_TYPES.items()}
_NAMES = {number: name for name, number in ELEMENT_NUMBERS.items()}
_MARK = re.compile(r"\[\w*Error\]")
"""What onnx writes before each reason; a reason may have brackets of its own, such as of a shape."""
_OPEN_SIZES = (5, 7, 11, 13, 23, 29, 31, 37)
"""Sizes for dimensions that nothing is known of: whether rows stay rows may not depend on them."""


class InferredResult(Struct, frozen=True, kw_only=True):
    """What is known of a result's type before a run, and the axes that count the rows that are fed.

    `follows` is None if that is not known; `is_tensor` is False for sequences and the like.
    """

    tensor: TensorType
    follows: tuple[int, ...] | None
    is_tensor: bool = True


class Operators(Struct, frozen=True):
    """The operators that steps may be: ONNX's own, and `others` by domain and name."""

    others: Mapping[str, Mapping[str, OperatorFacts]] = field(default_factory=dict)

    def domains(self) -> tuple[str, ...]:
        """Return the domains that are known."""
        return (ONNX, *(sorted({schema.domain for schema in _schemas() if schema.domain} | set(self.others))))

    def names(self, domain: str, opset: int) -> Sequence[str]:
        """Return the operators of a domain, as of an operator set."""
        own = {schema.name for schema in _schemas() if schema.domain == onnx_domain(domain)}
        return sorted({name for name in own if self.find(name, domain, opset)} | set(self.others.get(domain, ())))

    def find(self, name: str, domain: str, opset: int) -> OperatorFacts | None:
        """Return what is known of an operator; None if the domain has none of that name, or not any more."""
        try:
            schema = onnx.defs.get_schema(name, opset, onnx_domain(domain))
        except onnx.defs.SchemaError:
            return self.others.get(domain, {}).get(name)
        return None if schema.deprecated else operator_facts(schema, domain)

    def infer(self, graph: OpGraph) -> dict[str, InferredResult]:
        """Return the types of a graph's results. Raises InapplicableError where its values do not go together."""
        model = op_model(graph)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception as error:  # onnx has no one class for what it refuses
            raise InapplicableError(_reason(error)) from error
        follows = {} if graph.by_row else _followers(graph, model)
        return {value.name: _result(value, follows.get(value.name)) for value in inferred.graph.output}


def operator_facts(schema: Any, domain: str) -> OperatorFacts:
    """Return an operator schema of onnx as facts."""
    constraints = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    return OperatorFacts(
        name=schema.name,
        domain=domain,
        since=schema.since_version,
        inputs=tuple(_parameter(one, constraints) for one in schema.inputs),
        outputs=tuple(_parameter(one, constraints) for one in schema.outputs),
        attributes={name: _attribute(one) for name, one in schema.attributes.items()},
        least_inputs=schema.min_input,
        least_outputs=schema.min_output,
        draws=schema.name in ALWAYS_DRAW,
    )


@cache
def _schemas() -> Sequence[Any]:
    return onnx.defs.get_all_schemas_with_history()


def _parameter(one: Any, constraints: Mapping[str, Sequence[str]]) -> OperatorParameter:
    allowed = constraints.get(one.type_str, [one.type_str])
    return OperatorParameter(
        name=one.name,
        variable=one.type_str,
        types=tuple(_DTYPES[text] for text in allowed if text in _DTYPES),
        option=_OPTIONS[one.option],
        alike=one.is_homogeneous,
    )


def _attribute(one: Any) -> OperatorAttribute:
    default = one.default_value
    known = default is not None and default.type != onnx.AttributeProto.UNDEFINED
    value = helper.get_attribute_value(default) if known else None
    return OperatorAttribute(type=one.type.name, required=one.required, default=value)


def _reason(error: Exception) -> str:
    """Return onnx's own words about the last node, without its marks."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return _MARK.split(lines[-1])[-1].strip().rstrip(".") if lines else type(error).__name__


def _result(value: onnx.ValueInfoProto, follows: tuple[int, ...] | None) -> InferredResult:
    kind = value.type.WhichOneof("value")
    if kind not in {None, "tensor_type"}:
        return InferredResult(tensor=TensorType(), follows=None, is_tensor=False)
    tensor = value.type.tensor_type
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return InferredResult(tensor=TensorType(_NAMES.get(tensor.elem_type), shape), follows=follows)


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return ROWS if dim.dim_param == ROWS else None


def _followers(graph: OpGraph, model: onnx.ModelProto) -> dict[str, tuple[int, ...] | None]:
    """Return the axes of each result that count rows: () if none does, None if that is not known.

    Open sizes are left open first. If that leaves the rows open too, they get numbers: what is still open then depends
    on the values, as with Unique, and is no row.
    """
    skeleton = model.SerializeToString()
    found = dict(_compare(*(_inferred(graph, skeleton, rows) for rows in FEW_AND_MORE)))
    if any(axes is None for axes in found.values()):
        few, more = (_inferred(graph, skeleton, rows, filled=True) for rows in FEW_AND_MORE)
        if not few.problem and not more.problem:
            again = dict(_compare(few, more))
            known = {name: shape is not None for name, shape in few.outputs.items()}
            closed = {name: (() if known[name] and axes is None else axes) for name, axes in again.items()}
            found = {name: closed.get(name) if axes is None else axes for name, axes in found.items()}
    return found


def _inferred(graph: OpGraph, skeleton: bytes, rows: int, *, filled: bool = False) -> InferredShapes:
    """Infer with a number of rows. Raises InapplicableError where the graph cannot take that, sizes left open."""
    shapes = {value.name: tuple(_sizes(value.shape, rows, filled=filled)) for value in graph.inputs if value.shape}
    found = infer_shapes(skeleton, shapes)
    if found.problem and not filled:
        raise InapplicableError(found.problem)
    return found


def _sizes(shape: Shape, rows: int, *, filled: bool) -> Iterator[int | None]:
    for axis, size in enumerate(shape):
        if size == ROWS:
            yield rows
        elif isinstance(size, int):
            yield size
        else:
            yield _OPEN_SIZES[axis % len(_OPEN_SIZES)] if filled else None


def _compare(few: InferredShapes, more: InferredShapes) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    for name, shape in few.outputs.items():
        yield name, following(shape, more.outputs.get(name))
