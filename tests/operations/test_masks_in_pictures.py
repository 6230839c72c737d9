"""Masks and scores in the pixels of the picture: against torchvision's and PyTorch's definitions, pixel by pixel."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.effort import effort

from ortdeploy.operations import class_map
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.resizing import Taps, resized
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

MARGIN = 1e-5
"""A value so near to the limit may be on either side."""


def types_of(values: dict[str, np.ndarray]) -> dict[str, TensorType]:
    return {key: TensorType(one.dtype.name, (ROWS, *one.shape)) for key, one in values.items()}


def do(name: str, options: dict[str, Any], **values: np.ndarray) -> list[Any]:
    types = types_of(values)
    assert len(OPERATIONS[name].infer(options, types)) == len(OPERATIONS[name].contract.outputs)
    made = OPERATIONS[name].build(options, types)({key: one[None] for key, one in values.items()})
    return [column[0] for column in made]


def interpolated(one: np.ndarray, height: int, width: int) -> np.ndarray:
    """torch.nn.functional.interpolate(mode="bilinear", align_corners=False), pixel by pixel."""

    def place(at: int, new: int, old: int) -> tuple[int, int, float]:
        source = max((at + 0.5) * old / new - 0.5, 0)
        first = min(int(source), old - 1)
        return first, min(first + 1, old - 1), source - first

    found = np.zeros((height, width))
    for y in range(height):
        y0, y1, v = place(y, height, one.shape[0])
        for x in range(width):
            x0, x1, u = place(x, width, one.shape[1])
            upper = (1 - u) * float(one[y0, x0]) + u * float(one[y0, x1])
            lower = (1 - u) * float(one[y1, x0]) + u * float(one[y1, x1])
            found[y, x] = (1 - v) * upper + v * lower
    return found


def pasted(mask: np.ndarray, box: np.ndarray, height: int, width: int) -> np.ndarray:
    """expand_masks, expand_boxes and paste_mask_in_image of torchvision."""
    size = mask.shape[-1]
    scale = (size + 2) / size
    framed = np.zeros((size + 2, size + 2))
    framed[1:-1, 1:-1] = mask
    x_c, y_c = (box[2] + box[0]) * 0.5, (box[3] + box[1]) * 0.5
    w_half, h_half = (box[2] - box[0]) * 0.5 * scale, (box[3] - box[1]) * 0.5 * scale
    x0, y0, x1, y1 = int(x_c - w_half), int(y_c - h_half), int(x_c + w_half), int(y_c + h_half)
    large = interpolated(framed, max(y1 - y0 + 1, 1), max(x1 - x0 + 1, 1))
    found = np.zeros((height, width))
    left, right, top, bottom = max(x0, 0), min(x1 + 1, width), max(y0, 0), min(y1 + 1, height)
    if left < right and top < bottom:
        found[top:bottom, left:right] = large[top - y0 : bottom - y0, left - x0 : right - x0]
    return found


def assert_above(found: np.ndarray, values: np.ndarray, limit: float) -> None:
    clear = np.abs(values - limit) > MARGIN
    np.testing.assert_array_equal(found[clear], (values > limit)[clear])


def test_the_definition_here_is_that_of_pillow_where_it_enlarges() -> None:
    one = np.random.default_rng(1).random((5, 7)).astype(np.float32)
    wanted = np.array(Image.fromarray(one).resize((31, 23), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(interpolated(one, 23, 31), wanted, atol=1e-6)


@given(seed=st.integers(0, 2**32), height=st.integers(1, 40), width=st.integers(1, 40), channel=st.booleans())
@settings(max_examples=effort(15, 300), deadline=None)
def test_masks_of_boxes_are_pasted_as_torchvision_pastes_them(
    seed: int, height: int, width: int, channel: bool
) -> None:
    draw = np.random.default_rng(seed)
    count, size = int(draw.integers(0, 4)), int(draw.integers(1, 9))
    masks = draw.random((count, size, size)).astype(np.float32)
    corners = draw.uniform(-10, 50, (count, 2, 2))
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)
    given = masks[:, None] if channel else masks
    found, numbers = do("paste_masks", {}, masks=given, boxes=boxes, how=np.array([height, width], np.int64))
    assert found.shape == (count, height, width)
    wanted = np.zeros((height, width), np.uint8)
    for number in range(count, 0, -1):
        values = pasted(masks[number - 1], boxes[number - 1].astype(float), height, width)
        assert_above(found[number - 1], values, 0.5)
        wanted[found[number - 1]] = number
    np.testing.assert_array_equal(numbers, wanted)


@given(seed=st.integers(0, 2**32), height=st.integers(1, 40), width=st.integers(1, 40))
@settings(max_examples=effort(15, 300), deadline=None)
def test_maps_of_resized_pictures_are_interpolated_as_pytorch_does_it(seed: int, height: int, width: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.standard_normal((int(draw.integers(1, 5)), *draw.integers(1, 12, 2))).astype(np.float32)
    sizes = np.array([height, width], np.int64)
    values = np.stack([interpolated(one, height, width) for one in scores])
    masks, _ = do("paste_masks", {"above": 0.0}, masks=scores, how=sizes)
    assert_above(masks, values, 0)
    (classes,) = do("class_map", {}, scores=scores, how=sizes)
    best = np.sort(values, axis=0)
    clear = np.full((height, width), True) if len(best) < 2 else best[-1] - best[-2] > MARGIN
    np.testing.assert_array_equal(classes[clear], values.argmax(axis=0)[clear])


def test_a_row_of_a_map_is_mixed_for_few_rows_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a large map at once, for each piece of a picture, takes seconds and gigabytes."""
    scores, sizes = np.random.default_rng(3).standard_normal((3, 50, 4)).astype(np.float32), np.array([90, 6], np.int64)
    (whole,) = do("class_map", {}, scores=scores, how=sizes)
    mixed: list[int] = []

    def noting(one: np.ndarray, *taps: Taps) -> np.ndarray:
        mixed.append(one.shape[-2])
        return resized(one, *taps)

    monkeypatch.setattr(class_map, "_AT_ONCE", 3 * 6 * 9)
    monkeypatch.setattr(class_map, "resized", noting)
    (pieces,) = do("class_map", {}, scores=scores, how=sizes)
    np.testing.assert_array_equal(pieces, whole)
    assert len(mixed) == 10
    assert max(mixed) <= 9


