"""The pages of steps for `ortdeploy explain`: a step of a job, an operation of pipelines, an operator of ONNX.

A page comes from the contract and the docstring of the step's module; that of an operator of ONNX comes from the table
of operators. Both have everything that can be written under the step in a manifest.
"""

import inspect
from collections.abc import Iterator, Sequence

from ortdeploy.facts.onnx_operators import named_operators
from ortdeploy.facts.operators import OPTIONAL as MAY_BE_LEFT_OUT
from ortdeploy.facts.operators import VARIADIC, OperatorFacts, OperatorParameter
from ortdeploy.manifest.op_steps import ONNX, OPSET
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import HeldOperation
from ortdeploy.tensors.contracts import OPTIONAL, Attribute, Contract, FormalParameter
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import HeldTransform

_HOW_OFTEN = {MAY_BE_LEFT_OUT: " (optional)", VARIADIC: " (a list)"}


def step_names() -> list[str]:
    """Return the names of all steps that have a page."""
    return [*OPERATIONS, *named_operators(ONNX, OPSET).table]


def step_page(name: str) -> str | None:
    """Return the page of a step; None if there is no such step.

    A name may be that of a step and of an operation that differ, such as `resample`: then the page has both.
    """
    step, operation = PREPARE.get(name) or POSTPROCESS.get(name), OPERATIONS.get(name)
    as_step = f"a step of {'prepare' if name in PREPARE else 'postprocess'}"
    as_operation = f"an operation of pipelines ({{do: {name}}})"
    pages = []
    if step is not None and operation is not None and step.contract.inputs == operation.contract.inputs:
        pages.append(_page(f"{name}: {as_step}, and {as_operation}", step))
    else:
        pages += [_page(f"{name}: {as_step}", step)] if step is not None else []
        pages += [_page(f"{name}: {as_operation}", operation)] if operation is not None else []
    operator = named_operators(ONNX, OPSET).find(name, ONNX, OPSET)
    if operator is not None:
        pages.append(_operator_page(operator))
    return "\n\n".join(pages) or None


def _page(title: str, held: HeldTransform | HeldOperation) -> str:
    contract = held.contract
    lines = [title, "", inspect.getdoc(held.module) or f"{contract.meaning}.", ""]
    for verb, parameters in (("takes", contract.inputs), ("gives", contract.outputs)):
        for one in parameters:
            optional = " (optional)" if verb == "takes" and one.option == OPTIONAL else ""
            lines.append(f"{verb} {one.name}{optional}: {element_types(verb, one, contract)}, {shapes(one)}")
            lines.append(f"    {meaning_of(one)}")
    if contract.attributes:
        lines += ["", "Settings:"]
        lines += [f"  {one.name}: {one.meaning}{bounds(one)}; {_default(one)}" for one in contract.attributes]
    return "\n".join(lines)


def _default(one: Attribute) -> str:
    if one.required:
        return "required"
    return "no default" if one.default is None else f"default {one.default}"


def element_types(verb: str, one: FormalParameter, contract: Contract) -> str:
    """Return the element types that a parameter takes or gives, in words."""
    if verb == "takes":
        return contract.constraint(one).called
    if one.type.startswith("float("):
        return "the input's if floating, else float32"
    return {"T": "the input's", "To": "as set", "O": "float16, float32 or float64"}.get(one.type, one.type)


def shapes(one: FormalParameter) -> str:
    """Return the shapes that a parameter may have."""
    return " or ".join(dict.fromkeys(str(form) for form in one.forms)) or "worked out from the row's"


def meaning_of(one: FormalParameter) -> str:
    """Return what a parameter means, with its unit and with the numbers that fail a row."""
    units = f"; unit: {' or '.join(one.units)}" if one.units else ""
    numbers = "; NaN and infinities fail the row" if one.finite else "; NaN fails the row" if one.not_nan else ""
    return f"{one.meaning}{units}{numbers}"


def bounds(one: Attribute) -> str:
    """Return the values that a setting may have: ` (at least 1)`, or `: cubic, linear`."""
    if one.choices:
        return f": {', '.join(one.choices)}"
    limits = [("at least", one.least), ("above", one.above), ("at most", one.most)]
    shown = [f"{word} {value:g}" for word, value in limits if value is not None]
    return f" ({', '.join(shown)})" if shown and one.type in {"INT", "FLOAT", "INTS"} else ""


def _operator_page(operator: OperatorFacts) -> str:
    """Return the page of an operator: the names that an op step may use, and where ONNX says what they mean."""
    lines = [
        f"{operator.name}: an operator of ONNX ({{op: {operator.name}}}), of operator set {OPSET}",
        "",
        f"in: {_named(operator.inputs)}",
        f"out: {_named(operator.outputs)}",
        *_attributes(operator),
        "",
        f"What they mean: https://onnx.ai/onnx/operators/onnx__{operator.name}.html",
    ]
    return "\n".join(lines)


def _named(parameters: Sequence[OperatorParameter]) -> str:
    return ", ".join(f"{one.name}{_HOW_OFTEN.get(one.option, '')}" for one in parameters) or "nothing"


def _attributes(operator: OperatorFacts) -> Iterator[str]:
    if operator.attributes:
        named = (
            f"{name}: {one.type}{' (required)' if one.required else ''}" for name, one in operator.attributes.items()
        )
        yield f"attributes: {{{', '.join(named)}}}"
