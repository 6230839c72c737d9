"""The operations of pipelines against known answers, rows that differ in shape, and rows that they cannot take."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.tokenize_clip import ClipTokenizer
from ortdeploy.schemas import schema_text
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

IMAGE = TensorType("float32", (ROWS, None, None, 1), "NHWC")
BOXES = TensorType("float32", (ROWS, None, 4))


def do(name: str, options: Mapping[str, Any], types: Mapping[str, TensorType], **values: Column) -> tuple[Any, ...]:
    operation = OPERATIONS[name]
    promised = operation.infer(options, types)
    made = operation.build(options, types)(values)
    for column, kind in zip(made, promised, strict=True):
        if isinstance(column[0], list):  # pictures of several sizes
            continue
        row = np.asarray(column[0])
        if kind.dtype not in {None, "string"}:
            assert row.dtype == kind.dtype
        assert kind.shape is None or len(kind.shape) - 1 == row.ndim or len(row) == 0
    return made


def test_schema_and_catalogue_have_the_same_operations() -> None:
    step = json.loads(schema_text("deployment"))["$defs"]["doStep"]
    branches = [one["if"]["properties"]["do"]["const"] for one in step["allOf"]]
    assert sorted(OPERATIONS) == step["properties"]["do"]["enum"] == sorted(branches)


def test_boxes_are_around_connected_places_in_the_order_of_reading() -> None:
    heat = np.zeros((2, 1, 9, 20), dtype=np.float32)
    heat[0, 0, 1:4, 10:13] = 1
    heat[0, 0, 2:4, 2:4] = 1
    heat[0, 0, 4, 4] = 1  # touches at a corner
    heat[0, 0, 7, 19] = 1
    (boxes,) = do(
        "boxes_from_heatmap", {"threshold": 0.5}, {"heat": TensorType("float32", (ROWS, 1, None, None))}, heat=heat
    )
    assert [row.tolist() for row in boxes] == [[[2, 2, 5, 5], [10, 1, 13, 4], [19, 7, 20, 8]], []]
    options = {"threshold": 0.5, "min_area": 2, "stride": 4, "margin": 1}
    (boxes,) = do("boxes_from_heatmap", options, {"heat": TensorType("float32", (ROWS, None, None))}, heat=heat[:, 0])
    assert boxes[0].tolist() == [[7, 7, 21, 21], [39, 3, 53, 17]]


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=7))
def test_places_are_those_that_a_walk_over_the_pixels_finds(pixels: list[list[bool]]) -> None:
    hot = np.array(pixels)
    left = {(int(y), int(x)) for y, x in np.argwhere(hot)}
    walked = []
    while left:
        waiting = [left.pop()]
        place = list(waiting)
        while waiting:
            y, x = waiting.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            waiting += near
            place += near
        ys, xs = zip(*place, strict=True)
        walked.append([min(xs), min(ys), max(xs) + 1, max(ys) + 1])
    types = {"heat": TensorType("float32", (ROWS, None, None))}
    (boxes,) = do("boxes_from_heatmap", {"threshold": 0.5}, types, heat=hot[None].astype(np.float32))
    assert sorted(boxes[0].tolist()) == sorted(walked)


def test_crops_have_their_boxes_sizes_or_one_size() -> None:
    image = np.arange(48, dtype=np.float32).reshape(1, 6, 8, 1)
    boxes = np.array([[[1, 2, 3, 5], [0.5, 0.5, 1.5, 1.5]]], dtype=np.float32)
    (crops,) = do("crop", {}, {"image": IMAGE, "boxes": BOXES}, image=image, boxes=boxes)
    assert [crop.shape for crop in crops[0]] == [(3, 2, 1), (2, 2, 1)]
    assert crops[0][0][..., 0].tolist() == [[17, 18], [25, 26], [33, 34]]
    (crops,) = do("crop", {"size": [4, 4]}, {"image": IMAGE, "boxes": BOXES}, image=image, boxes=boxes)
    assert np.asarray(crops).shape == (1, 2, 4, 4, 1)
    (crops,) = do("crop", {"size": [4, 4]}, {"image": IMAGE, "boxes": BOXES}, image=image, boxes=boxes[:, :0])
    assert np.asarray(crops).shape == (1, 0, 4, 4, 1)


@pytest.mark.parametrize("box", [[3, 3, 3, 5], [20, 20, 30, 30], [float("nan"), 0, 1, 1], [4, 4, 2, 2]])
def test_a_box_without_area_fails_its_row(box: list[float]) -> None:
    call = OPERATIONS["crop"].build({}, {"image": IMAGE, "boxes": BOXES})
    with pytest.raises(ValueError, match="box"):
        call({"image": np.zeros((1, 6, 8, 1), np.float32), "boxes": np.array([[box]], np.float32)})


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(1, 40))
def test_boxes_come_back_from_a_letterbox(height: int, width: int, to_height: int, to_width: int) -> None:
    image = np.ones((1, height, width, 1), dtype=np.float32)
    options = {"size": [to_height, to_width], "value": 0}
    made, how = do("letterbox", options, {"image": IMAGE}, image=image)
    assert made.shape == (1, to_height, to_width, 1)
    ys, xs = np.nonzero(made[0, :, :, 0])
    inside = np.array([[[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]], dtype=np.float32)
    types = {"boxes": BOXES, "how": TensorType("float32", (ROWS, 3))}
    (back,) = do("unletterbox", {}, types, boxes=inside, how=how)
    pixel = max(height / to_height, width / to_width)
    np.testing.assert_allclose(back[0][0], [0, 0, width, height], atol=1.5 * pixel)


def test_nms_keeps_the_best_of_each_class() -> None:
    boxes = np.array([[[0, 0, 10, 10], [1, 1, 10, 10], [20, 0, 30, 10], [0, 0, 10, 10]]], dtype=np.float32)
    types = {"boxes": BOXES, "scores": TensorType("float32", (ROWS, None, 2))}
    scores = np.array([[[0.8, 0], [0.9, 0], [0.5, 0], [0, 0.7]]], dtype=np.float32)
    kept, best, classes, _ = do("nms", {}, types, boxes=boxes, scores=scores)
    assert kept[0].tolist() == [[1, 1, 10, 10], [0, 0, 10, 10], [20, 0, 30, 10]]
    assert best[0].tolist() == pytest.approx([0.9, 0.7, 0.5])
    assert classes[0].tolist() == [0, 1, 0]
    kept, *_ = do("nms", {"max": 1, "score": 0.1}, types, boxes=boxes, scores=scores)
    assert len(kept[0]) == 1
    kept, *_ = do("nms", {"score": 0.95}, types, boxes=boxes, scores=scores)
    assert np.shape(kept[0]) == (0, 4)


def test_ctc_joins_repeats_and_leaves_blanks_out() -> None:
    path = [1, 1, 0, 1, 2, 2, 0, 0, 3]
    logits = np.eye(4, dtype=np.float32)[path][None]
    types = {"logits": TensorType("float32", (ROWS, None, 4))}
    assert do("ctc_greedy", {"alphabet": "abc"}, types, logits=logits) == (["aabc"], [1])
    with pytest.raises(InapplicableError, match="5 classes"):
        OPERATIONS["ctc_greedy"].infer({"alphabet": "abc"}, {"logits": TensorType("float32", (ROWS, None, 5))})


def test_pooling_counts_only_what_the_mask_keeps() -> None:
    types = {"x": TensorType("float32", (ROWS, None, 2)), "mask": TensorType("int64", (ROWS, None))}
    x = np.array([[[1, 2], [3, 4], [100, 100]], [[1, 1], [1, 1], [1, 1]]], dtype=np.float32)
    (pooled,) = do("mean_pool", {}, types, x=x, mask=np.array([[1, 1, 0], [0, 0, 0]]))
    assert pooled.tolist() == [[2, 3], [0, 0]]
    (unit,) = do("l2_normalize", {}, {"x": TensorType("float32", (ROWS, 2))}, x=pooled * 1.5)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), [1, 0], atol=1e-6)


def test_steps_take_rows_that_differ_in_shape() -> None:
    images = [np.zeros((5, 4, 1), np.uint8), np.ones((3, 8, 1), np.uint8)]
    types = {"x": TensorType("uint8", (ROWS, None, None, 1), "NHWC")}
    (small,) = do("resize", {"resize": [2, 2]}, types, x=images)
    assert small.shape == (2, 2, 2, 1)
    (planes,) = do("layout", {"layout": "NCHW"}, types, x=images)
    assert [plane.shape for plane in planes] == [(1, 5, 4), (1, 3, 8)]


REFERENCE = REPOSITORY / "tests/data/painter.npz"


def test_clip_ids_are_those_of_the_reference() -> None:
    tokenizer = ClipTokenizer(REPOSITORY / "deployments/models/painter/tokenizer")
    with np.load(REFERENCE) as known:
        for text, ids in zip(known["awkward"], known["awkward_ids"], strict=True):
            assert tokenizer.encode(str(text), 77) == ids.tolist(), text


def test_a_folder_without_a_clip_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match="startoftext"):
        ClipTokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}')
    tokenizer = ClipTokenizer(tmp_path)
    assert tokenizer.encode("a a", 6) == [0, 2, 2, 1, 1, 1]
    assert tokenizer.encode("a a a a a a a", 4) == [0, 2, 2, 1]
    with pytest.raises(ValueError, match='no "b</w>"'):
        tokenizer.encode("b", 6)


def test_pixels_are_whole_numbers_and_nan_fails() -> None:
    types = {"x": TensorType("float32", (ROWS, None, None))}
    (made,) = do("pixels", {}, types, x=np.array([[[-1, 0, 0.5, 1, 2]]], dtype=np.float32))
    assert made.tolist() == [[[0, 0, 128, 255, 255]]]
    (made,) = do("pixels", {}, types, x=[np.zeros((2, 3), np.float32), np.ones((1, 1), np.float32)])
    assert [row.shape for row in made] == [(2, 3), (1, 1)]
    with pytest.raises(ValueError, match="NaN"):
        do("pixels", {}, types, x=np.array([[[np.nan]]], dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "options"), [("argmax", {}), ("top_k", {"k": 1}), ("threshold", {"at": 0.5})], ids=lambda one: str(one)[:9]
)
def test_nothing_that_hides_nan_is_made_of_it(name: str, options: Mapping[str, Any]) -> None:
    """An index and a boolean look like any other, and on_nan sees only what a pipeline gives."""
    types = {"x": TensorType("float32", (ROWS, 2))}
    do(name, options, types, x=np.array([[np.inf, 0.5]], np.float32))
    with pytest.raises(ValueError, match="x holds NaN"):
        do(name, options, types, x=np.array([[np.nan, 0.5]], np.float32))
