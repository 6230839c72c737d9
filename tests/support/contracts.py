"""Right and wrong inputs of a step, made from its contract alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPOSITORY

from ortdeploy.tensors.contracts import UNITS, Attribute, Contract, ContractError, Form, FormalParameter
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ELEMENT_TYPES, ROWS, TensorType

TOKENIZER = """\
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
 "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "sea": 1}, "unk_token": "[UNK]"}}
"""
ANY_AXES = (1, 2)
"""What `*name` stands for: squeeze needs a dimension of one."""


@dataclass(frozen=True)
class Case:
    """A step with settings and inputs. `form` is the one that each input has, `why` what is wrong with one of them."""

    options: dict[str, Any]
    types: dict[str, TensorType]
    arrays: dict[str, np.ndarray]
    form: dict[str, Form] = field(default_factory=dict)
    why: str = ""
    known_before: bool = True

    def changed(self, name: str, array: np.ndarray, why: str, **more: Any) -> "Case":
        """Return the case with another array."""
        return Case(self.options, self.types, {**self.arrays, name: array}, self.form, f"{name}: {why}", **more)

    def seen(self) -> dict[str, TensorType]:
        """Return the types that the arrays have."""
        return {
            name: TensorType(
                element_type(array), (ROWS, *array.shape[1:]) if array.ndim else (), self.types[name].layout
            )
            for name, array in self.arrays.items()
        }


def element_type(array: np.ndarray) -> str:
    return "string" if array.dtype == object else array.dtype.name


def setting(attribute: Attribute, folder: Path) -> Any:
    if attribute.path == "folder":
        return str(REPOSITORY / "deployments/models/painter/tokenizer")
    if attribute.name == "of":
        np.savez(folder / "vectors.npz", vectors=np.eye(4, 5, dtype=np.float32))
        return str(folder / "vectors.npz")
    if attribute.name == "table":
        (folder / "table.csv").write_text("text,number\nsea,1\n")
        return str(folder / "table.csv")
    if attribute.name == "map":
        (folder / "letters.json").write_text('{"s": 1, "e": 2, "a": 3}')
        return str(folder / "letters.json")
    if attribute.path == "file":
        (folder / "tokenizer.json").write_text(TOKENIZER)
        return str(folder / "tokenizer.json")
    if attribute.choices:
        return next(one for one in attribute.choices if one not in {"bool", "NHWC"})
    if attribute.type == "STRING":
        return "ab"
    low = attribute.least if attribute.least is not None and attribute.least > 0 else 1
    return {"INTS": [4, 4], "FLOATS": 1.0, "FLOAT": float(low), "INT": 0 if attribute.least == -32 else int(low)}[
        attribute.type
    ]


_MORE: dict[str, dict[str, Any]] = {
    "boxes": {"unit": "normalised", "to_unit": "pixels"},
    "labels": {"from": "labels.txt", "lines": [str(number) for number in range(300)]},
    "layout": {"from": "NHWC"},
    "yolo_decode": {"version": "v8", "classes": 2},
    "yolo_heads": {"anchors": [float(number) for number in range(1, 41)]},  # five for each of four heads
}
"""Settings that steps need beside those that they require."""


def settings(contract: Contract, folder: Path) -> dict[str, Any]:
    """Return settings that a step needs."""
    options: dict[str, Any] = {}
    for attribute in contract.attributes:
        if not attribute.required and attribute.name != "from":
            continue
        inside = options
        *path, last = attribute.name.split(".")
        for key in path:
            inside = inside.setdefault(key, {})
        inside[last] = setting(attribute, folder)
    options |= _MORE.get(contract.name, {})
    if contract.name == "resample" and len(contract.inputs) > 1:
        del options["from"]  # the operation takes it as a value
    if contract.name == "ctc_greedy":
        options = {"alphabet": "ab"}
    return options


def right(contract: Contract, folder: Path, rows: int = 2, free: int = 5) -> list[Case]:
    """Return right inputs: one case for each form of each input. `free` is the size of axes that nothing bounds."""
    options = settings(contract, folder)
    cases = []
    for varied in contract.inputs:
        for form in varied.forms:
            if contract.name == "layout" and form.layout == "NCHW":
                continue  # `from` says otherwise
            fitting = {**options, "pad": 4} if contract.name == "pad" and form.layout is None else options
            cases.append(_case(contract, fitting, {varied.name: form}, rows, free))
    return cases


def _case(contract: Contract, options: dict[str, Any], forms: dict[str, Form], rows: int, free: int) -> Case:
    sizes: dict[str, int] = {ROWS: rows}
    for attribute in contract.attributes:
        value = attribute.value(options)
        if attribute.binds and isinstance(value, int | list):
            sizes |= dict(zip(attribute.binds, value if isinstance(value, list) else [value], strict=True))
    for one in contract.sizes:
        least = sizes[one.least] if isinstance(one.least, str) else one.least
        sizes[one.name] = one.sizes[-1] if one.sizes else max(least or 0, free)
    if contract.name == "ctc_greedy":
        sizes["classes"] = len(options["alphabet"]) + 1
    if contract.name == "yolo_decode":
        sizes["second"] = 4 + options["classes"]
    if contract.name == "neighbours":
        sizes["numbers"] = 5
    if contract.name == "center_decode":
        sizes["numbers"] = 6
    if contract.name == "yolo_heads":
        sizes |= {"anchors": 5, "channels": 5 * sizes["values"]}
    chosen = {one.name: forms.get(one.name, one.forms[0]) for one in contract.inputs}
    arrays = {one.name: array(contract, one, chosen[one.name], sizes, free) for one in contract.inputs}
    types = {
        name: TensorType(element_type(made), (ROWS, *made.shape[1:]), chosen[name].layout)
        for name, made in arrays.items()
    }
    return Case(options, types, arrays, chosen)


def array(
    contract: Contract, parameter: FormalParameter, form: Form, sizes: Mapping[str, int], free: int
) -> np.ndarray:
    shape: list[int] = []
    for axis in form.axes:
        if isinstance(axis, int):
            shape.append(axis)
        else:
            shape += ANY_AXES if axis.startswith("*") else [sizes.get(axis, free)]
    allowed = contract.constraint(parameter).types
    dtype = next((name for name in ("float32", "int64", "uint8") if name in allowed), allowed[0])
    if "string" in allowed and len(allowed) == 1:
        return np.full(shape, "sea", dtype=object)
    made = np.ones(shape, dtype)
    if form.axes[-1] == 4:
        made[..., 0:2] = 0  # left, top, right, bottom
    if form.axes[-2:] == (4, 2):
        made[...] = np.array([[0, 0], [2, 0], [2, 2], [0, 2]])
    return made


def wrong(contract: Contract, case: Case) -> Iterator[Case]:
    """Yield every violation of the contract by one input that follows from the table."""
    for one in contract.inputs:
        here = case.arrays[one.name]
        yield from _wrong_shapes(contract, case, one, here)
        allowed = contract.constraint(one).types
        for name in (name for name in ELEMENT_TYPES if name not in allowed):
            values = np.full(here.shape, "sea", object) if name == "string" else np.ones(here.shape, numpy_dtype(name))
            yield case.changed(one.name, values, f"element type {name}")
        yield case.changed(one.name, here[:0], "no rows", known_before=False)
        for value in [np.nan, np.inf] if one.finite else [np.nan] if one.not_nan else []:
            holds = here.copy()
            holds.flat[-1] = value
            yield case.changed(one.name, holds, f"{value}", known_before=False)
        if allowed == ("string",):
            yield case.changed(one.name, np.full(here.shape, 3, object), "objects that are no text", known_before=False)


def _wrong_shapes(contract: Contract, case: Case, one: FormalParameter, here: np.ndarray) -> Iterator[Case]:
    forms = [form for form in one.forms if form.layout in {None, case.form[one.name].layout}]
    for rank in (rank for rank in range(1, 7) if not any(form.has_rank(rank) for form in forms)):
        shape = (*here.shape, *(2,) * 6)[:rank]
        yield case.changed(
            one.name,
            np.ones(shape, here.dtype) if here.dtype != object else np.full(shape, "sea", object),
            f"rank {rank}",
        )
    form = case.form[one.name]
    if form.star is None:
        for place, axis in enumerate(form.axes[1:], 1):
            for size in _wrong_sizes(contract, case, one, axis, here.shape[place]):
                shape = (*here.shape[:place], size, *here.shape[place + 1 :])
                if not any(_may_be(other, shape) for other in forms if other != form):
                    yield case.changed(one.name, np.resize(here, shape), f"axis {place} of {size}")
    elif isinstance(form.axes[-1], str) and not form.axes[-1].startswith("*"):
        for size in _wrong_sizes(contract, case, one, form.axes[-1], here.shape[-1]):
            yield case.changed(one.name, np.resize(here, (*here.shape[:-1], size)), f"last axis of {size}")


def _may_be(form: Form, shape: tuple[int, ...]) -> bool:
    return form.has_rank(len(shape)) and form.star is None


def _wrong_sizes(contract: Contract, case: Case, one: FormalParameter, axis: int | str, have: int) -> Iterator[int]:
    """Yield sizes that an axis cannot have: a literal, one that another input has too, one that is bounded."""
    if isinstance(axis, int):
        yield from (axis + 1, axis + 6, 0)
        return
    others = [other for other in contract.inputs if other is not one and axis in case.form[other.name].axes]
    if others:
        yield from (have + 1, 0)
    for bound in contract.sizes:
        if bound.name == axis:
            if bound.sizes:
                yield from (size for size in (0, 2, 4, 5) if size not in bound.sizes)
            else:
                yield 0
    if contract.name == "ctc_greedy" and axis == "classes":
        yield from (have - 1, have + 1)
    if contract.name == "yolo_decode" and axis == "second":
        yield from range(have)


def wrong_units(one: FormalParameter) -> list[str]:
    return [unit for unit in UNITS if one.units and unit not in one.units]


__all__ = ["Case", "ContractError", "right", "settings", "wrong", "wrong_units"]
