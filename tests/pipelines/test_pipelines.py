"""Pipelines end to end, on real sessions: the example of pages, fan-out, rows that fail alone, other providers."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, Cli, run_process
from onnx import TensorProto, helper
from support.models import save_model, scale_model
from support.plugins import needs_openvino_device, needs_qnn

FLOAT = TensorProto.FLOAT

EXAMPLES = REPOSITORY / "deployments"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """The example of pages."""
    for name in ("pages.yaml", "models/detector.onnx", "models/digits.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / name, tmp_path / name)
    shutil.copytree(EXAMPLES / "pages", tmp_path / "pages")
    return tmp_path


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def test_digits_are_found_on_pages_and_read(pages: Path, cli: Cli) -> None:
    done = cli("apply", pages / "pages.yaml")
    assert done.code == 0, done.out + done.err
    with (pages / "pages/labels.csv").open() as file:
        known = {row["path"]: [int(digit) for digit in row["digits"].split()] for row in csv.DictReader(file)}
    rows = results(pages / "outbox/pages")
    assert [row["path"] for row in rows] == sorted(known)
    assert all(len(row["digits"]) == len(row["boxes"]) == len(known[row["path"]]) for row in rows)
    pairs = [pair for row in rows for pair in zip(row["digits"], known[row["path"]], strict=True)]
    assert sum(read == written for read, written in pairs) / len(pairs) > 0.9
    report = json.loads((pages / "outbox/pages/_run.json").read_text())
    assert report["components"]["detector"]["placement"] == {"CPUExecutionProvider": 4}
    assert report["components"]["digits"]["providers"] == [{"provider": "CPUExecutionProvider", "options": {}}]
    assert "nothing to do" in cli("apply", pages / "pages.yaml").out


def test_a_batch_of_one_and_of_many_gives_the_same(pages: Path, cli: Cli) -> None:
    found = []
    for size, each in ((1, 1), (5, 7), (12, 500)):
        text = (EXAMPLES / "pages.yaml").read_text().replace("batch: {size: 4}", f"batch: {{size: {size}}}")
        (pages / "pages.yaml").write_text(text.replace("batch: 32", f"batch: {each}"))
        assert cli("apply", pages / "pages.yaml", "--new-run").code == 0
        found.append(results(pages / "outbox/pages"))
        shutil.rmtree(pages / "outbox")
    assert found[0] == found[1] == found[2]


def test_a_hostile_page_fails_alone(pages: Path, cli: Cli) -> None:
    from PIL import Image  # noqa: PLC0415  only here

    dots = np.zeros((64, 112), dtype=np.uint8)
    dots[::4, ::4] = 255
    Image.fromarray(dots).save(pages / "pages/05.png")
    Image.fromarray(np.zeros((64, 112), dtype=np.uint8)).save(pages / "pages/06.png")
    text = (
        (EXAMPLES / "pages.yaml")
        .read_text()
        .replace("max: 500", "max: 30")
        .replace("min_area: 6, margin: -1", "min_area: 1")
    )
    (pages / "pages.yaml").write_text(text + "    errors: {max_failed: 1}\n")
    done = cli("apply", pages / "pages.yaml")
    assert done.code == 0, done.out + done.err
    (failed,) = [json.loads(line) for line in (pages / "outbox/pages/_failed.jsonl").read_text().splitlines()]
    assert failed["key"] == {"path": "pages/05.png"}
    assert "each may have 30 (max)" in failed["message"]
    rows = {row["path"]: row for row in results(pages / "outbox/pages")}
    assert len(rows) == 11
    assert rows["pages/06.png"]["digits"] == rows["pages/06.png"]["boxes"] == []


MANIFEST = """\
version: 1
models:
  double: {{path: double.onnx{double}}}
  pair: {{path: pair.onnx}}
pipelines:
  p:
    steps:
      - {{run: double, in: {{x: $x}}, out: {{y: twice}}}}
      - {{run: pair, in: {{a: $twice, b: $x}}, out: {{sum: sum}}}}
    outputs: {{sum: $sum, twice: $twice}}
