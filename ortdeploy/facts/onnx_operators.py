"""ONNX's own operators by their names, as of the operator set of manifests: a table, for code that does not load onnx.

`python tests/support/operator_table.py` writes it from onnx's schemas. It has names and how often an input or an output
occurs, not the element types of each: those are checked when a plan is made.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.facts.operators import OPTIONAL, SINGLE, VARIADIC, OperatorAttribute, OperatorFacts, OperatorParameter
from ortdeploy.schemas import schema_folder
from ortdeploy.tensors.types import ELEMENT_TYPES

MARKS = {SINGLE: "", OPTIONAL: "?", VARIADIC: "*"}
"""What stands behind the name of an input or an output. A name behind NO_TENSOR is no tensor."""
NO_TENSOR, REQUIRED = "~", "!"


def table_name(domain: str, opset: int) -> str:
    """Return the name of a table's file, below the schemas."""
    return f"operators/{domain}-{opset}.json"


class NamedOperators(Struct, frozen=True):
    """The operators of one domain, without the types of what they take and give."""

    domain: str
    table: Mapping[str, Mapping[str, Any]]

    def domains(self) -> Sequence[str]:
        """Return the domain."""
        return (self.domain,)

    def names(self, domain: str, opset: int) -> Sequence[str]:  # noqa: ARG002  the table is of one set
        """Return the operators."""
        return sorted(self.table)

    def find(self, name: str, domain: str, opset: int) -> OperatorFacts | None:  # noqa: ARG002  the table is of one set
        """Return what the table knows of an operator."""
        written = self.table.get(name)
        if written is None:
            return None
        return OperatorFacts(
            name=name,
            domain=domain,
            since=0,
            inputs=tuple(map(_parameter, written["in"])),
            outputs=tuple(map(_parameter, written["out"])),
            attributes={key.rstrip(REQUIRED): _attribute(key, kind) for key, kind in written["attributes"].items()},
            least_inputs=written["least"],
            draws=written.get("draws", False),
        )


def named_operators(domain: str, opset: int) -> NamedOperators:
    """Return the operators of a table."""
    text = (schema_folder() / table_name(domain, opset)).read_text(encoding="utf-8")
    return NamedOperators(domain, json.loads(text))


def _parameter(written: str) -> OperatorParameter:
    is_tensor = not written.startswith(NO_TENSOR)
    option = next(option for option, mark in reversed(MARKS.items()) if written.endswith(mark))
    name = written.removeprefix(NO_TENSOR).removesuffix(MARKS[option])
    return OperatorParameter(name=name, variable="", types=tuple(ELEMENT_TYPES) if is_tensor else (), option=option)


def _attribute(name: str, kind: str) -> OperatorAttribute:
    return OperatorAttribute(type=kind, required=name.endswith(REQUIRED))
