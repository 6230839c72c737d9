"""Adapter headers against what onnxruntime itself reads of the same files; damaged files, and files of other formats."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.models import make_adapter

from ortdeploy.adapters.file import read_adapter
from ortdeploy.facts.models import AdapterFacts, ParameterFacts


def kind(facts: AdapterFacts) -> str:
    return facts.problem.kind if facts.problem else ""


def test_names_types_shapes_and_versions_are_onnxruntimes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "layer.0.lora_A": np.ones((8, 2), np.float32),
        "größe": np.zeros((3, 0), np.float16),
        "counts": np.ones((2, 3, 4), np.int64),
        "small": np.ones(5, np.uint8),
    }
    path = make_adapter(tmp_path / "a.onnx_adapter", **arrays)
    facts = read_adapter(path, "a")
    read = onnxruntime.AdapterFormat.read_adapter(str(path))
    assert (facts.adapter_version, facts.model_version) == (read.get_adapter_version(), read.get_model_version())
    assert {one.name: (one.dtype, list(one.shape)) for one in facts.parameters} == {
        name: (str(array.dtype), list(array.shape)) for name, array in arrays.items()
    }
    assert {one.name for one in facts.parameters} == set(read.get_parameters())


def test_types_that_numpy_does_not_have(tmp_path: Path) -> None:
    adapter = onnxruntime.AdapterFormat()
    plain = np.ones((2, 3), ml_dtypes.bfloat16).view(np.uint16)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, 16)
    adapter.set_parameters({"a": value})
    adapter.export_adapter(str(tmp_path / "a.onnx_adapter"))
    facts = read_adapter(tmp_path / "a.onnx_adapter", "a")
    assert facts.parameters == (ParameterFacts(name="a", dtype="bfloat16", shape=(2, 3)),)
    assert (facts.adapter_version, facts.model_version) == (0, 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("adapter") / "a.onnx_adapter"
    arrays = {f"layer.{i}.lora_{side}": np.full((4, 3), i, np.float32) for i in range(4) for side in "AB"}
    return make_adapter(path, **arrays).read_bytes()


def loads(path: Path) -> bool:
    try:
        onnxruntime.LoraAdapter().Load(str(path))
    except RuntimeError:
        return False
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(100, 400), deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_a_problem_or_loads(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    """What onnxruntime loads in spite of a flipped bit may be refused here; what is read here may not crash anything."""
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(8, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "a.onnx_adapter"
    path.write_bytes(raw)
    facts = read_adapter(path, "a")
    assert kind(facts) in {"", "damaged-adapter"}
    if bytes(raw) == whole:
        assert facts.problem is None


def test_a_file_that_is_cut_off_anywhere_is_a_problem_where_onnxruntime_refuses_it(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / "a.onnx_adapter"
    refused, lengths = 0, range(0, len(whole), effort(7, 1))
    for length in lengths:
        path.write_bytes(whole[:length])
        facts = read_adapter(path, "a")
        assert kind(facts) in {"", "damaged-adapter", "not-an-adapter"}
        refused += facts.problem is not None
        if facts.problem is None:
            assert loads(path), length
    assert refused > len(lengths) - 1 - 7 // lengths.step


def test_a_gigabyte_that_a_small_file_claims_is_not_looked_for(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.onnx_adapter"
    dims = struct.pack("<2q", 4, 3)
    path.write_bytes(whole.replace(dims, struct.pack("<2q", 2**40, 3), 1))
    facts = read_adapter(path, "a")
    assert facts.problem is not None
    assert "has 48 bytes, and [1099511627776, 3] of float32 needs another number" in facts.problem.detail


def test_other_formats_are_named_with_what_converts_them(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft/adapter_config.json").write_text("{}")
    (tmp_path / "lfs").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "other").write_bytes(b"hello, this is text")
    (tmp_path / "empty").touch()
    for name, said in [
        ("a.safetensors", "is in safetensors format. Convert it: ortdeploy adapter convert."),
        ("a.npz", "is a .npz archive or a PyTorch checkpoint. Convert it: ortdeploy adapter convert"),
        ("peft", "is a PEFT folder. Convert it: ortdeploy adapter convert."),
        ("lfs", "is a Git-LFS pointer"),
        ("other", "is not an ONNX Runtime adapter file"),
        ("empty", "is not an ONNX Runtime adapter file"),
        ("gone", "There is no file gone"),
        (".", "is a folder"),
    ]:
        problem = read_adapter(tmp_path / name, name).problem
        assert problem is not None
        assert said in problem.detail
