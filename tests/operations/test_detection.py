"""Points, masks and turned boxes beside boxes: against ultralytics' own results, and models written down here.

The models are those of ultralytics (nms_rotated, batch_probiou, xywhr2xyxyxyxy, process_mask_native, scale_coords),
CenterNet (ctdet_decode), CenterFace and cocoapi, each as its source has it, value by value.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.operation_references import FOLDER, MASK_SIZES

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

Arrays = Mapping[str, np.ndarray]


def do(name: str, options: Mapping[str, Any], **values: Any) -> list[Any]:
    """Do an operation on one row, and return the row's results."""
    types = {key: TensorType(one.dtype.name, (ROWS, *one.shape)) for key, one in values.items()}
    promised = OPERATIONS[name].infer(options, types)
    made = OPERATIONS[name].build(options, types)({key: one[None] for key, one in values.items()})
    assert len(made) == len(promised)
    return [column[0] for column in made]


@pytest.fixture(scope="module")
def known() -> Arrays:
    with np.load(FOLDER / "detection.npz") as arrays:
        return dict(arrays)


def test_turned_boxes_are_those_that_ultralytics_code_keeps(known: Arrays) -> None:
    for row, x in enumerate(known["turned"]):
        boxes, scores, *_ = do("yolo_decode", {"version": "v8", "task": "obb"}, x=x)
        kept, sure, classes, _ = do("nms", {"iou": 0.3, "labels": "best"}, boxes=boxes, scores=scores)
        wanted = known[f"kept_{row}"]
        assert 3 < len(wanted) < 30
        np.testing.assert_allclose(np.c_[kept[:, :4], sure, classes, kept[:, 4]], wanted, atol=1e-6)
        (corners,) = do("corners", {}, boxes=kept)
        np.testing.assert_allclose(corners[:, [2, 1, 0, 3]], known[f"corners_{row}"], atol=1e-4)


def test_masks_and_points_are_those_of_ultralytics_code(known: Arrays) -> None:
    for height, width in MASK_SIZES:
        gain = min(96 / height, 128 / width)
        how = [gain, gain, (128 - width * gain) / 2, (96 - height * gain) / 2, height, width]
        given = {name: known[name] for name in ("factors", "protos", "boxes")}
        masks, _ = do("masks", {}, **given, how=np.array(how, np.float32))
        wanted = np.unpackbits(known[f"masks_{height}_{width}"], count=masks.size).reshape(masks.shape)
        assert np.count_nonzero(masks != wanted) <= 2  # a sum near 0 may be on either side
    how = [128 / 61, 78 / 37, 0, 9, 37, 61]  # as letterbox gives it
    (points,) = do("unletterbox", {}, boxes=known["points"], how=np.array(how, np.float32))
    np.testing.assert_allclose(points, known["scaled"], atol=1e-3)


def turned_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    middles, sides = random.uniform(20, 60, (count, 2)), random.uniform(4, 40, (count, 2))
    return np.concatenate([middles, sides, random.uniform(-0.8, 2.4, (count, 1))], axis=1).astype(np.float32)


def probiou(one: np.ndarray, other: np.ndarray) -> float:
    """ultralytics' probiou of two boxes."""
    shapes = []
    for x, y, width, height, angle in (one.astype(float), other.astype(float)):
        a, b = width**2 / 12, height**2 / 12
        cos, sin = math.cos(angle), math.sin(angle)
        shapes.append((x, y, a * cos**2 + b * sin**2, a * sin**2 + b * cos**2, (a - b) * cos * sin))
    (x1, y1, a1, b1, c1), (x2, y2, a2, b2, c2) = shapes
    eps = 1e-7
    area = (a1 + a2) * (b1 + b2) - (c1 + c2) ** 2
    t1 = ((a1 + a2) * (y1 - y2) ** 2 + (b1 + b2) * (x1 - x2) ** 2) / (area + eps) * 0.25
    t2 = ((c1 + c2) * (x2 - x1) * (y1 - y2)) / (area + eps) * 0.5
    own = max(a1 * b1 - c1**2, 0) * max(a2 * b2 - c2**2, 0)
    t3 = math.log(area / (4 * math.sqrt(own) + eps) + eps) * 0.5
    distance = min(max(t1 + t2 + t3, eps), 100)
    return 1 - math.sqrt(1 - math.exp(-distance) + eps)


