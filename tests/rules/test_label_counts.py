"""Whose classes label-count-mismatch knows."""

import pytest

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.rules.label_count_mismatch import numbered
from ortdeploy.tensors.contracts import INDEX
from ortdeploy.tensors.types import ROWS, TensorType

NUMBERING = [name for name, one in OPERATIONS.items() if any(INDEX in made.units for made in one.contract.outputs)]


@pytest.mark.parametrize("name", NUMBERING)
def test_what_numbers_classes_has_an_axis_of_them(name: str) -> None:
    contract = OPERATIONS[name].contract
    axes = {axis for one in (*contract.inputs, *contract.outputs) for form in one.forms for axis in form.axes}
    assert "classes" in axes


def test_boxes_of_a_detector_number_as_many_classes_as_they_are_scored_for() -> None:
    decoded = {"x": TensorType("float32", (ROWS, 22, None))}
    (boxes, scores, *_) = OPERATIONS["yolo_decode"].infer({"version": "v8"}, decoded)
    assert numbered("nms", {}, {"boxes": boxes, "scores": scores}) == {"2": 18}


def test_steps_that_do_not_fit_number_none() -> None:
    assert numbered("argmax", {}, {"x": TensorType("string", (ROWS, 3))}) == {}
