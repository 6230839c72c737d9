"""Every prepare step against a known answer, Pillow's for images; and inference against what really comes out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import PREPARE

RANDOM = np.random.default_rng(7)
RGB = RANDOM.integers(0, 256, (2, 9, 12, 3), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (2, 9, 12, 1), dtype=np.uint8)
NHWC = "NHWC"


def run(options: Mapping[str, Any], array: np.ndarray, layout: str | None = NHWC) -> np.ndarray:
    name = next(iter(options))
    dtype = "string" if array.dtype == object else str(array.dtype)
    tensor = TensorType(dtype, (ROWS, *array.shape[1:]), layout)
    (inferred,) = PREPARE[name].infer(options, tensor)
    (result,) = PREPARE[name].build(options, tensor)(array)
    assert inferred.shape == (ROWS, *result.shape[1:])
    assert inferred.dtype == ("string" if result.dtype == object else str(result.dtype))
    return result


def refuse(options: Mapping[str, Any], tensor: TensorType) -> str:
    with pytest.raises(InapplicableError) as caught:
        PREPARE[next(iter(options))].infer(options, tensor)
    return str(caught.value)


def test_cast() -> None:
    assert run({"cast": "float32"}, np.array([[1, 2]], dtype=np.uint8)).tolist() == [[1.0, 2.0]]
    assert run({"cast": "uint8"}, np.array([[0.9, 255.0]], dtype=np.float32)).tolist() == [[0, 255]]
    assert run({"cast": "string"}, np.array([[1, 2]], dtype=np.int64)).tolist() == [["1", "2"]]
    assert run({"cast": "float32"}, np.array([["1.5"]], dtype=object)).tolist() == [[1.5]]
    assert run({"cast": "int64"}, np.array([[True]])).tolist() == [[1]]


@pytest.mark.parametrize("value", [256, -1, 1e9, float("nan"), float("inf")])
def test_cast_never_wraps_a_number(value: float) -> None:
    with pytest.raises(ValueError, match="does not fit uint8, which holds whole numbers from 0 to 255"):
        run({"cast": "uint8"}, np.array([[value]], dtype=np.float64))


@pytest.mark.parametrize(
    ("name", "value"), [("float32", 1e39), ("float16", 70000.0), ("float32", -1e300), ("float16", np.float32(1e20))]
)
def test_cast_makes_no_number_infinite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"does not fit {name}, which holds numbers up to"):
        run({"cast": name}, np.array([[value, 1]]))
    assert run({"cast": name}, np.array([[np.inf, 1]])).tolist() == [[np.inf, 1]]


def test_cast_reads_text_as_csv_does() -> None:
    assert run({"cast": "int64"}, np.array([["9007199254740993", "2.0"]], dtype=object)).tolist() == [
        [9007199254740993, 2]
    ]
    assert run({"cast": "bool"}, np.array([["false", "true"]], dtype=object)).tolist() == [[False, True]]
    for name in ("int64", "float32", "bfloat16", "int4"):
        with pytest.raises(ValueError, match="digits of a number"):
            run({"cast": name}, np.array([["1_0"]], dtype=object))


def test_cast_takes_the_largest_number_of_a_type() -> None:
    largest = np.array([[2**63 - 1]], dtype=np.uint64)
    assert run({"cast": "int64"}, largest).tolist() == [[2**63 - 1]]
    with pytest.raises(ValueError, match="9223372036854775808 does not fit int64"):
        run({"cast": "int64"}, largest + np.uint64(1))


def test_scale_makes_integers_float32_and_keeps_floating_types() -> None:
    assert run({"scale": 0.5}, np.array([[1, 255]], dtype=np.uint8)).tolist() == [[0.5, 127.5]]
    assert run({"scale": 2}, np.array([[1.5]], dtype=np.float64)).dtype == np.float64
    assert run({"scale": 2}, np.array([[1.5]], dtype=np.float16)).dtype == np.float16


def test_scale_refuses_text() -> None:
    assert "gets text" in refuse({"scale": 2}, TensorType("string", (ROWS,)))


def test_normalize_per_channel_in_both_layouts() -> None:
    mean, std = [1.0, 2.0, 3.0], [1.0, 2.0, 4.0]
    options = {"normalize": {"mean": mean, "std": std}}
    expected = (RGB.astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
    assert np.array_equal(run(options, RGB), expected)
    planes = np.ascontiguousarray(RGB.transpose(0, 3, 1, 2))
    assert np.array_equal(run(options, planes, "NCHW"), expected.transpose(0, 3, 1, 2))


def test_normalize_by_one_number() -> None:
    result = run({"normalize": {"mean": 127.5, "std": 127.5}}, np.array([[0, 255]], np.uint8), None)
    assert result.tolist() == [[-1.0, 1.0]]


def test_normalize_refuses_other_channel_counts_and_zero() -> None:
    tensor = TensorType("uint8", (ROWS, 8, 8, 1), NHWC)
    assert "1 channels" in refuse({"normalize": {"mean": [1, 2, 3], "std": 1}}, tensor)
    assert "divide by zero" in refuse({"normalize": {"mean": 0, "std": 0}}, tensor)


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resize_is_pillows(method: str) -> None:
    result = run({"resize": [4, 5], "method": method}, RGB)
    expected = Image.fromarray(RGB[1]).resize((5, 4), Image.Resampling[method.upper()])
    assert np.array_equal(result[1], np.asarray(expected))


def test_resize_of_grey_and_float_images() -> None:
    expected = np.asarray(Image.fromarray(GREY[0, :, :, 0]).resize((7, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(run({"resize": [20, 7]}, GREY)[0, :, :, 0], expected)
    floats = GREY.astype(np.float32)
    expected = np.asarray(Image.fromarray(floats[0, :, :, 0]).resize((7, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(run({"resize": [20, 7]}, floats)[0, :, :, 0], expected)


def test_resize_refuses_nchw_and_other_types() -> None:
    assert "put it before" in refuse({"resize": [4, 4]}, TensorType("uint8", (ROWS, 3, 8, 8), "NCHW"))
    assert "cast before" in refuse({"resize": [4, 4]}, TensorType("int64", (ROWS, 8, 8, 3), NHWC))
    assert "it takes [rows, height, width, channels] and gets" in refuse(
        {"resize": [4, 4]}, TensorType("uint8", (ROWS, 8))
    )


def test_center_crop() -> None:
    assert np.array_equal(run({"center_crop": [3, 4]}, RGB), RGB[:, 3:6, 4:8])
    planes = np.ascontiguousarray(RGB.transpose(0, 3, 1, 2))
    assert np.array_equal(run({"center_crop": [3, 4]}, planes, "NCHW"), planes[:, :, 3:6, 4:8])
    assert "height must be at least 100 (center_crop) and is 9" in refuse(
        {"center_crop": [100, 4]}, TensorType("uint8", (ROWS, 9, 12, 3), NHWC)
    )


@pytest.mark.parametrize("like", ["transformers", "torchvision"])
def test_the_middle_between_two_pixels_is_that_of_a_library(like: str) -> None:
    for width in range(4, 40):
        wide = np.arange(width, dtype=np.uint8)[None, None, :, None].repeat(4, 1)
        left = round((width - 4) / 2.0) if like == "torchvision" else (width - 4) // 2
        assert run({"center_crop": [4, 4], "like": like}, wide)[0, 0, :, 0].tolist() == list(range(left, left + 4))
        if like == "transformers":
            assert np.array_equal(run({"center_crop": [4, 4]}, wide), run({"center_crop": [4, 4], "like": like}, wide))


def test_center_crop_of_an_image_that_is_too_small_fails() -> None:
    crop = PREPARE["center_crop"].build({"center_crop": [10, 4]}, TensorType("uint8", (ROWS, None, None, 3), NHWC))
    with pytest.raises(ValueError, match="height must be at least 10"):
        crop(RGB)


def test_pad() -> None:
    result = run({"pad": [12, 12], "value": 9}, RGB)
    assert np.array_equal(result[:, 1:10], RGB)
    assert (result[:, 0] == 9).all()
    assert (result[:, 10:] == 9).all()
    assert np.array_equal(run({"pad": [2, 2]}, RGB), RGB)


def test_grayscale_is_pillows_bit_for_bit() -> None:
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in RGB])
    assert np.array_equal(run({"grayscale": True}, RGB)[..., 0], expected)
    assert np.array_equal(run({"grayscale": True}, GREY), GREY)


@given(arrays(np.uint8, (1, 2, 3, 3)))
def test_grayscale_is_pillows_for_any_color(image: np.ndarray) -> None:
    expected = np.asarray(Image.fromarray(image[0]).convert("L"))
    assert np.array_equal(run({"grayscale": True}, image)[0, ..., 0], expected)


def test_grayscale_of_floats() -> None:
    result = run({"grayscale": True}, np.array([[[[1.0, 0.5, 0.25]]]], dtype=np.float32))
    assert result[0, 0, 0, 0] == pytest.approx(0.299 + 0.587 * 0.5 + 0.114 * 0.25)


def test_rgb_and_bgr() -> None:
    assert np.array_equal(run({"rgb": True}, GREY), np.concatenate([GREY] * 3, axis=3))
    assert np.array_equal(run({"rgb": True}, RGB), RGB)
    assert np.array_equal(run({"bgr": True}, RGB), RGB[..., ::-1])
    planes = np.ascontiguousarray(RGB.transpose(0, 3, 1, 2))
    assert np.array_equal(run({"bgr": True}, planes, "NCHW"), planes[:, ::-1])
    assert "channels must be 1 or 3 and is 4" in refuse({"rgb": True}, TensorType("uint8", (ROWS, 8, 8, 4), NHWC))


def test_layout() -> None:
    assert np.array_equal(run({"layout": "NCHW"}, RGB), RGB.transpose(0, 3, 1, 2))
    assert np.array_equal(run({"layout": "NHWC"}, RGB), RGB)
    planes = np.ascontiguousarray(RGB.transpose(0, 3, 1, 2))
    assert np.array_equal(run({"layout": "NHWC"}, planes, "NCHW"), RGB)
    assert np.array_equal(run({"layout": "NCHW", "from": "NHWC"}, RGB, None), planes)
    assert "from: NHWC" in refuse({"layout": "NCHW"}, TensorType("uint8", (ROWS, 8, 8, 3)))
    assert "is NHWC" in refuse({"layout": "NHWC", "from": "NCHW"}, TensorType("uint8", (ROWS, 8, 8, 3), NHWC))


def test_expand_and_squeeze_count_axes_within_the_row() -> None:
    rows = np.arange(6).reshape(2, 3)
    assert run({"expand": 0}, rows, None).shape == (2, 1, 3)
    assert run({"expand": 1}, rows, None).shape == (2, 3, 1)
    assert run({"expand": -1}, rows, None).shape == (2, 3, 1)
    assert run({"squeeze": 0}, rows[:, None], None).shape == (2, 3)
    assert run({"squeeze": -1}, rows[..., None], None).shape == (2, 3)
    assert "no place" in refuse({"expand": 5}, TensorType("uint8", (ROWS, 3)))
    assert "no axis" in refuse({"squeeze": 1}, TensorType("uint8", (ROWS, 3)))
    assert "is not 1" in refuse({"squeeze": 0}, TensorType("uint8", (ROWS, 3)))


def test_flatten() -> None:
    assert np.array_equal(run({"flatten": True}, RGB), RGB.reshape(2, 9 * 12 * 3))
    assert run({"flatten": True}, np.arange(3)[:, None], None).shape == (3, 1)
    assert PREPARE["flatten"].infer({}, TensorType("uint8", (ROWS, None, 3)))[0].shape == (ROWS, None)


@given(
    st.sampled_from(sorted(PREPARE)),
    st.sampled_from([TensorType(), TensorType("float32"), TensorType(None, (ROWS, None, None, None), NHWC)]),
)
def test_steps_accept_what_is_not_known_yet(name: str, tensor: TensorType) -> None:
    options: dict[str, Any] = {
        "cast": "float32", "scale": 2.0, "normalize": {"mean": 0.0, "std": 1.0}, "resize": [8, 8], "center_crop": [4, 4],
        "pad": [4, 4], "expand": 0, "squeeze": 0, "layout": "NCHW",
    }  # fmt: skip
    if name == "mono" and tensor.shape is not None:
        tensor = TensorType(None, (ROWS, None, None))  # it takes no images
    if name == "log_mel" and tensor.shape is not None:
        tensor = TensorType(None, (ROWS, None))
    step = {name: options.get(name, True)} | ({"from": "NHWC"} if name == "layout" else {})
    (inferred,) = PREPARE[name].infer(step, tensor)
    assert isinstance(inferred, TensorType)
