"""The LoRA example: scans that the base model cannot read, each view with an adapter that was trained for it."""

import csv
import io
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import REPOSITORY, Cli
from onnx import numpy_helper

EXAMPLES = REPOSITORY / "deployments"
VIEWS = {"upright": 0.95, "rotated": 0.92, "inverted": 0.88}


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, so that nothing is written into the repository."""
    ignore = shutil.ignore_patterns("outbox", ".ortdeploy", "__pycache__", "digits")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "deployments", ignore=ignore))


def accuracies(folder: Path) -> Mapping[str, float]:
    text = "".join(path.read_text() for path in sorted((folder / "outbox/views").glob("part-*.csv")))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 360
    return {
        view: float(np.mean([row["digit"] == row["label"] for row in rows if row["view"] == view])) for view in VIEWS
    }


def test_each_view_is_read_with_its_adapter_and_none_without(cli: Cli, examples: Path) -> None:
    assert cli("apply", examples / "views.yaml", "-q").code == 0
    read = accuracies(examples)
    assert all(read[view] >= wanted for view, wanted in VIEWS.items()), read
    text = (examples / "views.yaml").read_text()
    choice = "{column: view, map: {rotated: rotated, inverted: inverted}, otherwise: none}"
    (examples / "views.yaml").write_text(text.replace(f"    adapter: {choice}\n", ""))
    shutil.rmtree(examples / "outbox")
    assert cli("apply", examples / "views.yaml", "-q").code == 0
    alone = accuracies(examples)
    assert alone["upright"] == read["upright"]
    assert alone["rotated"] < 0.4
    assert alone["inverted"] < 0.4


@pytest.mark.parametrize("view", ["rotated", "inverted"])
def test_an_adapter_computes_what_its_matrices_in_the_weights_compute(cli: Cli, examples: Path, view: str) -> None:
    """Against the expected scores, which were made with merged weights, and against a graph with merged weights."""
    assert cli("check", examples / "views.yaml", "-q").code == 0
    adapter = examples / f"adapters/{view}.onnx_adapter"
    values = onnxruntime.AdapterFormat.read_adapter(str(adapter)).get_parameters()
    matrices = {name: value.numpy() for name, value in values.items()}
    model = onnx.load(examples / "models/views.onnx")
    for tensor in model.graph.initializer:
        layer, _, kind = tensor.name.rpartition(".")
        if kind == "weight":
            more = matrices[f"{layer}.lora_A"] @ matrices[f"{layer}.lora_B"]
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + more, tensor.name))
    with np.load(examples / f"checks/{view}/inputs.npz") as arrays:
        image = arrays["image"]
    loaded, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    loaded.Load(str(adapter))
    options.add_active_adapter(loaded)
    (adapted,) = onnxruntime.InferenceSession(examples / "models/views.onnx").run(None, {"image": image}, options)
    (merged,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"image": image})
    assert np.abs(adapted - merged).max() / np.abs(merged).max() < 1e-5


def test_everything_of_the_example_is_small() -> None:
    parts = [
        *(EXAMPLES / "adapters").iterdir(),
        *(EXAMPLES / "checks").rglob("*.npz"),
        EXAMPLES / "models/views.onnx",
        EXAMPLES / "views.npz",
    ]
    assert sum(path.stat().st_size for path in parts) < 2_000_000
