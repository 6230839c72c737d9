"""New sizes of images, held against OpenCV, torchvision, ultralytics and Pillow."""

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.operation_references import FOLDER, SIZES, picture

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import PREPARE
from ortdeploy.transforms.sampling import sampler

NHWC = TensorType("uint8", (ROWS, None, None, 3), "NHWC")
METHODS = ("nearest", "bilinear", "bicubic", "lanczos", "area")


@pytest.fixture(scope="module")
def opencv() -> Mapping[str, np.ndarray]:
    with np.load(FOLDER / "opencv.npz") as arrays:
        return dict(arrays)


def resized(image: np.ndarray, **options: Any) -> np.ndarray:
    tensor = TensorType(image.dtype.name, (ROWS, *image.shape), "NHWC")
    (promised,) = PREPARE["resize"].infer(options, tensor)
    (made,) = PREPARE["resize"].build(options, tensor)(image[None])
    assert promised.shape == (ROWS, *made.shape[1:])
    return np.asarray(made[0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_opencv(opencv: Mapping[str, np.ndarray], method: str, size: tuple[int, int]) -> None:
    image, name = opencv["image"], f"{method}_{size[0]}_{size[1]}"
    made = resized(image, resize=list(size), sampling="opencv", method=method)
    off = np.abs(made.astype(int) - opencv[name])
    assert off.max() <= (method in {"bicubic", "lanczos", "area"})
    assert np.count_nonzero(off) <= off.size / 10
    floating = resized(image.astype(np.float32), resize=list(size), sampling="opencv", method=method)
    np.testing.assert_allclose(floating, opencv[f"{name}_float"], atol=0.2)  # kept as float16


def test_pixels_are_those_of_the_opencv_that_is_installed() -> None:
    cv2 = pytest.importorskip("cv2")
    random = np.random.default_rng(5)
    for height, width, new_height, new_width in random.integers(1, 90, (200, 4)).tolist():
        image = picture(height, width)
        made = sampler({"sampling": "opencv"})(image, new_height, new_width)
        np.testing.assert_array_equal(made, cv2.resize(image, (new_width, new_height)).reshape(made.shape))


@given(st.sampled_from(METHODS), st.tuples(*[st.integers(1, 30)] * 4), st.sampled_from(["uint8", "float32"]))
def test_an_even_picture_stays_even(method: str, sizes: tuple[int, int, int, int], dtype: str) -> None:
    height, width, new_height, new_width = sizes
    image = np.full((height, width, 2), 77, dtype)
    made = sampler({"sampling": "opencv", "method": method})(image, new_height, new_width)
    assert (made.shape, made.dtype) == ((new_height, new_width, 2), np.dtype(dtype))
    np.testing.assert_allclose(made.astype(float), 77, atol=1.01 if dtype == "uint8" else 1e-3)


def test_pillow_is_the_default() -> None:
    image = picture(20, 33)
    for method in ("nearest", "bilinear", "bicubic", "lanczos"):
        theirs = Image.fromarray(image).resize((12, 9), Image.Resampling[method.upper()])
        np.testing.assert_array_equal(resized(image, resize=[9, 12], method=method), theirs)


def test_the_shortest_side_is_rounded_as_by_torchvision() -> None:
    with np.load(FOLDER / "torchvision.npz") as known:
        for height, width, *sizes in known["sizes"].tolist():
            image = np.zeros((height, width, 1), np.uint8)
            assert resized(image, resize={"shortest": 37}).shape[:2] == tuple(sizes[:2])
            assert resized(image, resize={"shortest": 37, "longest": 60}).shape[:2] == tuple(sizes[2:])


@pytest.mark.parametrize(
    ("sizes", "given_size", "made"),
    [
        ({"longest": 64}, (100, 50), (64, 32)),
        ({"longest": 64}, (10, 20), (32, 64)),
        ({"longest": 64, "only": "shrink"}, (10, 20), (10, 20)),
        ({"longest": 64, "only": "grow"}, (100, 50), (100, 50)),
        ({"longest": 64, "only": "grow"}, (10, 20), (32, 64)),
        ({"shortest": 736, "only": "grow", "multiple": 32}, (100, 300), (736, 2208)),
        ({"shortest": 736, "only": "grow", "multiple": 32}, (1000, 900), (992, 896)),
        ({"multiple": 32, "round": "up"}, (65, 64), (96, 64)),
        ({"shortest": 10, "round": "nearest"}, (20, 39), (10, 20)),
        ({"shortest": 10, "round": "up"}, (30, 61), (10, 21)),
        ({"longest": 640, "multiple": 32, "round": "up"}, (333, 1000), (224, 640)),
        ({"multiple": 32}, (100, 5), (96, 32)),
        ({"height": 48}, (20, 101), (48, 243)),
        ({"height": 48, "max_width": 200}, (20, 101), (48, 200)),
        ({"height": 48, "round_up_to": 320}, (20, 101), (48, 243)),
        ({"height": 48, "round_up_to": 242}, (20, 101), (48, 242)),
        ({"height": 48, "round_up_to": 243}, (20, 101), (48, 243)),
        ({"height": 48, "round_up_to": 10, "max_width": 200}, (20, 101), (48, 200)),
        ({"width": 48}, (101, 20), (243, 48)),
        ({"shortest": 1}, (400, 1), (400, 1)),
    ],
)
def test_sides_stay_in_proportion(sizes: dict[str, Any], given_size: tuple[int, int], made: tuple[int, int]) -> None:
    assert resized(np.zeros((*given_size, 1), np.uint8), resize=sizes).shape[:2] == made


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"shortest": 4, "height": 4}, "and gets shortest, height"),
        ({"height": 4, "width": 4}, "and gets height, width"),
        ({"max_width": 4}, "and gets max_width"),
        ({"round_up_to": 4}, "and gets round_up_to"),
        ({"width": 4, "round_up_to": 4}, "and gets width, round_up_to"),
        ({"only": "grow"}, "and gets only"),
        ({"height": 4, "only": "grow"}, "there is neither"),
        ({"multiple": 4, "only": "grow"}, "there is neither"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(InapplicableError, match=words):
        PREPARE["resize"].infer({"resize": sizes}, NHWC)


@pytest.mark.parametrize(("sampling", "method"), [("pillow", "area")])
def test_a_method_of_the_other_library_is_refused(sampling: str, method: str) -> None:
    options = {"sampling": sampling, "method": method}
    with pytest.raises(InapplicableError, match=f"{sampling} has no method {method}"):
        PREPARE["resize"].infer({"resize": [4, 4], **options}, NHWC)
    with pytest.raises(InapplicableError, match=f"has no method {method}"):
        OPERATIONS["letterbox"].infer({"size": [4, 4], **options}, {"image": NHWC})


def test_what_is_known_of_the_new_size_is_told_before_the_run() -> None:
    for sizes, shape in (({"height": 48}, (ROWS, 48, None, 3)), ({"width": 50, "multiple": 32}, (ROWS, None, 64, 3))):
        (made,) = PREPARE["resize"].infer({"resize": sizes}, NHWC)
        assert made.shape == shape


def letterboxed(image: np.ndarray, **options: Any) -> tuple[np.ndarray, list[float]]:
    types = {"image": TensorType("uint8", (ROWS, *image.shape), "NHWC")}
    made, how = OPERATIONS["letterbox"].build(options, types)({"image": image[None]})
    return np.asarray(made[0]), how[0].tolist()


def test_a_letterbox_is_that_of_ultralytics() -> None:
    with np.load(FOLDER / "ultralytics.npz") as known:
        made, how = letterboxed(known["image"], size=[96, 128], sampling="opencv")
        np.testing.assert_array_equal(made, known["letterboxed"])
    assert how == pytest.approx([128 / 61, 78 / 37, 0, 9, 37, 61])


def test_a_letterbox_may_begin_at_the_corner_and_leave_small_images() -> None:
    image = picture(10, 20)
    made, how = letterboxed(image, size=[30, 30], place="top_left", only="shrink", value=7)
    assert how == [1, 1, 0, 0, 10, 20]
    np.testing.assert_array_equal(made[:10, :20], image)
    assert (made[10:] == 7).all()
    assert (made[:, 20:] == 7).all()
    made, how = letterboxed(image, size=[30, 30], place="top_left")
    assert how == [1.5, 1.5, 0, 0, 10, 20]
    assert (made[15:] == 114).all()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_padding_fills_right_and_below_and_up_to_a_multiple(layout: str) -> None:
    image = picture(10, 20)
    axes = (2, 0, 1) if layout == "NCHW" else (0, 1, 2)
    tensor = TensorType("uint8", (ROWS, *np.transpose(image, axes).shape), layout)
    for pad, size in ([12, 32], (12, 32)), ({"multiple": 16}, (16, 32)), ([5, 5], (10, 20)):
        options = {"pad": pad, "place": "top_left", "value": 3}
        (promised,) = PREPARE["pad"].infer(options, tensor)
        (made,) = PREPARE["pad"].build(options, tensor)(np.transpose(image, axes)[None])
        assert promised.shape == (ROWS, *made.shape[1:])
        made = made[0].transpose(np.argsort(axes))
        assert made.shape[:2] == size
        np.testing.assert_array_equal(made[:10, :20], image)
        assert (made[10:] == 3).all()
        assert (made[:, 20:] == 3).all()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [[70, 45], [120, 240]])
def test_what_opencvs_arithmetic_takes_for_a_while_is_known(method: str, dtype: str, size: list[int]) -> None:
    """numpy tells tracemalloc of its arrays; Pillow tells nobody."""
    image = np.zeros((300, 300, 3), dtype)
    options = {"resize": size, "sampling": "opencv", "method": method}
    scratch, resize = PREPARE["resize"].scratch(options), PREPARE["resize"].bare(options, NHWC)
    assert scratch is not None
    resize(image[None, :8])  # what is imported on the way does not count
    tracemalloc.start()
    try:
        resize(image[None])
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken == pytest.approx(scratch(image), rel=0.3, abs=2 * size[0] * size[1] * 3 * image.itemsize)