@pytest.mark.parametrize("place", ["center", "top_left"])
@pytest.mark.parametrize(("height", "width"), [(30, 60), (60, 30), (17, 17), (64, 13)])
@pytest.mark.parametrize("coarser", [1, 4])
def test_a_map_of_a_letterboxed_picture_is_cut_and_resized(place: str, height: int, width: int, coarser: int) -> None:
    """What lies beside the picture in the letterboxed image has no part in it, where borders are those of pixels."""
    side = 32
    image = np.full((height, width, 3), 200, np.uint8)
    _, how = do("letterbox", {"size": [side, side], "place": place}, image=image)
    inner = [round(side * size / max(height, width)) for size in (height, width)]
    before = [(side - one) // 2 if place == "center" else 0 for one in inner]
    scores = np.full((2, side // coarser, side // coarser), 50, np.float32)
    down, across = (slice(one // coarser, (one + size) // coarser) for one, size in zip(before, inner, strict=True))
    whole = all(one % coarser == 0 for one in (*before, *inner))
    part = np.random.default_rng(5).standard_normal(scores[:, down, across].shape)
    scores[:, down, across] = part
    if not whole:
        scores[:] = 3
    size = {} if coarser == 1 else {"size": [side, side]}
    masks, _ = do("paste_masks", {"above": 0.0, **size}, masks=scores, how=how)
    (classes,) = do("class_map", size, scores=scores, how=how)
    assert masks.shape == (2, height, width)
    assert classes.shape == (height, width)
    values = np.stack([interpolated(one, height, width) for one in part]) if whole else np.full(masks.shape, 3)
    assert_above(masks, values, 0)
    clear = np.abs(values[0] - values[1]) > MARGIN
    np.testing.assert_array_equal(classes[clear], values.argmax(axis=0)[clear])


@pytest.mark.parametrize(
    ("of_how", "of_boxes", "message"), [(2, False, "is a height and a width alone"), (6, True, "which lie over boxes")]
)
def test_a_size_of_no_letterboxed_image_is_refused(of_how: int, of_boxes: bool, message: str) -> None:
    types = {"masks": TensorType("float32", (ROWS, None, 4, 4)), "how": TensorType("float32", (ROWS, of_how))}
    types |= {"boxes": TensorType("float32", (ROWS, None, 4))} if of_boxes else {}
    with pytest.raises(InapplicableError, match=message):
        OPERATIONS["paste_masks"].infer({"size": [8, 8]}, types)


def test_a_picture_without_a_size_fails_its_row() -> None:
    with pytest.raises(ValueError, match="a picture of 0 x 5 pixels has no map"):
        do("class_map", {}, scores=np.zeros((2, 3, 3), np.float32), how=np.array([0, 5], np.int64))


def test_more_classes_than_a_picture_has_grey_values_are_refused() -> None:
    with pytest.raises(ValueError, match="256 classes at most, and these are 257"):
        do("class_map", {}, scores=np.zeros((257, 3, 3), np.float32), how=np.array([4, 5], np.int64))


def test_more_masks_than_a_picture_numbers_are_refused_where_they_show() -> None:
    masks = np.zeros((256, 2, 2), np.float32)
    masks[:, 0] = 1
    size = np.array([2, 2], np.int64)
    _, numbers = do("paste_masks", {}, masks=masks, how=size)
    assert numbers.tolist() == [[1, 1], [0, 0]]
    masks[255, 1] = 1
    with pytest.raises(ValueError, match="255 masks at most, and these are 256; keep fewer"):
        do("paste_masks", {}, masks=masks, how=size)
