"""What is proven of QNN, on its HTP simulator: rows that begin blank, whole numbers of 64 bits, a compiled model."""

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import run_process
from onnx import TensorProto, helper
from support.models import save_model
from support.plugins import needs_qnn, report

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
MANIFEST = """\
version: 1
models:
  m:
    path: m.onnx
    providers: [{provider: QNN, options: {backend_type: htp}}]
    cpu_fallback: allow
jobs:
  run: {model: m, input: {path: data.npy}, batch: {size: 4}, output: {path: out, format: npz}}
"""


def write(folder: Path, rows: np.ndarray) -> Path:
    np.save(folder / "data.npy", rows)
    path = folder / "m.yaml"
    path.write_text(MANIFEST)
    return path


@needs_qnn
def test_a_blank_first_batch_is_no_proof(tmp_path: Path) -> None:
    """QNN's MaxPool with ceil_mode is wrong at the edge; blank pictures give zeros there too."""
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    shapes = {"x": (FLOAT, [4, 2, 7, 7])}, {"y": (FLOAT, [4, 2, 4, 4])}
    save_model(tmp_path / "m.onnx", [pool], *shapes)
    rows = np.random.default_rng(0).standard_normal((16, 2, 7, 7)).astype(np.float32)
    rows[:4] = 0
    write(tmp_path, rows)
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1, applied.out
    assert "output y is not what the CPU provider computes" in " ".join(applied.out.split())
    assert not list((tmp_path / "out").glob("part-*"))


def adding(folder: Path) -> None:
    add = helper.make_node("Add", ["x", "d"], ["y"])
    shapes = {"x": (INT64, [4, 4])}, {"y": (INT64, [4, 4])}
    save_model(folder / "m.onnx", [add], *shapes, {"d": np.array([1, 2, 3, 4])})


@needs_qnn
def test_whole_numbers_beyond_32_bits_fail_their_rows(tmp_path: Path) -> None:
    adding(tmp_path)
    rows = np.random.default_rng(0).integers(0, 10**6, (16, 4))
    rows[8:12] += 1_790_000_000_000
    path = write(tmp_path, rows)
    path.write_text(MANIFEST.replace("format: npz}", "format: npz}, errors: {max_failed: 4}"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    failed = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert [one["row"] for one in failed] == [8, 9, 10, 11]
    assert "computes whole numbers of 64 bits with 32" in failed[0]["message"]
    part = np.load(next((tmp_path / "out").glob("part-*.npz")))
    np.testing.assert_array_equal(part["y"], np.delete(rows, np.s_[8:12], axis=0) + np.array([1, 2, 3, 4]))


@needs_qnn
def test_numbers_beyond_float16_fail_their_rows_and_the_report_names_the_format(tmp_path: Path) -> None:
    multiply = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    save_model(tmp_path / "m.onnx", [multiply], {"x": (FLOAT, [4, 4])}, {"y": (FLOAT, [4, 4])}, {"w": weights})
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    rows[9, 2] = 70000  # the simulator computes with 65536 or with another number
    path = write(tmp_path, rows)
    half = MANIFEST.replace("backend_type: htp", "backend_type: htp, soc_model: 69")
    path.write_text(half.replace("format: npz}", "format: npz}, errors: {max_failed: 1}"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    (failed,) = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert failed["row"] == 9
    assert failed["message"].startswith("input x has 70000. QNN computes float32 in float16")
    proven = report(tmp_path)["proven"]["cpu_comparison"]
    assert (proven["not_proven"], proven["rtol"], proven["atol"]) == (None, 0.05, 0.001)
    assert "float16" in proven["because"][0]


@needs_qnn
def test_a_compiled_model_is_not_compared_with_a_cpu_that_cannot_open_it(tmp_path: Path) -> None:
    save_model(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [4, 8])}, {"y": (FLOAT, [4, 8])}
    )
    rows = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    path = write(tmp_path, rows)
    path.write_text(MANIFEST.replace("    path: m.onnx\n", "    path: m.onnx\n    cache: true\n"))
    assert run_process(["apply", "m.yaml"], cwd=tmp_path).code == 0
    (cache,) = (found.parent for found in (tmp_path / ".ortdeploy/cache").rglob("model.onnx"))
    shutil.copytree(cache, tmp_path / "compiled")
    path.write_text(MANIFEST.replace("m.onnx", "compiled/model.onnx").replace("path: out", "path: again"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    part = np.load(next((tmp_path / "again").glob("part-*.npz")))
    np.testing.assert_allclose(part["y"], np.maximum(rows, 0), atol=1e-3)
    proven = json.loads((tmp_path / "again/_run.json").read_text())["proven"]
    assert "compiled" in proven["cpu_comparison"]["not_proven"]
    assert proven["row_independence"]["not_proven"] is None
    assert report(tmp_path)["proven"]["cpu_comparison"]["not_proven"] is None
