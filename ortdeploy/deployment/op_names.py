"""Checks the names of an op step against its operator's schema; an unknown name gets the nearest known one."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from ortdeploy.deployment.op_constants import ConstantError, attribute_value
from ortdeploy.diagnostics import did_you_mean, nearest
from ortdeploy.facts.host import EXTENSION_DOMAINS, EXTENSIONS
from ortdeploy.facts.operators import SINGLE, VARIADIC, OperatorFacts, OperatorParameter
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.op_steps import ONNX, OPSET, OpSpec, wire_name
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.shell import pip_install
from ortdeploy.tensors.types import TensorType

_UNWRITABLE = {"GRAPH", "GRAPHS"}


class InferredType(Protocol):
    """The type of a result: `follows` are the axes that count rows, None if that is not known."""

    @property
    def tensor(self) -> TensorType:
        """What is known of its element type and shape."""

    @property
    def follows(self) -> tuple[int, ...] | None:
        """The axes that count rows."""

    @property
    def is_tensor(self) -> bool:
        """False for sequences and the like."""


class NamedOperators(Protocol):
    """The operators that there are."""

    def domains(self) -> Sequence[str]:
        """Return the domains that are known."""

    def names(self, domain: str, opset: int) -> Sequence[str]:
        """Return the operators of a domain."""

    def find(self, name: str, domain: str, opset: int) -> OperatorFacts | None:
        """Return an operator."""


class KnownOperators(NamedOperators, Protocol):
    """The operators that there are, and what graphs of them give."""

    def infer(self, graph: OpGraph) -> Mapping[str, InferredType]:
        """Return the types of a graph's results. Raises InapplicableError."""


class _NoOperators:
    """What a deployment without op steps is joined with."""

    def domains(self) -> Sequence[str]:
        return ()

    def names(self, domain: str, opset: int) -> Sequence[str]:  # noqa: ARG002  as KnownOperators has it
        return ()

    def find(self, name: str, domain: str, opset: int) -> None:  # noqa: ARG002  as KnownOperators has it
        return None

    def infer(self, graph: OpGraph) -> Mapping[str, InferredType]:  # noqa: ARG002  as KnownOperators has it
        return {}


NO_OPERATORS: KnownOperators = _NoOperators()


class OpStepError(Exception):
    """A step cannot be done: where, and why, in full sentences."""

    def __init__(self, at: Path, detail: str) -> None:
        super().__init__(detail)
        self.at = at
        self.detail = detail


def find_operator(spec: OpSpec, operators: NamedOperators) -> OperatorFacts:
    """Return what is known of a step's operator. Raises OpStepError if there is none of that name."""
    domains = operators.domains()
    if spec.domain not in domains:
        detail = f'There are no operators of the domain "{spec.domain}". {did_you_mean(spec.domain, domains)}'
        if spec.domain in EXTENSION_DOMAINS:
            install = pip_install(f"ortdeploy[{EXTENSIONS.extra}]")
            detail = f"Operators of {spec.domain} need {EXTENSIONS.name}, which is not here. Install it: {install}."
        raise OpStepError((*spec.at, "domain"), detail)
    if spec.domain == ONNX and spec.opset != OPSET:
        detail = f"The operator set of {ONNX} is {OPSET} in manifests of version 1. Leave opset out."
        raise OpStepError((*spec.at, "opset"), detail)
    facts = operators.find(spec.operator, spec.domain, spec.opset)
    if facts is not None and facts.draws:
        detail = f"{spec.operator} draws numbers at random: two runs of a row would not give the same."
        raise OpStepError((*spec.at, "op"), detail)
    if facts is not None:
        return facts
    known = operators.names(spec.domain, spec.opset)
    near = nearest(spec.operator, known)
    advice = f'Did you mean "{near}"?' if near else "Its page at onnx.ai/onnx/operators lists those that there are."
    set_of = f"operator set {spec.opset} of {spec.domain}"
    raise OpStepError((*spec.at, "op"), f'"{spec.operator}" is no operator of {set_of}. {advice}')


def _called(spec: OpSpec) -> str:
    """Return what an operator is called, with its set where opset may say another one."""
    return spec.operator if spec.domain == ONNX else f"{spec.operator} (operator set {spec.opset} of {spec.domain})"


def check_names(spec: OpSpec, facts: OperatorFacts) -> None:
    """Hold names of inputs, attributes and outputs, and what attributes are, against the schema. Raises OpStepError."""
    _check_inputs(spec, facts)
    _check_attributes(spec, facts)
    _check_outputs(spec, facts)


