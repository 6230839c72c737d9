"""The operations of pipelines by name: those with a module here, and prepare and postprocess steps as operations."""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.problems import Package
from ortdeploy.modules import Modules
from ortdeploy.operations.protocol import Call, HeldOperation, Types, as_column
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.contracts import SINGLE, Contract
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import HeldTransform, Options
from ortdeploy.transforms.sampling import PILLOW

_HIDE_NAN = frozenset({"argmax", "threshold", "top_k"})
"""Steps whose results do not show that they are of NaN. Of a job's outputs, on_nan decides; it sees no pipeline's own
values."""


class TransformOperation(Struct, frozen=True):
    """A prepare or postprocess step as an operation on the value `x`."""

    transform: HeldTransform
    PACKAGE: Package | None = None

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  as of a module
        """The contract of the step, but users need not name its results, and none is made of NaN that hides it."""
        contract = self.transform.contract
        outputs = tuple(replace(one, option=SINGLE) for one in contract.outputs)
        if contract.name not in _HIDE_NAN:
            return replace(contract, outputs=outputs)
        return replace(contract, inputs=tuple(replace(one, not_nan=True) for one in contract.inputs), outputs=outputs)

    def build(self, options: Options, types: Types) -> Call:
        """Return the function; it takes rows one by one if they differ in shape."""
        named = {str(one.named_by): one.name for one in self.transform.contract.outputs}
        apply = self.transform.bare({**options, **named}, types["x"])

        def call(values: Mapping[str, Column]) -> tuple[Column, ...]:
            column = values["x"]
            if isinstance(column, np.ndarray) and self.CONTRACT.even:
                return apply(column)
            rows = [apply(np.asarray(row)[None]) for row in column]
            return tuple(as_column([row[index][0] for row in rows]) for index in range(len(rows[0])))

        return call


_OWN = Modules(
    "ortdeploy.operations",
    (
        "answers",
        "boxes",
        "boxes_from_heatmap",
        "center_decode",
        "class_map",
        "corners",
        "crop",
        "ctc_greedy",
        "join",
        "l2_normalize",
        "letterbox",
        "letters",
        "look_up",
        "masks",
        "mean_pool",
        "neighbours",
        "nms",
        "paste_masks",
        "pixels",
        "polygons",
        "resample",
        "rle",
        "spans",
        "text_boxes",
        "time_spans",
        "tokenize",
        "tokenize_clip",
        "track",
        "unletterbox",
        "windows",
        "yolo_decode",
        "yolo_heads",
    ),
    HeldOperation,
)


class _Operations(Mapping[str, HeldOperation]):
    """All operations by name. If an operation and a step have the same name, the operation is used."""

    def __getitem__(self, name: str) -> HeldOperation:
        return _OWN[name] if name in _OWN else _of_step(name)

    def __contains__(self, name: object) -> bool:
        return any(name in known for known in (_OWN, PREPARE, POSTPROCESS))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*_OWN, *PREPARE, *POSTPROCESS)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _of_step(name: str) -> HeldOperation:
    step = PREPARE[name] if name in PREPARE else POSTPROCESS[name]
    return HeldOperation(TransformOperation(step, PILLOW if name == "resize" else None))


OPERATIONS: Mapping[str, HeldOperation] = _Operations()
