"""Model files read without a session."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import lora_model, save_model, scale_model

from ortdeploy.digest import file_digest
from ortdeploy.facts import ModelFacts
from ortdeploy.graph import read_model
from ortdeploy.tensors import TensorType


def kind(facts: ModelFacts) -> str:
    assert facts.problem is not None
    return facts.problem.kind


def test_inputs_outputs_symbols_versions(tmp_path: Path) -> None:
    path = scale_model(tmp_path / "m.onnx")
    facts = read_model(path, "m.onnx")
    assert facts.problem is None
    assert [(value.name, value.tensor) for value in facts.inputs] == [("x", TensorType("float32", ("batch", 4)))]
    assert [(value.name, value.tensor) for value in facts.outputs] == [("y", TensorType("float32", ("batch", 4)))]
    assert (facts.ir_version, dict(facts.opsets), set(facts.symbols)) == (8, {"ai.onnx": 17}, {"batch"})
    assert facts.sha256 == file_digest(path)


def test_inputs_with_a_default_are_optional(tmp_path: Path) -> None:
    facts = read_model(lora_model(tmp_path / "m.onnx"), "m.onnx")
    assert {value.name: value.optional for value in facts.inputs} == {"x": False, "lora_A": True, "lora_B": True}


def test_a_scalar_is_not_an_unknown_rank(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["s"], ["y"]), helper.make_node("Identity", ["u"], ["z"])]
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"s": (TensorProto.FLOAT, []), "u": (TensorProto.FLOAT, None)},  # type: ignore[dict-item]  # no shape at all
        {"y": (TensorProto.FLOAT, []), "z": (TensorProto.FLOAT, None)},  # type: ignore[dict-item]
    )
    facts = read_model(path, "m.onnx")
    assert [value.tensor.shape for value in facts.inputs] == [(), None]


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = scale_model(tmp_path / "good.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    assert kind(read_model(path, "m")) == "missing"
    assert kind(read_model(tmp_path, "m")) == "folder"
    for content, expected in [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3\n", "lfs-pointer"),
        (b"\x20\x00\x00\x00ORTM....", "ort-format"),
        (b"hello, this is text", "not-onnx"),
        (b"\x00" * 100, "not-onnx"),
        (good[: len(good) // 2], "not-onnx"),
        (good[:-4], "not-onnx"),
    ]:
        path.write_bytes(content)
        assert kind(read_model(path, "m")) == expected, content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(cut=st.integers(0, 130), flip=st.integers(0, 130), to=st.integers(0, 255))
def test_any_damage_ends_in_facts_or_in_a_problem(tmp_path: Path, cut: int, flip: int, to: int) -> None:
    raw = bytearray(scale_model(tmp_path / "good.onnx").read_bytes())
    raw[flip % len(raw)] = to
    path = tmp_path / "bad.onnx"
    path.write_bytes(raw[: len(raw) - cut % len(raw)])
    facts = read_model(path, "bad.onnx")
    assert facts.problem is not None or facts.outputs


def external(tmp_path: Path, location: str = "w.bin") -> Path:
    path = scale_model(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(np.float32(2).tobytes())
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    onnx.save(model, str(path))
    return path


def test_the_digest_covers_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read_model(path, "m").sha256
    (tmp_path / "w.bin").write_bytes(np.float32(3).tobytes())
    assert read_model(path, "m").sha256 != before


@pytest.mark.parametrize(
    ("location", "words"), [("gone.bin", "is missing"), ("../w.bin", "outside"), ("/etc/passwd", "outside")]
)
def test_external_data_that_is_not_there_or_elsewhere_is_a_problem(tmp_path: Path, location: str, words: str) -> None:
    facts = read_model(external(tmp_path, location), "m")
    assert kind(facts) == "external-data"
    assert facts.problem is not None
    assert words in facts.problem.detail