@settings(max_examples=effort(12, 200), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 0.7]))
def test_turned_boxes_are_suppressed_as_by_ultralytics(seed: int, iou: float) -> None:
    random = np.random.default_rng(seed)
    boxes, scores = turned_boxes(random, 14), random.permutation(14 * 2).reshape(14, 2).astype(np.float32) / 28
    more = np.arange(28, dtype=np.int64).reshape(14, 2)
    found, sure, classes, places, carried = do(
        "nms", {"iou": iou, "score": 0.2, "labels": "best"}, boxes=boxes, scores=scores, more=more
    )
    best, named = scores.max(axis=1), scores.argmax(axis=1)
    order = [one for one in np.argsort(-best) if best[one] >= 0.2]
    kept = [
        one
        for place, one in enumerate(order)
        if not any(
            named[one] == named[better] and probiou(boxes[better], boxes[one]) >= iou for better in order[:place]
        )
    ]
    assert places.tolist() == kept
    np.testing.assert_array_equal(found, boxes[kept])
    np.testing.assert_array_equal(sure, best[kept])
    assert classes.tolist() == named[kept].tolist()
    np.testing.assert_array_equal(carried, more[kept])
    assert len(do("nms", {"score": 0, "max": 3}, boxes=boxes, scores=scores)[0]) <= 3
    few = do("nms", {"score": 0, "max_per_class": 1}, boxes=boxes, scores=scores)[2]
    assert len(few) == len(set(few.tolist()))


def test_nms_carries_what_each_box_has_in_any_shape() -> None:
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [9, 9, 12, 12]], np.float32)
    more = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    *_, carried = do("nms", {}, boxes=boxes, scores=np.array([0.5, 0.9, 0.7], np.float32), more=more)
    np.testing.assert_array_equal(carried, more[[1, 2]])


@settings(max_examples=effort(20, 300))
@given(st.integers(0, 10**6))
def test_corners_are_those_of_ultralytics_in_the_order_of_the_box(seed: int) -> None:
    boxes = turned_boxes(np.random.default_rng(seed), 5)
    (found,) = do("corners", {}, boxes=boxes)
    for (x, y, width, height, angle), corners in zip(boxes.astype(float), found, strict=True):
        one = np.array([width / 2 * math.cos(angle), width / 2 * math.sin(angle)])
        other = np.array([-height / 2 * math.sin(angle), height / 2 * math.cos(angle)])
        middle = np.array([x, y])
        wanted = [middle - one - other, middle + one - other, middle + one + other, middle - one + other]
        np.testing.assert_allclose(corners, wanted, atol=1e-3)


def test_points_go_back_from_a_letterbox_and_keep_their_third_number() -> None:
    how = np.array([0.5, 0.5, 10, 20, 100, 80], np.float32)
    points = np.array([[[10, 20, 0.9], [30, 45, 0.1], [0, 90, 0.5]]], np.float32)
    (found,) = do("unletterbox", {}, boxes=points, how=how)
    np.testing.assert_allclose(found, [[[0, 0, 0.9], [40, 50, 0.1], [0, 100, 0.5]]])
    (found,) = do("unletterbox", {"outside": "keep"}, boxes=points[..., :2], how=how)
    np.testing.assert_allclose(found, [[[0, 0], [40, 50], [-20, 140]]])
    (boxes,) = do("unletterbox", {"outside": "keep"}, boxes=np.array([[0, 90, 30, 120]], np.float32), how=how)
    np.testing.assert_allclose(boxes, [[-20, 140, 40, 200]])


def test_pose_and_turned_boxes_are_decoded_where_the_classes_end() -> None:
    x: np.ndarray = np.random.default_rng(0).uniform(0, 1, (4 + 2 + 6, 30)).astype(np.float32)
    _, scores, _, points = do("yolo_decode", {"version": "v11", "points": [2, 3]}, x=x)
    np.testing.assert_array_equal(scores, x[4:6].T)
    np.testing.assert_array_equal(points, x[6:].T.reshape(30, 2, 3))
    boxes, scores, _, more = do("yolo_decode", {"version": "v8", "task": "obb"}, x=x)
    np.testing.assert_array_equal(boxes, x[[0, 1, 2, 3, 11]].T)
    assert scores.shape == (30, 7)
    assert more.shape == (30, 0)
    decided = x[:7].T  # center, size, score, class, angle
    decided[:, 5] = 1
    boxes, scores, classes, _ = do("yolo_decode", {"version": "v26", "task": "obb"}, x=decided)
    np.testing.assert_array_equal(boxes, decided[:, [0, 1, 2, 3, 6]])
    assert set(classes.tolist()) == {1}
    with pytest.raises(InapplicableError, match=r"6 numbers follow the scores, and points are \[1, 3\]"):
        OPERATIONS["yolo_decode"].infer(
            {"version": "v11", "classes": 2, "points": [1, 3]}, {"x": TensorType("float32", (ROWS, 12, 60))}
        )


