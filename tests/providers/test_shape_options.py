"""Texts that bound input shapes are read as the providers read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.providers.catalogue import Provider, find_provider
from ortdeploy.providers.shape_options import InputBounds, read_shape_options


def provider(name: str) -> Provider:
    found = find_provider(name)
    assert found is not None
    return found


def bounds(option: str, name: str, low: tuple[int, ...], high: tuple[int, ...]) -> InputBounds:
    return InputBounds(option=option, input=name, low=low, high=high)


def test_reshape_input_has_numbers_and_ranges() -> None:
    found = read_shape_options(provider("OpenVINO"), {"reshape_input": "x[1,64], mask.1[1..8,64]"})
    assert found.bounds == (
        bounds("reshape_input", "x", (1, 64), (1, 64)),
        bounds("reshape_input", "mask.1", (1, 64), (8, 64)),
    )
    assert not found.problems


@pytest.mark.parametrize(
    "text", ["x", "x(1,3)", "x[1,-1]", "x[?,3]", "x[8..1]", "x[1,3]]", "[1,3]", "x[]", "x[1];y[2]"]
)
def test_what_openvino_refuses_is_a_problem(text: str) -> None:
    assert read_shape_options(provider("OpenVINO"), {"reshape_input": text}).problems


def profiles(low: str, middle: str, high: str) -> dict[str, str]:
    return {"trt_profile_min_shapes": low, "trt_profile_opt_shapes": middle, "trt_profile_max_shapes": high}


def test_an_incomplete_set_of_profiles_is_said() -> None:
    found = read_shape_options(provider("TensorRT"), {"trt_profile_max_shapes": "x:4x3"})
    ((option, words),) = found.problems
    assert option == "trt_profile_max_shapes"
    assert words.startswith("trt_profile_min_shapes and trt_profile_opt_shapes must be given with it")


def test_profiles_of_one_input_cover_together() -> None:
    found = read_shape_options(provider("TensorRT"), profiles("x:1x3,x:8x3", "x:2x3,x:8x3", "x:4x3,x:16x3"))
    assert found.bounds == (bounds("trt_profile_min_shapes", "x", (1, 3), (16, 3)),)
    assert found.complete


@pytest.mark.parametrize(
    "options",
    [
        profiles("x:1x3", "x:1x3", "y:1x3"),
        profiles("x:1x3", "x:8x3", "x:4x3"),
        profiles("x:2x3", "x:1x3", "x:4x3"),
        profiles("x:1x3", "x:1x3", "x:1"),
        profiles("x", "x:1", "x:1"),
        profiles("x:1xb", "x:1", "x:1"),
    ],
)
def test_what_tensorrt_drops_or_refuses_is_a_problem(options: dict[str, str]) -> None:
    assert read_shape_options(provider("TensorRT"), options).problems


def test_others_have_no_such_options() -> None:
    assert not read_shape_options(provider("CUDA"), {"device_id": 0}).bounds
    assert not read_shape_options(provider("TensorRT"), {"trt_profile_min_shapes": "x:1"}).bounds


@given(st.text(), st.sampled_from(["OpenVINO", "TensorRT", "NvTensorRTRTX"]))
def test_any_text_is_read_or_named(text: str, name: str) -> None:
    prefix = {"TensorRT": "trt", "NvTensorRTRTX": "nv"}.get(name)
    options = (
        {f"{prefix}_profile_{end}_shapes": text for end in ("min", "opt", "max")} if prefix else {"reshape_input": text}
    )
    found = read_shape_options(provider(name), options)
    assert found.bounds or found.problems or not text
