"""Boxes, YOLO heads and suppression, held against what ultralytics' own code makes of the same outputs."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operation_references import FOLDER

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.contracts import NORMALISED, PIXELS, ContractError
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

WAYS = ("xyxy", "yxyx", "xywh", "cxcywh")


@pytest.fixture(scope="module")
def known() -> Mapping[str, np.ndarray]:
    with np.load(FOLDER / "ultralytics.npz") as arrays:
        return dict(arrays)


def do(name: str, options: Mapping[str, Any], **values: Any) -> tuple[Any, ...]:
    types = {key: TensorType(column[0].dtype.name, (ROWS, *column[0].shape)) for key, column in values.items()}
    OPERATIONS[name].infer(options, types)
    return OPERATIONS[name].build(options, types)(values)


def refusal(name: str, options: Mapping[str, Any], **types: TensorType) -> str:
    with pytest.raises(InapplicableError) as refused:
        OPERATIONS[name].infer(options, types)
    return str(refused.value)


def floats(*sizes: int | None, unit: str | None = None) -> TensorType:
    return TensorType("float32", (ROWS, *sizes), unit=unit)


def rows_of(*columns: Any, row: int) -> np.ndarray:
    """Return [kept, 6] as ultralytics gives it: box, score, class."""
    boxes, scores, classes = (column[row] for column in columns)
    return np.concatenate([boxes, scores[:, None], classes[:, None]], axis=1)


SETTINGS: dict[str, dict[str, Any]] = {
    "best": {"labels": "best"},
    "all": {"score": 0.2, "iou": 0.6},
    "agnostic": {"labels": "best", "among": "all"},
    "few": {"labels": "best", "score": 0.1, "iou": 0.7, "max": 5, "classes": [0, 2]},
}


@pytest.mark.parametrize("strides", [(8, 16, 32), (8, 16, 32, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_boxes_of_yolox_are_where_its_formulas_have_them_cell_by_cell(strides: tuple[int, ...], dtype: type) -> None:
    height, width = 128, 192
    cells = [
        (stride, row, column)
        for stride in strides
        for row in range(height // stride)
        for column in range(width // stride)
    ]
    x: np.ndarray = np.random.default_rng(0).normal(0, 0.5, (1, len(cells), 7)).astype(dtype)
    boxes, scores, classes, _ = do("yolo_decode", {"version": "yolox", "size": [height, width]}, x=x)
    for number, (stride, row, column) in enumerate(cells):
        across, down, wide, high, there, *each = x[0, number].astype(np.float32)
        middle = ((across + column) * stride, (down + row) * stride)
        half = (np.exp(wide) * stride / 2, np.exp(high) * stride / 2)
        expected = [middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]]
        np.testing.assert_allclose(boxes[0][number], expected, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(scores[0][number], there * np.array(each), rtol=1e-3)
        assert classes[0][number] == np.argmax(there * np.array(each))


def test_a_yolox_needs_the_size_of_its_image_and_boxes_that_go_with_it() -> None:
    said = "goes with version: yolox, which needs it"
    assert said in refusal("yolo_decode", {"version": "yolox"}, x=floats(8400, 85))
    assert said in refusal("yolo_decode", {"version": "v5", "size": [640, 640]}, x=floats(25200, 85))
    sized = {"version": "yolox", "size": [640, 640]}
    assert "gives 8,400 or 8,500 boxes of an image of 640 x 640, and 3,549 come" in refusal(
        "yolo_decode", sized, x=floats(3549, 85)
    )
    types = {"x": floats(None, 85)}
    call = OPERATIONS["yolo_decode"].build(sized, types)
    with pytest.raises(ValueError, match="3,549 come"):
        call({"x": np.zeros((1, 3549, 85), np.float32)})


@pytest.mark.parametrize("name", SETTINGS)
def test_a_raw_head_gives_the_boxes_of_ultralytics(known: Mapping[str, np.ndarray], name: str) -> None:
    boxes, scores, *_ = do("yolo_decode", {"version": "v8"}, x=known["raw"])
    np.testing.assert_allclose(boxes[0], known["corners"], rtol=1e-6)
    *kept, places = do("nms", SETTINGS[name], boxes=boxes, scores=scores)
    for row in range(2):
        np.testing.assert_allclose(rows_of(*kept, row=row), known[f"{name}_{row}"], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(boxes[row][places[row]], kept[0][row])


def test_a_head_with_suppression_inside_gives_the_boxes_of_ultralytics(known: Mapping[str, np.ndarray]) -> None:
    for version in ("v10", "v26"):
        *found, _ = do("yolo_decode", {"version": version, "score": 0.4}, x=known["decided"])
        for row in range(2):
            order = np.argsort(-found[1][row])
            theirs = known[f"decided_{row}"]
            np.testing.assert_allclose(
                rows_of(*found, row=row)[order], theirs[np.argsort(-theirs[:, 4])], rtol=1e-6, atol=1e-6
            )


def test_objectness_is_a_factor_of_every_score(known: Mapping[str, np.ndarray]) -> None:
    raw = known["raw"].transpose(0, 2, 1)
    half = np.concatenate([raw[..., :4], np.full((2, 60, 1), 0.5, np.float32), raw[..., 4:]], axis=2)
    boxes, scores, classes, more = do("yolo_decode", {"version": "v5"}, x=half)
    plain = do("yolo_decode", {"version": "v8"}, x=known["raw"])
    np.testing.assert_allclose(boxes, plain[0])
    np.testing.assert_allclose(scores, plain[1] / 2)
    np.testing.assert_array_equal(classes, plain[2])
    assert np.shape(more) == (2, 60, 0)


def test_values_may_be_on_the_other_axis_and_more_may_follow(known: Mapping[str, np.ndarray]) -> None:
    last = np.ascontiguousarray(known["raw"].transpose(0, 2, 1))
    for options, x in (({"version": "v11", "values": "last"}, last), ({"version": "v11"}, known["raw"])):
        boxes, scores, classes, more = do("yolo_decode", {**options, "classes": 2}, x=x)
        np.testing.assert_allclose(boxes[0], known["corners"], rtol=1e-6)
        assert (scores.shape, classes.max()) == ((2, 60, 2), 1)
        np.testing.assert_array_equal(more[..., 0], known["raw"][:, 6])
    boxes, scores, *_ = do("yolo_decode", {"version": "v8", "score": 0.5}, x=known["raw"])
    assert all(row.max(axis=1).min() >= 0.5 for row in scores)
    assert [len(row) for row in boxes] == (known["raw"][:, 4:].max(axis=1) >= 0.5).sum(axis=1).tolist()


def test_an_output_that_is_turned_or_too_small_is_refused_with_what_to_write() -> None:
    assert "say values: last" in refusal("yolo_decode", {"version": "v8"}, x=floats(8400, 84))
    assert "say values: first" in refusal("yolo_decode", {"version": "v5"}, x=floats(85, 25200))
    assert "at least 84 values, and 9" in refusal("yolo_decode", {"version": "v8", "classes": 80}, x=floats(9, 99))
    assert "at least 6 values" in refusal("yolo_decode", {"version": "v26"}, x=floats(300, 5))
    for version, shape in (("v8", (84, 8400)), ("v5", (25200, 85)), ("v10", (300, 6)), ("v8", (None, 84))):
        OPERATIONS["yolo_decode"].infer({"version": version}, {"x": floats(*shape)})
    promised = OPERATIONS["yolo_decode"].infer({"version": "v8", "classes": 80}, {"x": floats(116, 8400)})
    assert [one.shape for one in promised] == [(ROWS, 8400, 4), (ROWS, 8400, 80), (ROWS, 8400), (ROWS, 8400, 32)]
    promised = OPERATIONS["yolo_decode"].infer({"version": "v26"}, {"x": floats(300, 38)})
    assert [one.shape for one in promised] == [(ROWS, 300, 4), (ROWS, 300), (ROWS, 300), (ROWS, 300, 32)]
    with pytest.raises(ValueError, match="class 2 of 2"):
        do("yolo_decode", {"version": "v10", "classes": 2}, x=np.array([[[0, 0, 1, 1, 0.5, 2]]], np.float32))


def test_a_background_class_leaves_room_for_the_others() -> None:
    boxes = np.array([[[10 * n, 0, 10 * n + 5, 5] for n in range(6)]], np.float32)
    scores = np.tile(np.array([0.99, 0.3, 0.1], np.float32), (1, 6, 1))
    scores[0, 5] = [0.01, 0.01, 0.98]
    *_, classes, places = do("nms", {"max": 3}, boxes=boxes, scores=scores)
    assert classes[0].tolist() == [0, 0, 0]
    _, _, classes, places = do("nms", {"max": 3, "background": 0}, boxes=boxes, scores=scores)
    assert (classes[0].tolist(), places[0].tolist()) == ([2, 1, 1], [5, 0, 1])
    _, _, classes, _ = do("nms", {"max_per_class": 2}, boxes=boxes, scores=scores)
    assert classes[0].tolist() == [0, 0, 2, 1, 1]
    _, _, classes, _ = do("nms", {"labels": "best", "background": 0}, boxes=boxes, scores=scores)
    assert classes[0].tolist() == [2]


def test_classes_that_do_not_come_are_refused() -> None:
    scores = floats(10, 3)
    assert "class 3, and the last of 3 classes is 2" in refusal(
        "nms", {"background": 3}, boxes=floats(10, 4), scores=scores
    )
    assert "names class 7" in refusal("nms", {"classes": [1, 7]}, boxes=floats(10, 4), scores=scores)
    assert "have none" in refusal("nms", {"background": 0}, boxes=floats(10, 4), scores=floats(10))


def test_boxes_in_a_letterbox_come_back_as_those_of_ultralytics(known: Mapping[str, np.ndarray]) -> None:
    height, width = known["image"].shape[:2]
    _, how = do("letterbox", {"size": [96, 128]}, image=known["image"][None])
    assert how[0, 4:].tolist() == [height, width]
    (back,) = do("unletterbox", {}, boxes=known["corners"][None], how=how)
    np.testing.assert_allclose(back[0], known["scaled"], rtol=1e-5, atol=1e-4)
    (loose,) = do("unletterbox", {}, boxes=known["corners"][None], how=how[:, 1:4])
    assert loose.min() < 0
    np.testing.assert_allclose(loose.clip(0, [width, height, width, height]), back, rtol=0.02)


@given(st.sampled_from(WAYS), st.sampled_from(WAYS), st.integers(0, 6), st.booleans())
def test_boxes_go_from_any_way_to_any_and_back(one: str, other: str, count: int, to_pixels: bool) -> None:
    random = np.random.default_rng(count)
    low = random.uniform(0, 0.5, (1, count, 2))
    corners = np.concatenate([low, low + random.uniform(0, 0.5, (1, count, 2))], axis=2).astype(np.float32)
    (written,) = do("boxes", {"from": "xyxy", "to": one}, boxes=corners)
    there = {"unit": "normalised", "to_unit": "pixels"} if to_pixels else {"unit": "pixels", "to_unit": "normalised"}
    (scaled,) = do("boxes", {"from": one, "to": other, "size": [40, 60], **there}, boxes=written)
    (same,) = do("boxes", {"from": one, "to": other, **there}, boxes=written, sizes=np.array([[40, 60]], np.int64))
    np.testing.assert_array_equal(scaled, same)
    back = {"unit": there["to_unit"], "to_unit": there["unit"]}
    (again,) = do("boxes", {"from": other, "size": [40, 60], **back}, boxes=scaled)
    np.testing.assert_allclose(again, corners, atol=1e-5)


def test_boxes_have_the_numbers_that_their_way_says() -> None:
    corners = np.array([[[10, 20, 40, 60]]], np.float32)
    known = {"xyxy": [10, 20, 40, 60], "yxyx": [20, 10, 60, 40], "xywh": [10, 20, 30, 40], "cxcywh": [25, 40, 30, 40]}
    for way, numbers in known.items():
        assert do("boxes", {"from": "xyxy", "to": way}, boxes=corners)[0].tolist() == [[numbers]]
    (shares,) = do("boxes", {"from": "xyxy", "to_unit": "normalised", "size": [200, 100]}, boxes=corners)
    np.testing.assert_allclose(shares, [[[0.1, 0.1, 0.4, 0.3]]])


def test_a_change_of_units_needs_the_size_of_the_image() -> None:
    options = {"from": "cxcywh", "unit": "normalised", "to_unit": "pixels"}
    assert "takes either size or sizes, the image's height and width, and gets none" in refusal(
        "boxes", options, boxes=floats(5, 4)
    )
    assert "gets size and sizes" in refusal("boxes", {**options, "size": [4, 4]}, boxes=floats(5, 4), sizes=floats(2))
    assert "takes neither" in refusal("boxes", {"from": "xywh", "size": [4, 4]}, boxes=floats(5, 4))
    assert "boxes that it gets are pixels" in refusal(
        "boxes", {**options, "size": [4, 4]}, boxes=floats(5, 4, unit=PIXELS)
    )
    (made,) = OPERATIONS["boxes"].infer({**options, "size": [4, 4]}, {"boxes": floats(5, 4)})
    assert made.unit == PIXELS
    (made,) = OPERATIONS["boxes"].infer({"from": "xywh", "unit": "normalised"}, {"boxes": floats(5, 4)})
    assert made.unit == NORMALISED
    with pytest.raises(ContractError, match="infinity"):
        do("boxes", options, boxes=np.ones((1, 2, 4), np.float32), sizes=np.array([[np.inf, 3]], np.float32))
    with pytest.raises(ValueError, match="no size"):
        do("boxes", options, boxes=np.ones((1, 2, 4), np.float32), sizes=np.array([[0, 3]], np.float32))


@given(
    seed=st.integers(0, 2**32 - 1),
    most_per_class=st.sampled_from([None, 1, 3]),
    most=st.integers(1, 12),
    by_class=st.booleans(),
)
@settings(max_examples=60)
def test_suppression_is_that_of_one_box_after_the_other(
    seed: int, most_per_class: int | None, most: int, *, by_class: bool
) -> None:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 20, (1, 40, 2))
    boxes = np.concatenate([low, low + random.uniform(0, 15, (1, 40, 2))], axis=2).astype(np.float32)
    scores = random.uniform(0, 1, (1, 40, 3)).astype(np.float32)
    options: dict[str, Any] = {"max": most, "iou": 0.3, "among": "class" if by_class else "all"}
    if most_per_class:
        options["max_per_class"] = most_per_class
    with mock.patch("ortdeploy.operations.nms._AT_ONCE", 7):
        *_, classes, places = do("nms", options, boxes=boxes, scores=scores)
    assert list(zip(places[0], classes[0], strict=True)) == one_by_one(
        boxes[0], scores[0], most_per_class or 40, most, by_class=by_class
    )


def one_by_one(
    boxes: np.ndarray, scores: np.ndarray, most_per_class: int, most: int, *, by_class: bool
) -> list[tuple[int, int]]:
    """Suppress boxes by comparing each candidate with all that are kept."""
    kept: list[tuple[int, int]] = []
    for place, named in sorted(np.argwhere(scores >= 0.25).tolist(), key=lambda pair: -scores[pair[0], pair[1]]):
        rivals = [one for one, other in kept if other == named or not by_class]
        enough = len(kept) == most or sum(other == named for _, other in kept) == most_per_class
        if not enough and all(overlap(boxes[one], boxes[place]) <= 0.3 for one in rivals):
            kept.append((place, named))
    return kept


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    across = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    down = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(across * down / (sum(areas) - across * down))
