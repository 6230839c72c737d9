"""What is known of ONNX operators: their inputs, outputs and attributes, as operator schemas have them."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

SINGLE, OPTIONAL, VARIADIC = "single", "optional", "variadic"

DYNAMIC_QUANTIZATION = ("DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul")
"""Operators that take the scale of their numbers from all values that they get, of whatever row."""


class OperatorParameter(Struct, frozen=True, kw_only=True):
    """An input or an output: its type variable (or its one type) and the element types of tensors that it may have.

    `alike`: all values of a variadic one have the same type. Without `types` it is no tensor.
    """

    name: str
    variable: str
    types: tuple[str, ...]
    option: str = SINGLE
    alike: bool = True


class OperatorAttribute(Struct, frozen=True, kw_only=True):
    """An attribute: its type by ONNX's name, such as INT or FLOATS, and its default."""

    type: str
    required: bool = False
    default: Any = None


class OperatorFacts(Struct, frozen=True, kw_only=True):
    """An operator of a domain, as of the operator set `since`. `inferable`: onnx tells the types of its outputs.

    `open_attributes`: nothing tells which attributes it has, so any may be written. `least_inputs` and `least_outputs`
    are how many a node has at least, whether somebody names them or not. `draws`: it gives random numbers.
    """

    name: str
    domain: str
    since: int
    inputs: tuple[OperatorParameter, ...]
    outputs: tuple[OperatorParameter, ...]
    attributes: Mapping[str, OperatorAttribute]
    least_inputs: int = 0
    least_outputs: int = 1
    inferable: bool = True
    draws: bool = False
    open_attributes: bool = False

    def kind_of(self, name: str, written: Any) -> str | None:
        """Return the type of an attribute; None if there is none of that name."""
        if name in self.attributes:
            return self.attributes[name].type
        return _kind_of(written) if self.open_attributes else None


def _kind_of(written: Any) -> str:
    """Return the type that what is written for an attribute has, by ONNX's name."""
    if isinstance(written, list):
        kinds = {_kind_of(one) for one in written}
        return f"{'FLOAT' if kinds == {'INT', 'FLOAT'} else next(iter(kinds), 'INT')}S"
    return "STRING" if isinstance(written, str) else "FLOAT" if isinstance(written, float) else "INT"