def test_the_picture_of_masks_has_the_number_of_the_first_one() -> None:
    protos = np.stack([np.ones((8, 8)), -np.ones((8, 8))]).astype(np.float32)
    factors = np.array([[0, 1], [1, 0], [1, 0]], np.float32)
    boxes = np.array([[0, 0, 20, 20], [2, 3, 9, 20], [4.5, 10.5, 40, 12]], np.float32)
    how = np.array([1.6, 1.6, 0, 0, 20, 20], np.float32)
    masks, numbers = do("masks", {}, factors=factors, protos=protos, boxes=boxes, how=how)
    wanted = np.zeros((20, 20), int)
    wanted[11:12, 5:20] = 3  # from the first pixel behind a border, up to that behind the other
    wanted[3:20, 2:9] = 2
    np.testing.assert_array_equal(numbers, wanted)
    assert masks.sum(axis=(1, 2)).tolist() == [0, 7 * 17, 15]
    boxes[1, 0] = np.nan
    with pytest.raises(ValueError, match="boxes holds NaN"):  # and gives no empty mask
        do("masks", {}, factors=factors, protos=protos, boxes=boxes, how=how)


def counts_of(text: str) -> list[int]:
    """rleFrString of cocoapi."""
    counts: list[int] = []
    place = 0
    while place < len(text):
        number, shift, more = 0, 0, True
        while more:
            sign = ord(text[place]) - 48
            number |= (sign & 0x1F) << (5 * shift)
            more = bool(sign & 0x20)
            place, shift = place + 1, shift + 1
            if not more and sign & 0x10:
                number |= -1 << (5 * shift)
        counts.append(number + counts[-2] if len(counts) > 2 else number)
    return counts


bitmaps = st.integers(1, 9).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=9)
)


@settings(max_examples=effort(40, 600))
@given(bitmaps, st.integers(1, 40))
def test_run_lengths_are_those_of_coco(pixels: list[list[bool]], larger: int) -> None:
    mask = np.kron(np.array(pixels), np.ones((larger, 1), bool))
    ((text,),) = do("rle", {}, masks=mask[None])
    counts = counts_of(text)
    assert sum(counts) == mask.size
    flat = np.repeat(np.arange(len(counts)) % 2, counts)
    np.testing.assert_array_equal(flat.reshape(mask.shape[::-1]).T, mask)


def test_run_lengths_are_read_by_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    mask: np.ndarray = np.random.default_rng(0).random((300, 200)) < 0.3
    ((text,),) = do("rle", {}, masks=mask[None])
    assert coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode() == text


def pieces_of(pixels: set[tuple[int, int]], *, corners: bool) -> Iterator[set[tuple[int, int]]]:
    """Yield the connected pieces of pixels, by a walk; `corners`: pixels that touch at a corner are connected."""
    left = set(pixels)
    while left:
        waiting = [left.pop()]
        piece = set(waiting)
        while waiting:
            y, x = waiting.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if corners or not (dy and dx)} & left
            left -= near
            piece |= near
            waiting += near
        yield piece


@settings(max_examples=effort(40, 600))
@given(bitmaps)
def test_a_polygon_has_the_area_of_the_largest_piece_with_its_holes(pixels: list[list[bool]]) -> None:
    mask = np.array(pixels)
    ((points,),) = do("polygons", {}, masks=mask[None].astype(np.uint8))
    pieces = list(pieces_of({(int(y), int(x)) for y, x in np.argwhere(mask)}, corners=True))
    if not pieces:
        assert points.shape == (0, 2)
        return
    x, y = points.T
    area = abs(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) / 2
    largest = max(map(len, pieces))
    everything = {(y, x) for y in range(-1, mask.shape[0] + 1) for x in range(-1, mask.shape[1] + 1)}
    assert area in [
        len(everything) - len(next(one for one in pieces_of(everything - piece, corners=False) if (-1, -1) in one))
        for piece in pieces
        if len(piece) == largest
    ]
    steps = np.roll(points, -1, axis=0) - points
    assert (np.count_nonzero(steps, axis=1) == 1).all()  # along pixels, and no corner that is none


