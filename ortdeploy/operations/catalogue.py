"""The operations of pipelines by name: modules of their own, and prepare and postprocess steps on one value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.operations import (
    boxes,
    boxes_from_heatmap,
    crop,
    ctc_greedy,
    l2_normalize,
    letterbox,
    mean_pool,
    nms,
    pixels,
    resample,
    text_boxes,
    tokenize,
    tokenize_clip,
    unletterbox,
    windows,
    yolo_decode,
)
from ortdeploy.operations.protocol import Call, HeldOperation, Operation, Types, as_column
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.contracts import SINGLE, Contract
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import HeldTransform, Options
from ortdeploy.transforms.sampling import PILLOW


@dataclass(frozen=True, slots=True)
class TransformOperation:
    """A prepare or postprocess step on the value `x`."""

    transform: HeldTransform
    package: Package | None = None

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  as of a module
        """The package that it needs."""
        return self.package

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  as of a module
        """The step's, whose results need no names."""
        contract = self.transform.contract
        return replace(contract, outputs=tuple(replace(one, option=SINGLE) for one in contract.outputs))

    def build(self, options: Options, types: Types) -> Call:
        """Return the function; rows that differ in shape are taken one by one."""
        named = {str(one.named_by): one.name for one in self.transform.contract.outputs}
        apply = self.transform.bare({**options, **named}, types["x"])

        def call(values: Mapping[str, Column]) -> tuple[Column, ...]:
            column = values["x"]
            if isinstance(column, np.ndarray) and self.CONTRACT.even:
                return apply(column)
            rows = [apply(np.asarray(row)[None]) for row in column]
            return tuple(as_column([row[index][0] for row in rows]) for index in range(len(rows[0])))

        return call


_MODULES: dict[str, Operation] = {
    "boxes": boxes,
    "boxes_from_heatmap": boxes_from_heatmap,
    "crop": crop,
    "ctc_greedy": ctc_greedy,
    "l2_normalize": l2_normalize,
    "letterbox": letterbox,
    "mean_pool": mean_pool,
    "nms": nms,
    "pixels": pixels,
    "text_boxes": text_boxes,
    "tokenize": tokenize,
    "tokenize_clip": tokenize_clip,
    "unletterbox": unletterbox,
    "windows": windows,
    "yolo_decode": yolo_decode,
    **{name: TransformOperation(step, PILLOW if name == "resize" else None) for name, step in PREPARE.items()},
    **{name: TransformOperation(step) for name, step in POSTPROCESS.items()},
    "resample": resample,  # it takes the rate as a value, too
}

OPERATIONS = {name: HeldOperation(module) for name, module in _MODULES.items()}