jobs:
  run:
    pipeline: p
    input: {{path: data.npy, columns: {{x: array}}, key: [row]}}
    batch: {{size: 8}}
    output: {{path: out, rows_per_part: 16}}
{more}"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """x -> 2 x -> 2 x + x, over 50 rows; the second model takes three rows at a time."""
    scale_model(tmp_path / "double.onnx")
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"])]
    shape = (FLOAT, [3, 4])
    save_model(tmp_path / "pair.onnx", nodes, {"a": shape, "b": shape}, {"sum": shape})
    np.save(tmp_path / "data.npy", np.arange(200, dtype=np.float32).reshape(50, 4))
    write(tmp_path)
    return tmp_path


def write(folder: Path, double: str = "", more: str = "") -> None:
    (folder / "m.yaml").write_text(MANIFEST.format(double=double, more=more))


def check_sums(folder: Path) -> None:
    rows = results(folder / "out")
    assert [row["row"] for row in rows] == list(range(50))
    np.testing.assert_allclose([row["sum"] for row in rows], 3 * np.load(folder / "data.npy"), rtol=1e-3)


@pytest.mark.slow
def test_a_model_with_a_batch_of_its_own_is_run_in_that(sums: Path, cli: Cli) -> None:
    assert cli("apply", sums / "m.yaml").code == 0
    check_sums(sums)


def test_a_saved_plan_of_a_pipeline_runs(sums: Path, cli: Cli) -> None:
    assert cli("plan", sums / "m.yaml", "--out", sums / "plan.json").code == 0
    assert cli("apply", sums / "plan.json").code == 0
    check_sums(sums)


@pytest.mark.slow
def test_a_changed_component_is_another_result(sums: Path, cli: Cli) -> None:
    assert cli("apply", sums / "m.yaml").code == 0
    scale_model(sums / "double.onnx", factor=3.0)
    refused = cli("apply", sums / "m.yaml")
    assert refused.code == 1
    assert "model" in refused.out + refused.err
    assert cli("apply", sums / "m.yaml", "--new-run").code == 0


@pytest.mark.slow
def test_several_sessions_of_a_component_keep_the_order(sums: Path, cli: Cli) -> None:
    quiet = "session: {intra_op_num_threads: 1, config: {session.intra_op.allow_spinning: false}}"
    write(sums, double=f", sessions: [{{name: a, providers: [CPU], count: 2}}], {quiet}")
    assert cli("apply", sums / "m.yaml").code == 0
    check_sums(sums)
    report = json.loads((sums / "out/_run.json").read_text())
    assert len(report["sessions"]) == 2


@needs_openvino_device
def test_components_sit_on_different_providers(sums: Path) -> None:
    write(sums, double=", providers: [{provider: OpenVINO, options: {load_config: {CPU: {INFERENCE_NUM_THREADS: 1}}}}]")
    done = run_process(["apply", "m.yaml"], cwd=sums)
    assert done.code == 0, done.out + done.err
    check_sums(sums)
    report = json.loads((sums / "out/_run.json").read_text())
    assert set(report["components"]["double"]["placement"]) == {"OpenVINOExecutionProvider"}
    assert set(report["components"]["pair"]["placement"]) == {"CPUExecutionProvider"}
    (provider,) = report["components"]["double"]["providers"]
    assert json.loads(provider["options"]["load_config"]) == {"CPU": {"INFERENCE_NUM_THREADS": 1}}


def test_an_index_outside_of_a_table_fails_its_row(tmp_path: Path, cli: Cli) -> None:
    weights = {"table": np.eye(4, dtype=np.float32)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    save_model(
        tmp_path / "look.onnx", nodes, {"ids": (TensorProto.INT64, ["batch"])}, {"y": (FLOAT, ["batch", 4])}, weights
    )
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("Mul", ["i", "two"], ["ids"]),
    ]
    makes = {"ids": (TensorProto.INT64, ["batch"])}
    two = {"two": np.array(2, dtype=np.int64)}
    save_model(tmp_path / "pick.onnx", nodes, {"x": (FLOAT, ["batch", 4])}, makes, two)
    np.save(tmp_path / "data.npy", np.eye(4, dtype=np.float32)[[0, 1, 3, 1]])
    (tmp_path / "m.yaml").write_text(
        """\
version: 1
models: {pick: {path: pick.onnx}, look: {path: look.onnx}}
pipelines:
  p:
    steps:
      - {run: pick, in: {x: $x}, out: {ids: ids}}
      - {run: look, in: {ids: $ids}, out: {y: y}}
    outputs: {y: $y}
jobs:
  run:
    pipeline: p
    input: {path: data.npy}
    output: {path: out}
    errors: {max_failed: 1}