def test_a_tolerance_leaves_out_points_beside_a_line() -> None:
    mask = np.tri(40, dtype=np.uint8)  # a staircase
    ((exact,),) = do("polygons", {}, masks=mask[None])
    ((simple,),) = do("polygons", {"tolerance": 1}, masks=mask[None])
    assert len(exact) == 82
    assert len(simple) <= 5
    assert {tuple(one) for one in simple.tolist()} <= {tuple(one) for one in exact.tolist()}


def ctdet(heat: np.ndarray, sizes: np.ndarray, shifts: np.ndarray, k: int) -> list[tuple[Any, ...]]:
    """ctdet_decode of CenterNet with a 3 x 3 maximum: score, class, left, top, right, bottom in cells."""
    found = []
    for one, y, x in np.ndindex(heat.shape):
        around = heat[one, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
        if heat[one, y, x] == around.max():
            (across, down), (width, height) = shifts[:, y, x], sizes[:, y, x]
            middle = x + across, y + down
            found.append(
                (
                    heat[one, y, x],
                    one,
                    middle[0] - width / 2,
                    middle[1] - height / 2,
                    middle[0] + width / 2,
                    middle[1] + height / 2,
                )
            )
    return sorted(found, reverse=True)[:k]


@settings(max_examples=effort(12, 200))
@given(st.integers(0, 10**6))
def test_centers_are_those_of_centernet(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random.permutation(2 * 6 * 7).reshape(2, 6, 7).astype(np.float32) / 84
    sizes, shifts = (random.uniform(0, 3, (2, 6, 7)).astype(np.float32) for _ in range(2))
    points = random.normal(size=(6, 6, 7)).astype(np.float32)
    boxes, scores, classes, places = do(
        "center_decode", {"score": 0, "max": 5}, heat=heat, sizes=sizes, shifts=shifts, points=points
    )
    for (score, one, *corners), box, sure, named in zip(
        ctdet(heat, sizes, shifts, 5), boxes, scores, classes, strict=True
    ):
        assert (sure, named) == (score, one)
        np.testing.assert_allclose(box, np.array(corners) * 4, rtol=1e-5, atol=1e-4)
    _, y, x = np.unravel_index(heat.argmax(), heat.shape)
    middle = np.array([x, y]) + shifts[:, y, x]
    np.testing.assert_allclose(places[0], (middle + points[:, y, x].reshape(3, 2)) * 4, rtol=1e-5, atol=1e-4)


def test_centers_are_those_of_centerface() -> None:
    random = np.random.default_rng(4)
    heat = random.random((1, 5, 6)).astype(np.float32)
    scale, offset = (random.uniform(0, 2, (2, 5, 6)).astype(np.float32) for _ in range(2))
    marks = random.random((10, 5, 6)).astype(np.float32)
    options = {
        "order": "yx",
        "sizes_as": "log",
        "middle": 0.5,
        "points_from": "box",
        "peak": 1,
        "score": 0.5,
    }
    boxes, scores, _, points = do("center_decode", options, heat=heat, sizes=scale, shifts=offset, points=marks)
    wanted = []
    for y, x in np.argwhere(heat[0] >= 0.5):  # decode of centerface.py, before it cuts at the borders
        s0, s1 = np.exp(scale[:, y, x]) * 4
        x1, y1 = (x + offset[1, y, x] + 0.5) * 4 - s1 / 2, (y + offset[0, y, x] + 0.5) * 4 - s0 / 2
        lms = [[marks[2 * j + 1, y, x] * s1 + x1, marks[2 * j, y, x] * s0 + y1] for j in range(5)]
        wanted.append((heat[0, y, x], [x1, y1, x1 + s1, y1 + s0], lms))
    wanted.sort(key=lambda one: -one[0])
    assert len(wanted) == len(boxes)
    for (sure, box, lms), *found in zip(wanted, scores, boxes, points, strict=True):
        assert found[0] == sure
        np.testing.assert_allclose(found[1], box, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[2], lms, rtol=1e-4, atol=1e-4)
    with pytest.raises(InapplicableError, match="pairs of numbers, and each cell has 5"):
        do("center_decode", {}, heat=heat, sizes=scale, points=marks[:5])
    with pytest.raises(InapplicableError, match="has an odd number of cells"):
        do("center_decode", {"peak": 2}, heat=heat, sizes=scale)
