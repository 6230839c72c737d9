"""`ortdeploy adapter`: what is in one, whether it fits, and files made of PEFT folders, safetensors and .npz."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from support.models import lora_model, make_adapter, save_model

RANK, WIDTH = 2, 4
A = np.arange(RANK * WIDTH, dtype=np.float32).reshape(RANK, WIDTH) / 8  # as PyTorch keeps it: [rank, in]
B = np.ones((WIDTH, RANK), np.float32) / 4  # [out, rank]
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"}


def layer_model(path: Path, dtype: int = TensorProto.FLOAT) -> Path:
    """y = x + x A B for one layer, named as Olive names its inputs."""
    a, b = "model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj.lora_B.weight"
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    return save_model(
        path,
        [
            helper.make_node("MatMul", ["x", a], ["down"]),
            helper.make_node("MatMul", ["down", b], ["up"]),
            helper.make_node("Add", ["x", "up"], ["y"]),
        ],
        {"x": (dtype, ["batch", WIDTH]), a: (dtype, [WIDTH, "r"]), b: (dtype, ["r", WIDTH])},
        {"y": (dtype, ["batch", WIDTH])},
        {a: np.zeros((WIDTH, 0), kind), b: np.zeros((0, WIDTH), kind)},
    )


def peft(folder: Path, *, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    folder.mkdir()
    beginning = "base_model.model.model.layers.0.q_proj"
    save_file(
        tensors or {f"{beginning}.lora_A.weight": A, f"{beginning}.lora_B.weight": B},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def result(model: Path, adapter: Path, x: np.ndarray) -> Any:
    loaded, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    loaded.Load(str(adapter))
    options.add_active_adapter(loaded)
    return onnxruntime.InferenceSession(model).run(None, {"x": x}, options)[0]


def test_show_prints_versions_and_parameters(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_adapter(tmp_path / "a.onnx_adapter", lora_A=A.T, lora_B=B.T)
    shown = cli("adapter", "show", "a.onnx_adapter")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0] == "a.onnx_adapter: 2 parameters, adapter version 1, model version 1"
    assert lines[1:] == ["  lora_A  float32 [4, 2]", "  lora_B  float32 [2, 4]"]
    document = cli("adapter", "show", "a.onnx_adapter", "--format", "json").json
    assert document["format_version"] == 1
    assert {one["name"]: one["shape"] for one in document["parameters"]} == {"lora_A": [4, 2], "lora_B": [2, 4]}
    refused = cli("adapter", "show", "gone")
    assert (refused.code, refused.err) == (1, "ortdeploy: there is no file gone.\n")


def test_fit_says_what_keeps_an_adapter_from_a_model(cli: Cli, tmp_path: Path) -> None:
    model = lora_model(tmp_path / "m.onnx")
    good = make_adapter(tmp_path / "good.onnx_adapter", lora_A=A.T, lora_B=B.T)
    bad = make_adapter(tmp_path / "bad.onnx_adapter", lora_A=A, lora_C=B.T)
    fits = cli("adapter", "fit", model, good)
    assert (fits.code, fits.out) == (0, f"{good} fits {model}.\n")
    assert cli("adapter", "fit", model, good, "-q").out == ""
    assert "does not fit" in cli("adapter", "fit", model, bad, "--quiet", "--no-color").out
    refused = cli("adapter", "fit", model, bad, "--format", "json")
    assert refused.code == 1
    assert refused.json["problems"] == [
        'the graph has no input "lora_C". Did you mean "lora_B"?',
        '"lora_A" is [2, 4], and the graph takes [4, rank]. It looks transposed.',
        '"rank" must be one number, but "lora_A" makes it 4, and the default of "lora_B" makes it 0. Give all matrices '
        "one rank. If layers are to differ, export a symbol for each, or set session: {enable_mem_reuse: false}.",
    ]
    assert refused.json["left_out"] == ["lora_B"]


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 8 / 2),
        ({"use_rslora": True}, 8 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 6}}, 6 / 2),
        ({"r": 16, "rank_pattern": {"layers.0.q_proj": 2}}, 8 / 2),
    ],
)
def test_a_peft_folder_becomes_an_adapter_that_computes_what_peft_says(
    cli: Cli, tmp_path: Path, changes: dict[str, Any], factor: float
) -> None:
    model, target = layer_model(tmp_path / "m.onnx"), tmp_path / "a.onnx_adapter"
    folder = peft(tmp_path / "peft", **changes)
    made = cli("adapter", "convert", folder, "--model", model, "-o", target, "--model-version", "3")
    assert made.code == 0, made.err
    assert "2 parameters, adapter version -, model version 3" in made.out
    x = np.array([[1, 2, 3, 4]], np.float32)
    np.testing.assert_allclose(result(model, target, x), x + factor * (x @ A.T @ B.T), rtol=1e-6)
    again = cli("adapter", "convert", folder, "--model", model, "-o", target)
    assert (again.code, "is there already and is not overwritten" in again.err) == (1, True)


def test_a_safetensors_file_alone_needs_its_alpha_and_takes_the_graphs_type(cli: Cli, tmp_path: Path) -> None:
    model, target = layer_model(tmp_path / "m.onnx", TensorProto.FLOAT16), tmp_path / "a.onnx_adapter"
    path = tmp_path / "lora.safetensors"
    save_file({"q.lora_A.weight": A.astype(ml_dtypes.bfloat16).astype(np.float32), "q.lora_B.weight": B}, path)
    convert = ["adapter", "convert", path, "--model", model, "-o", target]
    refused = cli(*convert)
    assert (refused.code, "does not say its alpha" in refused.err) == (1, True)
    refused = cli(*convert, "--alpha", "2")
    assert (refused.code, "the graph has no input for q.lora_A.weight. Say which with --map" in refused.err) == (
        1,
        True,
    )
    assert cli(*convert, "--alpha", "2", "--map", "q.=q_proj.").code == 0
    x = np.ones((1, WIDTH), np.float16)
    np.testing.assert_allclose(result(model, target, x), x + x @ A.T @ B.T, rtol=1e-2)


def test_an_npz_archive_is_taken_as_the_graph_wants_it(cli: Cli, tmp_path: Path) -> None:
    model, target = lora_model(tmp_path / "m.onnx"), tmp_path / "a.onnx_adapter"
    np.savez(tmp_path / "w.npz", lora_A=A.T.astype(np.float64), lora_B=B.T)
    quiet = cli("adapter", "convert", tmp_path / "w.npz", "--model", model, "-o", target, "-q")
    assert (quiet.code, quiet.out) == (0, "")
    x = np.ones((2, WIDTH), np.float32)
    np.testing.assert_allclose(result(model, target, x), x + x @ A.T @ B.T, rtol=1e-6)


def test_what_an_adapter_file_cannot_hold_is_refused(cli: Cli, tmp_path: Path) -> None:
    model, target = layer_model(tmp_path / "m.onnx"), tmp_path / "a.onnx_adapter"
    name = "base_model.model.model.layers.0.q_proj"
    cases: list[tuple[Path, str]] = [
        (peft(tmp_path / "dora", use_dora=True), "says use_dora: True, which an adapter file cannot hold"),
        (peft(tmp_path / "saved", modules_to_save=["head"]), "says modules_to_save: ['head']"),
        (peft(tmp_path / "bias", bias="all"), "says bias: all"),
        (peft(tmp_path / "rank", r=4), "has rank 2, and adapter_config.json says 4"),
        (peft(tmp_path / "plain", r=None), "is not that of a LoRA adapter: it has no r"),
        (
            peft(tmp_path / "wide", tensors={f"{name}.lora_A.weight": np.ones((2, 9), np.float32)}),
            f"{name}.lora_A.weight is [9, 2] the way that a graph multiplies it, and",
        ),
        (
            peft(tmp_path / "half", tensors={f"{name}.lora_A.weight": A}),
            'makes it 2, and the default of "model.layers.0.q_proj.lora_B.weight" makes it 0',
        ),
        (tmp_path / "gone", "cannot be read: No such file or directory"),
    ]
    broken = peft(tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"\x09\0\0\0\0\0\0\0{}")
    (tmp_path / "text").write_text("hello, this is text")
    cases += [(broken, "cannot be read as safetensors"), (tmp_path / "text", "is neither a safetensors file")]
    for source, said in cases:
        refused = cli("adapter", "convert", source, "--model", model, "-o", target)
        assert (refused.code, said in refused.err) == (1, True), (source, refused.err)
        assert sorted(entry.suffix for entry in tmp_path.glob("*.onnx*")) == [".onnx"]


def test_wrong_usage_is_said(cli: Cli) -> None:
    for arguments in (["adapter"], ["adapter", "shw", "x"], ["adapter", "convert", "x", "--map", "a"]):
        assert cli(*arguments).code == 64