def _check_inputs(spec: OpSpec, facts: OperatorFacts) -> None:
    inputs = {one.name: one for one in facts.inputs}
    for name, written in spec.inputs.items():
        if name not in inputs:
            hint = _hint(name, "attribute", "attributes", facts.attributes)
            detail = f'{_called(spec)} has no input "{name}". {did_you_mean(name, inputs)}{hint}'
            raise OpStepError((*spec.at, "in", name), detail)
        _check_several(spec, inputs[name], written)
        if not inputs[name].types:
            detail = f'Input "{name}" of {spec.operator} is no tensor; values are tensors.'
            raise OpStepError((*spec.at, "in", name), detail)
    for place, parameter in enumerate(facts.inputs):
        needed = parameter.option == SINGLE or (parameter.option == VARIADIC and place < facts.least_inputs)
        if needed and parameter.name not in spec.inputs:
            raise OpStepError((*spec.at, "in"), f'Nothing feeds input "{parameter.name}" of {spec.operator}.')


def _check_attributes(spec: OpSpec, facts: OperatorFacts) -> None:
    for name in spec.attributes:
        if facts.kind_of(name, spec.attributes[name]) is None:
            hint = _hint(name, "input", "in", [one.name for one in facts.inputs])
            detail = f'{_called(spec)} has no attribute "{name}". {did_you_mean(name, facts.attributes)}{hint}'
            raise OpStepError((*spec.at, "attributes", name), detail)
    _check_needed(spec, facts)
    for name, written in spec.attributes.items():
        try:
            attribute_value(name, written, facts.kind_of(name, written) or "")
        except ConstantError as error:
            detail = f'Attribute "{name}" of {spec.operator}: {error}'
            raise OpStepError((*spec.at, "attributes", name), detail) from error


def _check_needed(spec: OpSpec, facts: OperatorFacts) -> None:
    for name, attribute in facts.attributes.items():
        if attribute.required and attribute.type in _UNWRITABLE:
            detail = f'{spec.operator} takes a graph ("{name}"), which a manifest cannot write. Put it into a model.'
            raise OpStepError((*spec.at, "op"), detail)
        if attribute.required and name not in spec.attributes:
            detail = f'{spec.operator} needs the attribute "{name}" ({attribute.type}).'
            raise OpStepError((*spec.at, "attributes"), detail)


def _hint(name: str, called: str, key: str, known: Collection[str]) -> str:
    return f' "{name}" is an {called}: write it under {key}.' if name in known else ""


def _check_several(spec: OpSpec, parameter: OperatorParameter, written: Any) -> None:
    is_list = isinstance(written, list)
    if written is None or isinstance(written, dict):
        detail = f'Input "{parameter.name}" of {spec.operator} takes $NAME, a number, text or lists of them.'
        raise OpStepError((*spec.at, "in", parameter.name), detail)
    if parameter.option == VARIADIC and (not is_list or not written):
        detail = f'Input "{parameter.name}" of {spec.operator} takes several values: write a list, [$a, $b].'
        raise OpStepError((*spec.at, "in", parameter.name), detail)
    if parameter.option != VARIADIC and is_list and any(wire_name(one) for one in written):
        detail = f'Input "{parameter.name}" of {spec.operator} takes one value, not a list of them.'
        raise OpStepError((*spec.at, "in", parameter.name), detail)


def _check_outputs(spec: OpSpec, facts: OperatorFacts) -> None:
    outputs = {one.name: one for one in facts.outputs}
    if not spec.outputs:
        raise OpStepError(spec.at, f"{spec.operator} gives nothing a name. Write out: NAME.")
    for name, written in spec.outputs.items():
        if name and name not in outputs:
            detail = f'{_called(spec)} has no output "{name}". {did_you_mean(name, outputs)}'
            raise OpStepError((*spec.at, "out", name), detail)
        one = outputs[name] if name else facts.outputs[0]
        if isinstance(written, list) != (one.option == VARIADIC) and name:
            detail = f'Output "{name}" of {spec.operator} is {"several" if one.option == VARIADIC else "one"}: write '
            detail += f"{{{name}: [a, b]}}." if one.option == VARIADIC else f"{{{name}: a}}."
            raise OpStepError((*spec.at, "out", name), detail)
        if not one.types:
            raise OpStepError((*spec.at, "out"), f'Output "{one.name}" of {spec.operator} is no tensor.')
