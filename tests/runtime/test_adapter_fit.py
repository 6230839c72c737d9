"""What is said of adapters against what ONNX Runtime does with them: none that is accepted fails."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.effort import effort
from support.models import Shape, make_adapter, save_model

from ortdeploy.adapters.file import read_adapter
from ortdeploy.graph.model import read_model
from ortdeploy.rules.adapter_mismatch import adapter_problems

WIDTH = 4
RANKS = st.sampled_from([1, 2, 8])
LAYERS = ("q", "k")


def two_layers(path: Path, *, shared: bool, static: int | None) -> Path:
    """Two layers of x + x A B behind each other, with zero-rank defaults, or those of a fixed rank."""
    nodes, last = [], "x"
    inputs: dict[str, tuple[int, Shape]] = {"x": (TensorProto.FLOAT, ["batch", WIDTH])}
    weights: dict[str, np.ndarray] = {}
    for layer in LAYERS:
        a, b, rank = f"{layer}.lora_A", f"{layer}.lora_B", static or ("r" if shared else f"r_{layer}")
        inputs |= {a: (TensorProto.FLOAT, [WIDTH, rank]), b: (TensorProto.FLOAT, [rank, WIDTH])}
        weights |= {a: np.zeros((WIDTH, static or 0), np.float32), b: np.zeros((static or 0, WIDTH), np.float32)}
        nodes += [
            helper.make_node("MatMul", [last, a], [f"{layer}_down"]),
            helper.make_node("MatMul", [f"{layer}_down", b], [f"{layer}_up"]),
            helper.make_node("Add", [last, f"{layer}_up"], [f"{layer}_out"]),
        ]
        last = f"{layer}_out"
    return save_model(path, nodes, inputs, {last: (TensorProto.FLOAT, ["batch", WIDTH])}, weights)


def runs(model: Path, adapter: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options)
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(adapter))
    run_options = onnxruntime.RunOptions()
    run_options.log_severity_level = 4
    run_options.add_active_adapter(loaded)
    try:
        for rows in (1, 3):
            session.run(None, {"x": np.ones((rows, WIDTH), np.float32)}, run_options)
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        return False
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(30, 120), deadline=None)
@given(data=st.data())
def test_no_adapter_that_is_accepted_fails(tmp_path: Path, data: st.DataObject) -> None:
    model = two_layers(
        tmp_path / "m.onnx", shared=data.draw(st.booleans()), static=data.draw(st.sampled_from([None, None, 2]))
    )
    arrays: dict[str, np.ndarray] = {}
    for layer in LAYERS:
        for side, made in (("A", lambda r: (WIDTH, r)), ("B", lambda r: (r, WIDTH))):
            if data.draw(st.integers(0, 5)):
                shape = made(data.draw(RANKS) if data.draw(st.integers(0, 4)) == 0 else 2)
                dtype = np.float16 if data.draw(st.integers(0, 12)) == 0 else np.float32
                arrays[f"{layer}.lora_{side}"] = np.ones(shape if data.draw(st.integers(0, 9)) else shape[::-1], dtype)
    if data.draw(st.integers(0, 9)) == 0:
        arrays["v.lora_A"] = np.ones((WIDTH, 2), np.float32)
    adapter = make_adapter(tmp_path / "a.onnx_adapter", **arrays)
    problems = list(adapter_problems(read_adapter(adapter, "a"), read_model(model, "m")))
    if not problems:
        assert runs(model, adapter), {name: array.shape for name, array in arrays.items()}


@pytest.mark.parametrize("shared", [True, False])
def test_an_adapter_that_fits_runs(tmp_path: Path, shared: bool) -> None:
    model = two_layers(tmp_path / "m.onnx", shared=shared, static=None)
    arrays = {
        f"{layer}.lora_{side}": np.ones((WIDTH, 8) if side == "A" else (8, WIDTH), np.float32)
        for layer in LAYERS
        for side in "AB"
    }
    adapter = make_adapter(tmp_path / "a.onnx_adapter", **arrays)
    assert list(adapter_problems(read_adapter(adapter, "a"), read_model(model, "m"))) == []
    assert runs(model, adapter)


def test_a_layer_that_is_left_out_is_refused_where_its_default_shares_the_symbol(tmp_path: Path) -> None:
    arrays = {"k.lora_A": np.ones((WIDTH, 2), np.float32), "k.lora_B": np.ones((2, WIDTH), np.float32)}
    adapter = read_adapter(make_adapter(tmp_path / "a.onnx_adapter", **arrays), "a")
    own = two_layers(tmp_path / "own.onnx", shared=False, static=None)
    shared = two_layers(tmp_path / "shared.onnx", shared=True, static=None)
    assert list(adapter_problems(adapter, read_model(own, "m"))) == []
    assert runs(own, Path(adapter.path))
    (problem,) = adapter_problems(adapter, read_model(shared, "m"))
    assert '"r" must be one number, but "q.lora_A" makes it 0, and "k.lora_A" makes it 2.' in problem
    assert not runs(shared, Path(adapter.path))


def test_inputs_that_olive_lists_twice_count_once(tmp_path: Path) -> None:
    path = two_layers(tmp_path / "m.onnx", shared=True, static=None)
    model = onnx.load(path)
    model.graph.input.extend(list(model.graph.input)[1:])
    onnx.save(model, path)
    names = [value.name for value in read_model(path, "m").inputs]
    assert names == ["x", "q.lora_A", "q.lora_B", "k.lora_A", "k.lora_B"]
