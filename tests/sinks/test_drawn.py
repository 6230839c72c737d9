"""What of a row's results is drawn onto its picture."""

from typing import Any

import pytest

from ortdeploy.sinks.drawn import drawing_of, is_boxes


def test_each_box_gets_what_has_one_value_for_each() -> None:
    row = {
        "path": "a.png",
        "boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]],
        "scores": [0.5, 0.25],
        "names": ["cat", "dog"],
        "other": [1],
    }
    drawing = drawing_of(row, ["boxes", "scores", "names", "other"])
    assert drawing.labels == ("0.50 cat", "0.25 dog")
    assert drawing.outlines[1] == ((5, 6), (7, 6), (7, 8.5), (5, 8.5))


def test_a_picture_without_boxes_gets_its_short_values() -> None:
    drawing = drawing_of({"path": "a.png", "class": 3, "p": 0.75, "vector": [1, 2, 3]}, ["class", "p", "vector"])
    assert drawing.caption == "class 3  p 0.75"
    assert not drawing.is_empty


def test_a_picture_in_which_nothing_was_found_is_empty() -> None:
    assert drawing_of({"boxes": [], "scores": []}, ["boxes", "scores"]).is_empty


@pytest.mark.parametrize(
    ("value", "boxes"),
    [
        ([[1, 2, 3, 4]], True),
        ([[[0, 0], [4, 1], [4, 3], [0, 2]]], True),
        ([[3, 2, 1, 4]], False),  # its right is left of its left
        ([[0.1, 0.2, 0.3, 0.4]], False),  # scores of four classes
        ([[1, 2, 3]], False),
        ([1, 2, 3, 4], False),
        ([], False),
        ("text", False),
        (None, False),
    ],
)
def test_boxes_are_told_from_other_lists(value: Any, boxes: bool) -> None:
    assert is_boxes(value) is boxes