"""
    )
    assert cli("apply", tmp_path / "m.yaml").code == 0
    (failed,) = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert failed["row"] == 2
    assert "must lie in" in failed["message"]
    assert len(results(tmp_path / "out")) == 3


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", ["", ", options: {}", ", options: []", ", options: null", ", options: "])
def test_options_that_say_nothing_are_no_options(sums: Path, cli: Cli, options: str) -> None:
    write(sums, double=f", providers: [{{provider: CPU{options}}}]")
    assert cli("apply", sums / "m.yaml").code == 0
    check_sums(sums)


@needs_qnn
def test_a_component_gets_qnns_options(sums: Path) -> None:
    scale_model(sums / "double.onnx", batch=8)
    chain = "[{provider: QNN, options: {backend_type: htp, htp_performance_mode: burst}}, CPU]"
    write(sums, double=f", providers: {chain}, cpu_fallback: forbid")
    done = run_process(["apply", "m.yaml"], cwd=sums)
    assert done.code == 0, done.out + done.err
    check_sums(sums)
    report = json.loads((sums / "out/_run.json").read_text())
    assert report["components"]["double"]["placement"] == {"QNNExecutionProvider": 1}
    assert report["components"]["double"]["providers"][0]["options"]["htp_performance_mode"] == "burst"


VIEWS = """\
version: 1
models:
  reader: {path: models/views.onnx}
adapters:
  rotated: {path: adapters/rotated.onnx_adapter, model: reader}
  inverted: {path: adapters/inverted.onnx_adapter, model: reader}
pipelines:
  all-views:
    steps:
      - {run: reader, in: {image: $image}, out: {scores: plain}}
      - {run: reader, in: {image: $image}, out: {scores: turned}, adapter: rotated}
      - {run: reader, in: {image: $image}, out: {scores: negative}, adapter: [inverted]}
    outputs: {plain: $plain, turned: $turned, negative: $negative}
jobs:
  read:
    pipeline: all-views
    input: {path: views.npz, key: [view, label]}
    prepare: {image: [{scale: 0.0625}]}
    output: {path: out}
"""


def test_steps_have_adapters_of_their_own(tmp_path: Path, cli: Cli) -> None:
    for name in ("models/views.onnx", "adapters/rotated.onnx_adapter", "adapters/inverted.onnx_adapter", "views.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / name, tmp_path / name)
    (tmp_path / "m.yaml").write_text(VIEWS)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.out + done.err
    assert "adapter.without_effect" not in done.err
    rows = results(tmp_path / "out")
    for view, column in (("upright", "plain"), ("rotated", "turned"), ("inverted", "negative")):
        right = [np.argmax(row[column]) == row["label"] for row in rows if row["view"] == view]
        wrong = [np.argmax(row[column]) == row["label"] for row in rows if row["view"] != view]
        assert np.mean(right) > 0.9, view
        assert np.mean(wrong) < 0.5, view
    (part,) = json.loads((tmp_path / "out/_run.json").read_text())["provenance"].values()
    assert set(part["adapters"]) == {"rotated", "inverted"}


@pytest.mark.parametrize("kind", ["npz", "csv", "npy"])
def test_lists_of_several_lengths_need_a_format_that_holds_them(pages: Path, cli: Cli, kind: str) -> None:
    text = (
        (pages / "pages.yaml").read_text().replace("format: jsonl", f"format: {kind}").replace("key: [path]", "key: []")
    )
    if kind == "npy":
        text = text.replace("outputs: {boxes: $boxes, digits: $digits}", "outputs: {boxes: $boxes}")
    (pages / "pages.yaml").write_text(text)
    failed = cli("apply", pages / "pages.yaml")
    assert failed.code == 1, failed.out
    assert "differ in shape" in failed.out
    assert "use jsonl" in failed.out


@pytest.mark.slow
def test_tables_hold_lists_of_several_lengths(pages: Path, cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415  an extra

    text = (pages / "pages.yaml").read_text()
    assert cli("apply", pages / "pages.yaml").code == 0
    (pages / "pages.yaml").write_text(
        text.replace("format: jsonl", "format: parquet").replace("outbox/pages", "outbox/table")
    )
    assert cli("apply", pages / "pages.yaml").code == 0
    table = parquet.read_table(next((pages / "outbox/table").glob("part-*")))
    assert table.column("digits").to_pylist() == [row["digits"] for row in results(pages / "outbox/pages")]


def test_digests_of_models_are_locked_and_those_of_components_are_checked(
    pages: Path, tmp_path: Path, cli: Cli
) -> None:
    assert cli("lock", pages / "pages.yaml").code == 0
    assert cli("lock", pages / "pages.yaml", "--check").code == 0
    shutil.copytree(EXAMPLES / "models/painter", tmp_path / "models/painter")
    shutil.copy(EXAMPLES / "prompts.csv", tmp_path / "prompts.csv")
    text = (EXAMPLES / "painter.yaml").read_text()
    (tmp_path / "painter.yaml").write_text(text.replace("unet: {", f"unet: {{sha256: {'a' * 64}, "))
    refused = cli("plan", tmp_path / "painter.yaml")
    assert "digest-mismatch" in refused.out + refused.err
