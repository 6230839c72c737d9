"""Resolves op steps: the operator's schema, types of values, constants, and the graph that they make.

What is wrong with a step is said at its place: a name that its operator does not have, types that do not go together,
rows that would be mixed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.deployment.op_constants import ConstantError, attribute_value, constant_type
from ortdeploy.deployment.op_names import InferredType, KnownOperators, OpStepError, check_names, find_operator
from ortdeploy.facts.data import ConstantArray
from ortdeploy.facts.operators import DYNAMIC_QUANTIZATION, VARIADIC, OperatorFacts, OperatorParameter
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.op_steps import ONNX, OpSpec, wire_name
from ortdeploy.plan.op_graph import OpConstant, OpGraph, OpNode
from ortdeploy.plan.pipeline import PlannedValue
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.types import FLOATING, INTEGERS, ROWS, InapplicableError, Shape, TensorType, format_shape

_AXES = ("axis", "axes", "time_axis")
"""Attributes, and inputs with constants, that say along which axes of its first input an operator works."""

_OF_SIZES = ("Shape", "Size")
_BY_ROW = "With by_row: true it runs for each row by itself, without axis 0"
_SUPPRESSION = "NonMaxSuppression"


class OpStep(Struct, frozen=True, kw_only=True):
    """A step with the graph of those that it goes on from, itself the last, and the types of its own results.

    `whole` are results that are not by row: what follows from sizes or constants alone, which only further op steps may
    take.
    """

    graph: OpGraph
    made: Mapping[str, TensorType]
    whole: frozenset[str] = frozenset()

    def makes(self, name: str) -> bool:
        """Return whether a value is made in its graph."""
        return any(value.name == name for value in self.graph.outputs)

    def goes_on_from(self, other: "OpStep | None") -> bool:
        """Return whether it stands behind another step in one line: its graph is that of the other one, and more."""
        return other is not None and self.graph.nodes[: len(other.graph.nodes)] == other.graph.nodes


def type_op(
    spec: OpSpec,
    values: Mapping[str, TensorType],
    operators: KnownOperators,
    before: OpStep | None = None,
    whole: frozenset[str] = frozenset(),
) -> OpStep:
    """Join one step with the values that reach it, rows first. Raises OpStepError.

    `before` is the step that it stands behind, if they can be one graph; `whole` are the values that are not by row.
    """
    facts = find_operator(spec, operators)
    check_names(spec, facts)
    _check_opset(spec, before)
    types = {place: _type_of(spec, place, name, values) for place, name in spec.wires()}
    variables = _bind(spec, facts, types)
    step = _Building(spec, facts, types, variables, before)
    graph = step.graph()
    from_sizes = spec.operator in _OF_SIZES or all(name in whole for _, name in spec.wires())
    if not spec.by_row and not from_sizes:
        _check_scale(spec)
        _check_axes(spec, facts, types, whole)
    inferred = _inferred(step, graph, operators)
    not_by_row = frozenset(_not_by_row(spec, inferred, may_be=from_sizes))
    made = {name: _made(step, name, inferred[name], by_row=name not in not_by_row) for _, name in spec.results()}
    typed = {value.name: value for value in graph.outputs} | {
        name: PlannedValue(name=name, dtype=one.dtype, shape=_inside(one.shape, spec), layout=None)
        for name, one in made.items()
    }
    return OpStep(
        graph=replace(graph, outputs=tuple(typed.values())),
        made=made,
        whole=(before.whole if before else frozenset()) | not_by_row,
    )


def _check_opset(spec: OpSpec, before: OpStep | None) -> None:
    """Check that steps in a line are of one operator set. Raises OpStepError."""
    before_it = before.graph.opsets.get(spec.domain, spec.opset) if before else spec.opset
    if before_it != spec.opset:
        detail = f"The steps before it are of operator set {before_it} of {spec.domain}; steps in a line are of one. "
        detail += f"Write opset: {before_it}, or the same other one in all of them."
        raise OpStepError((*spec.at, "opset"), detail)


def _inferred(step: "_Building", graph: OpGraph, operators: KnownOperators) -> Mapping[str, InferredType]:
    """Return what ONNX infers of the results. Raises OpStepError if it refuses the inputs."""
    spec = step.spec
    try:
        return operators.infer(graph)
    except InapplicableError as error:
        told = _sentence(str(error))
        named = told if told.startswith(f"{spec.operator} (") else f"{spec.operator}: {told}"
        raise OpStepError((*spec.at, "in"), f"{named} It gets {', '.join(step.given())}.") from error


def _not_by_row(spec: OpSpec, inferred: Mapping[str, InferredType], *, may_be: bool) -> Iterator[str]:
    """Yield the results that do not have one row for each that comes in. Raises OpStepError unless they `may_be`."""
    for place, name in spec.results():
        found = inferred[name]
        if not found.is_tensor:
            raise OpStepError((*spec.at, "out"), f"${name} of {spec.operator} is no tensor; values are tensors.")
        if not spec.by_row and found.follows is not None and found.follows != (0,):
            if not may_be:
                raise OpStepError(_out_at(spec, place), _mixing(spec, name, found))
            yield name


def _made(step: "_Building", name: str, found: InferredType, *, by_row: bool) -> TensorType:
    """Return the type of a result, with the rows in front if it is `by_row`."""
    shape = _rows(found.tensor.shape, step.spec) if by_row else found.tensor.shape
    return TensorType(found.tensor.dtype or step.dtype_of(name), shape)


def _rows(shape: Shape | None, spec: OpSpec) -> Shape | None:
    """Return the shape of a result with the rows in front."""
    if shape is None:
        return None
    return (ROWS, *(shape if spec.by_row else shape[1:]))


def _inside(shape: Shape | None, spec: OpSpec) -> Shape | None:
    """Return the shape of a value as the graph of a step has it."""
    return shape[1:] if shape is not None and spec.by_row else shape


def _mixing(spec: OpSpec, name: str, found: InferredType) -> str:
    shape, follows = found.tensor.shape, found.follows
    if follows and 0 in follows:
        why = f"axes {' and '.join(map(str, follows))} both count rows: each row is put beside every other one"
    elif follows:
        why = f"its rows are at axis {follows[0]}, and values have them at axis 0"
    else:
        why = "it has not one row for each that comes in"
    return f"${name} of {spec.operator} is {format_shape(shape)}: {why}. {_BY_ROW}."


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _out_at(spec: OpSpec, place: str) -> Path:
    name, _, index = place.partition(".")
    return (*spec.at, "out", *((name,) if name else ()), *((int(index),) if index else ()))


def _in_at(spec: OpSpec, place: str) -> Path:
    name, _, index = place.partition(".")
    return (*spec.at, "in", name, *((int(index),) if index else ()))


def _type_of(spec: OpSpec, place: str, name: str, values: Mapping[str, TensorType]) -> TensorType:
    tensor = values[name]
    if tensor.dtype is None:
        detail = (
            f"The element type of ${name} is not known before the run. Add a step before: {_cast(name, 'float32')}."
        )
        raise OpStepError(_in_at(spec, place), detail)
    return tensor


def _cast(name: str, dtype: str) -> str:
    return f"{{op: Cast, in: {{input: ${name}}}, attributes: {{to: {dtype}}}, out: {name}_{dtype}}}"


def _variable(parameter: OperatorParameter, place: str) -> str:
    """Return what must be of one type: values of a variadic input that may differ are each their own."""
    return parameter.variable if parameter.alike else f"{parameter.variable} {place}"


def _bind(spec: OpSpec, facts: OperatorFacts, types: Mapping[str, TensorType]) -> dict[str, str]:
    """Return the element type of each type variable, as the values have it. Raises OpStepError if they differ."""
    parameters = {one.name: one for one in facts.inputs}
    wires = dict(spec.wires())
    bound: dict[str, str] = {}
    by: dict[str, str] = {}
    for place, tensor in types.items():
        parameter, have = parameters[place.partition(".")[0]], tensor.dtype or ""
        variable = _variable(parameter, place)
        wanted = bound.setdefault(variable, have) if have in parameter.types else None
        first = by.setdefault(variable, place)
        if wanted == have:
            continue
        allowed = [wanted] if wanted else list(parameter.types)
        reason = f"takes {wanted}, as {first} has" if wanted else f"takes {_one_of(allowed)}"
        cast = _cast(wires[place], next((name for name in ("float32", "int64") if name in allowed), allowed[0]))
        if wanted in INTEGERS and have in FLOATING:  # the fraction is meant to stay
            cast = _cast(wires[first], have)
        detail = (
            f'Input "{place}" of {spec.operator} {reason}, and ${wires[place]} is {have}. Add a step before: {cast}.'
        )
        raise OpStepError(_in_at(spec, place), detail)
    return bound


def _one_of(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else f"{', '.join(types[:-1])} or {types[-1]}"


def _check_scale(spec: OpSpec) -> None:
    """Refuse what quantizes by the largest value of all rows: its shapes look as if rows were independent."""
    if spec.operator in DYNAMIC_QUANTIZATION:
        detail = (
            f"{spec.operator} takes its scale from all rows of a batch, so each row changes those beside it. {_BY_ROW}."
        )
        raise OpStepError((*spec.at, "op"), detail)


def _check_axes(spec: OpSpec, facts: OperatorFacts, types: Mapping[str, TensorType], whole: frozenset[str]) -> None:
    """Refuse what works along the rows of its first input."""
    first = next((place for place in types if place.partition(".")[0] == facts.inputs[0].name), None)
    if first is None or types[first].shape is None or dict(spec.wires())[first] in whole:
        return
    rank = len(types[first].shape or ())
    of_rows = {0} if spec.operator == "Unsqueeze" else {0, -rank}  # whose axes count in what it gives
    for name in _AXES:
        where = "in" if name in spec.inputs else "attributes"
        written = spec.inputs.get(name, spec.attributes.get(name))
        if written is None and name in facts.attributes:
            written = facts.attributes[name].default
        axes = written if isinstance(written, list) else [written]
        if any(isinstance(axis, int) and not isinstance(axis, bool) and axis in of_rows for axis in axes):
            how = f"along axis 0, which counts the rows ({name}: {written})"
            detail = f"{spec.operator} works {how}. {_BY_ROW}; a row's own axes count from 1 otherwise."
            raise OpStepError((*spec.at, where, name), detail)


class _Building(Struct):
    """The node of one step, its constants, and the graph that it becomes the last of."""

    spec: OpSpec
    facts: OperatorFacts
    types: Mapping[str, TensorType]
    variables: dict[str, str]
    before: OpStep | None
    constants: list[OpConstant] = field(default_factory=list)
    nodes: list[OpNode] = field(default_factory=list)

    def graph(self) -> OpGraph:
        """Return the graph with this step."""
        if self.before is None:
            earlier = OpGraph(nodes=(), constants=(), inputs=(), outputs=(), opsets={}, by_row=self.spec.by_row)
        else:
            earlier = self.before.graph
        self._make_nodes()
        made = {value.name for value in earlier.outputs} | {value.name for value in earlier.inputs}
        reaching = {name: self.types[place] for place, name in self.spec.wires() if name not in made}
        results = (
            PlannedValue(name=n, dtype=self.dtype_of(n), shape=None, layout=None) for _, n in self.spec.results()
        )
        return OpGraph(
            nodes=(*earlier.nodes, *self.nodes),
            constants=(*earlier.constants, *self.constants),
            inputs=(*earlier.inputs, *(self._input(name, tensor) for name, tensor in reaching.items())),
            outputs=(*earlier.outputs, *results),
            opsets={**earlier.opsets, self.spec.domain: self.spec.opset},
            by_row=self.spec.by_row,
        )

    def given(self) -> Iterator[str]:
        """Yield what the step takes, values and constants, in words."""
        for place, name in self.spec.wires():
            tensor = self.types[place]
            yield f"${name} {tensor.dtype} {format_shape(_inside(tensor.shape, self.spec))}"
        _, first = next(self.spec.results())
        for one in self.constants:
            place, array = one.name.removeprefix(f"{first}."), as_array(one.content, one.dtype, None)
            yield f"{place} {one.dtype} {format_shape(array.shape)}"

    def _input(self, name: str, tensor: TensorType) -> PlannedValue:
        return PlannedValue(name=name, dtype=tensor.dtype, shape=_inside(tensor.shape, self.spec), layout=tensor.layout)

    def dtype_of(self, result: str) -> str | None:
        """Return the element type of a result, as the types of the inputs fix it."""
        place = next(place for place, name in self.spec.results() if name == result)
        parameters = {one.name: one for one in self.facts.outputs}
        parameter = parameters.get(place.partition(".")[0], self.facts.outputs[0])
        if len(parameter.types) == 1:
            return parameter.types[0]
        return self.variables.get(parameter.variable)

    def _make_nodes(self) -> None:
        inputs = [name for parameter in self.facts.inputs for name in self._arguments(parameter)]
        outputs = [name for parameter in self.facts.outputs for name in self._results(parameter)]
        named = next(name for name in outputs if name)
        least = self.facts.least_outputs
        outputs = [name or (f"{named}.{place}" if place < least else "") for place, name in enumerate(outputs)]
        made = OpNode(
            operator=self.spec.operator,
            domain=self.spec.domain,
            inputs=_trimmed(inputs),
            outputs=_trimmed(outputs),
            attributes=dict(self._attributes()),
        )
        if not self.facts.inferable:
            own = {name for _, name in self.spec.results()}
            made = replace(made, made=tuple(self.dtype_of(name) if name in own else None for name in made.outputs))
        is_suppression = (self.spec.operator, self.spec.domain) == (_SUPPRESSION, ONNX)
        self.nodes = list(self._of_one_row(made)) if is_suppression and self.spec.by_row else [made]

    def _of_one_row(self, node: OpNode) -> Iterator[OpNode]:
        """Yield NonMaxSuppression on one row: with the leading 1 that it takes, without the column of batch indices."""
        first, prefix = node.outputs[0], f"{node.outputs[0]}."
        axis = self._constant(f"{prefix}axis", "int64", [0])
        for name in node.inputs[:2]:
            yield OpNode(
                operator="Unsqueeze", domain=ONNX, inputs=(name, axis), outputs=(f"{prefix}{name}",), attributes={}
            )
        fed = (*(f"{prefix}{name}" for name in node.inputs[:2]), *node.inputs[2:])
        yield replace(node, inputs=fed, outputs=(f"{prefix}selected",))
        ends = [self._constant(f"{prefix}{name}", "int64", [at]) for name, at in (("from", 1), ("to", 3), ("along", 1))]
        yield OpNode(
            operator="Slice", domain=ONNX, inputs=(f"{prefix}selected", *ends), outputs=(first,), attributes={}
        )

    def _constant(self, name: str, dtype: str, content: Any) -> str:
        self.constants.append(OpConstant(name=name, dtype=dtype, content=content))
        return name

    def _arguments(self, parameter: OperatorParameter) -> Iterator[str]:
        """Yield the names of what reaches an input: values, and constants that are made of what is written."""
        if parameter.name not in self.spec.inputs:
            yield from () if parameter.option == VARIADIC else ("",)
            return
        written = self.spec.inputs[parameter.name]
        several = parameter.option == VARIADIC
        for index, one in enumerate(written if several else [written]):
            place = f"{parameter.name}.{index}" if several else parameter.name
            yield wire_name(one) or self._written(parameter, place, one)

    def _written(self, parameter: OperatorParameter, place: str, content: Any) -> str:
        """Return the name of a constant, of the type that its neighbours have."""
        variable = _variable(parameter, place)
        _, first = next(self.spec.results())
        try:
            dtype = constant_type(content, parameter.types, self.variables.get(variable))
            content = content.content if isinstance(content, ConstantArray) else content
            as_array(content, dtype, None)
        except (ConstantError, ValueError, OverflowError) as error:
            detail = f'Input "{place}" of {self.spec.operator}: {_sentence(str(error))}{self._advice(variable)}'
            raise OpStepError(_in_at(self.spec, place), detail) from error
        self.variables.setdefault(variable, dtype)
        return self._constant(f"{first}.{place}", dtype, content)

    def _advice(self, variable: str) -> str:
        """Return how the neighbour of a constant that it has no place beside becomes a floating one."""
        parameters = {one.name: one for one in self.facts.inputs}
        for place, name in self.spec.wires():
            one = parameters[place.partition(".")[0]]
            if one.variable == variable and self.variables.get(variable) in INTEGERS and "float32" in one.types:
                return f" Add a step before: {_cast(name, 'float32')}."
        return ""

    def _results(self, parameter: OperatorParameter) -> Iterator[str]:
        """Yield the names of an output's results; "" for one that nobody names."""
        written = self.spec.outputs.get(parameter.name)
        if written is None and parameter is self.facts.outputs[0]:
            written = self.spec.outputs.get("")
        if isinstance(written, list):
            yield from written
        else:
            yield written or ""

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for name, written in self.spec.attributes.items():
            yield (
                name,
                attribute_value(name, written, self.facts.kind_of(name, written) or ""),
            )  # as check_names has held


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without those that are left out at the end."""
    last = max((index for index, name in enumerate(names) if name), default=-1)
    return tuple(names[: last + 1])
