"""The operators of other domains than ONNX's own, as this ONNX Runtime knows them."""

from collections.abc import Mapping
from typing import Any

from ortdeploy.facts.operators import OPTIONAL, SINGLE, VARIADIC, OperatorAttribute, OperatorFacts, OperatorParameter
from ortdeploy.tensors.types import ELEMENT_NUMBERS, ELEMENT_TYPES

_DTYPES = {f"tensor({word})": name for name, word in ELEMENT_TYPES.items()}
_OPTIONS = {"Single": SINGLE, "Optional": OPTIONAL, "Variadic": VARIADIC}
_OWN = {"", "ai.onnx"}


def other_operators() -> Mapping[str, Mapping[str, OperatorFacts]]:
    """Return the newest schema of each operator, by domain and name."""
    from ortdeploy.runtime.library import binding  # noqa: PLC0415  only steps of other domains

    found: dict[str, dict[str, OperatorFacts]] = {}
    for schema in sorted(binding.get_all_operator_schema(), key=lambda one: int(one.since_version)):
        if schema.domain not in _OWN and not schema.deprecated:
            found.setdefault(schema.domain, {})[schema.name] = _facts(schema)
    return found


def extension_operators() -> Mapping[str, Mapping[str, OperatorFacts]]:
    """Return the operators of onnxruntime-extensions, by domain and name; none if it is not installed.

    Its package tells their inputs and outputs, and not their attributes.
    """
    try:
        from onnxruntime_extensions import _cuops  # noqa: PLC0415  an extra: few steps need it
    except ImportError:
        return {}
    known: list[Any] = [
        one for one in vars(_cuops).values() if isinstance(one, type) and issubclass(one, _cuops.CustomOp)
    ]
    found = {one.op_type(): _extension(one) for one in known if one.get_inputs() and one.get_outputs()}
    return {_CONTRIB: found}


_CONTRIB = "ai.onnx.contrib"


def _extension(operator: Any) -> OperatorFacts:
    inputs, outputs = (tuple(map(_value, values)) for values in (operator.get_inputs(), operator.get_outputs()))
    return OperatorFacts(
        name=operator.op_type(),
        domain=_CONTRIB,
        since=1,
        inputs=inputs,
        outputs=outputs,
        attributes={},
        inferable=False,
        open_attributes=True,
    )


def _value(one: Any) -> OperatorParameter:
    number = one.type.tensor_type.elem_type
    types = tuple(name for name, known in ELEMENT_NUMBERS.items() if known == number)
    return OperatorParameter(name=one.name, variable=one.name, types=types)


def _facts(schema: Any) -> OperatorFacts:
    constraints = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    return OperatorFacts(
        name=schema.name,
        domain=schema.domain,
        since=schema.since_version,
        inputs=tuple(_parameter(one, constraints) for one in schema.inputs),
        outputs=tuple(_parameter(one, constraints) for one in schema.outputs),
        attributes={
            name: OperatorAttribute(type=one.type.name, required=one.required)
            for name, one in schema.attributes.items()
        },
        least_inputs=schema.min_input,
        least_outputs=schema.min_output,
        inferable=False,
    )


def _parameter(one: Any, constraints: Mapping[str, Any]) -> OperatorParameter:
    allowed = constraints.get(one.typeStr, [one.typeStr])
    return OperatorParameter(
        name=one.name,
        variable=one.typeStr,
        types=tuple(_DTYPES[text] for text in allowed if text in _DTYPES),
        option=_OPTIONS[one.option.name],
        alike=one.isHomogeneous,
    )
