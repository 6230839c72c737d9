"""A step that is an operator of ONNX, as written: `{op: TopK, in: {X: $scores, K: [5]}, out: {Values: best}}`."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.manifest.document import Path

ONNX = "ai.onnx"
"""The domain of ONNX's own operators."""

OPSET = 21
"""The operator set of a manifest of version 1, for good: what a step computes does not change with onnx's version."""


def wire_name(value: Any) -> str | None:
    """Return the name of `$name`; None for a literal."""
    return value[1:] if isinstance(value, str) and value.startswith("$") else None


class OpSpec(Struct, frozen=True, kw_only=True):
    """An operator with what reaches its inputs: values (`$name`), constants, and lists of them for variadic inputs.

    `outputs` are names of results by output; the output "" is the first one. `by_row`: it runs for one row at a time.
    """

    operator: str
    domain: str
    opset: int
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any]
    outputs: Mapping[str, Any]
    by_row: bool
    at: Path

    def wires(self) -> Iterator[tuple[str, str]]:
        """Yield each place that a value reaches, such as `X` or `inputs.0`, and the value's name."""
        for name, written in self.inputs.items():
            several = [(f"{name}.{index}", one) for index, one in enumerate(written)] if _is_list(written) else []
            for place, one in several or [(name, written)]:
                value = wire_name(one)
                if value is not None:
                    yield place, value

    def renamed(self, names: Mapping[str, str], result: str) -> "OpSpec":
        """Return the step with other names for the values that it takes, and one for its first result."""
        inputs = {key: _renamed(one, names) for key, one in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={"": result})

    def with_constants(self, constants: Mapping[str, Any]) -> "OpSpec":
        """Return the step with constants in the place of some values."""
        return replace(self, inputs={key: _with_constants(one, constants) for key, one in self.inputs.items()})

    def results(self) -> Iterator[tuple[str, str]]:
        """Yield each output that is named, such as `Values` or `outputs.0`, and the result's name."""
        for name, written in self.outputs.items():
            several = [(f"{name}.{index}", one) for index, one in enumerate(written)] if _is_list(written) else []
            yield from several or [(name, written)]


def _renamed(written: Any, names: Mapping[str, str]) -> Any:
    if isinstance(written, list):
        return [_renamed(one, names) for one in written]
    name = wire_name(written)
    return written if name is None else f"${names.get(name, name)}"


def _with_constants(written: Any, constants: Mapping[str, Any]) -> Any:
    if isinstance(written, list):
        return [_with_constants(one, constants) for one in written]
    return constants.get(wire_name(written) or "", written)


def _is_list(written: Any) -> bool:
    return isinstance(written, list)


def read_op(data: Mapping[str, Any], at: Path) -> OpSpec:
    """Read an op step that the schema has accepted."""
    domain = data.get("domain", ONNX)
    out = data.get("out", {})
    return OpSpec(
        operator=data["op"],
        domain=domain or ONNX,
        opset=data.get("opset", OPSET if domain in {"", ONNX} else 1),
        inputs=data["in"],
        attributes=data.get("attributes", {}),
        outputs={"": out} if isinstance(out, str) else out,
        by_row=data.get("by_row", False),
        at=at,
    )
