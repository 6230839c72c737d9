"""The LoRA example: scans that the base model cannot read, each view with an adapter that was trained for it."""

import csv
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import REPOSITORY, Cli, run_process
from onnx import numpy_helper
from support.plugins import needs_qnn

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


@pytest.mark.slow
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


@needs_qnn
def test_qnns_simulator_applies_an_adapter(examples: Path) -> None:
    text = (examples / "views.yaml").read_text()
    fixed = "{batch: 64, layer0.rank: 8, layer1.rank: 8, layer2.rank: 8}"
    provider = "[{provider: QNN, options: {backend_type: htp}}, CPU]\n    cpu_fallback: allow\n    session: "
    text = text.replace("providers: [CPU]", f"providers: {provider}{{free_dimension_overrides: {fixed}}}")
    text = text.replace("{size: 64}", "{size: 64, last: pad}").replace(
        "inverted: inverted}, otherwise: none", "}, otherwise: rotated"
    )
    lines = [line for line in text.splitlines() if not line.startswith("  inverted: {path")]
    (examples / "views.yaml").write_text("\n".join([*lines, ""]).replace("rotated: rotated, }", "rotated: rotated}"))
    applied = run_process(["apply", "views.yaml", "-q"], cwd=examples)
    assert applied.code == 0, applied.out + applied.err
    assert accuracies(examples)["rotated"] > 0.9
    report = json.loads((examples / "outbox/views/_run.json").read_text())
    assert report["placement"]["QNNExecutionProvider"] >= 3
    assert report["adapter_rows"] == {"rotated": 360}


def test_everything_of_the_example_is_small() -> None:
    parts = [
        *(EXAMPLES / "adapters").iterdir(),
        *(EXAMPLES / "checks").rglob("*.npz"),
        EXAMPLES / "models/views.onnx",
        EXAMPLES / "views.npz",
    ]
    assert sum(path.stat().st_size for path in parts) < 2_000_000
