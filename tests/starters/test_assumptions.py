"""What `init` does not know it does not take for known: scalars, windows, kinds of outputs, batches, tasks, suffixes."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from conftest import Cli, Result
from onnx import TensorProto, helper
from PIL import Image
from support import family_models as families
from support.models import save_model

from ortdeploy.cli.children import memory
from ortdeploy.process.child import Answer

FLOAT = TensorProto.FLOAT


def init(cli: Cli, folder: Path, *further: str | Path, code: int = 0) -> tuple[dict[str, Any], str]:
    """Return the manifest that init writes, and what it said."""
    said = cli("init", folder / "m.onnx", "-o", folder / "m.yaml", *further)
    assert said.code == code, said.out + said.err
    return yaml.safe_load((folder / "m.yaml").read_text()), said.out


def rows(cli: Cli, folder: Path) -> list[dict[str, Any]]:
    """Apply the manifest as it stands, and return what it gives."""
    applied: Result = cli("apply", folder / "m.yaml", "-q")
    assert applied.code == 0, applied.out + applied.err
    parts = sorted((folder / "outbox/m").glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def steps_of(manifest: dict[str, Any]) -> list[str]:
    (pipeline,) = manifest["pipelines"].values()
    return [step.get("do") or step.get("run") or step.get("op") or "each" for step in pipeline["steps"]]


def record(path: Path, seconds: float) -> None:
    """Write a recording of 16,000 samples a second."""
    samples = (0.4 * np.sin(np.arange(int(seconds * 16000)) / 9) * 32767).astype("<i2")
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())


def test_results_that_are_null_in_all_rows_are_told(cli: Cli, tmp_path: Path) -> None:
    families.band(tmp_path / "m.onnx")
    record(tmp_path / "heard/a.wav", 0.1)
    record(tmp_path / "heard/b.wav", 0.2)
    manifest, said = init(cli, tmp_path, "--from", tmp_path / "heard", code=1)
    assert list(manifest["jobs"]["run"]["input"]["values"]) == ["fmin", "fmax"]
    assert "level of job run is NaN or infinite in all 2 rows: a value that feeds the model may be wrong." in said
    tried = cli("try", tmp_path / "m.yaml")
    assert "level of job run is NaN or infinite in all 2 rows" in tried.out


@pytest.mark.slow
def test_results_that_are_null_in_one_row_are_not_told(cli: Cli, tmp_path: Path) -> None:
    save_model(
        tmp_path / "m.onnx", [helper.make_node("Log", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}
    )
    np.save(tmp_path / "x.npy", np.array([-1, 1], np.float32))
    _, said = init(cli, tmp_path, "--from", tmp_path / "x.npy")
    assert "NaN or infinite" not in said
    np.save(tmp_path / "x.npy", np.array([-1, -2], np.float32))
    (tmp_path / "m.yaml").unlink()
    _, said = init(cli, tmp_path, "--from", tmp_path / "x.npy", code=1)
    assert "y of job run is NaN or infinite in all 2 rows" in said


def test_results_that_are_equal_in_all_rows_are_told(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "zero"], ["nothing"]), helper.make_node("Add", ["nothing", "half"], ["y"])]
    weights: families.Weights = {"zero": np.zeros(1, np.float32), "half": np.full(1, 0.25, np.float32)}
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 2])}, weights)
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    _, said = init(cli, tmp_path, "--from", tmp_path / "x.npy")
    told = "y of job run is equal in all 3 rows: unless they are alike, they do not reach the model."
    assert told in said
    assert told in cli("try", tmp_path / "m.yaml").out


def test_recordings_shorter_than_a_window_give_one(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx", samples=144_160)
    record(tmp_path / "heard/a.wav", 3)
    manifest, said = init(cli, tmp_path, "--from", tmp_path / "heard")
    assert manifest["pipelines"]["listen"]["steps"][0]["in"]["last"] == "pad"
    assert "last: pad (zeros fill up the last window)" in said
    assert [row["start"] for row in rows(cli, tmp_path)] == [0]


def test_rows_that_a_plan_knows_to_be_shorter_than_a_window_are_told(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx", samples=16_000)
    record(tmp_path / "heard/a.wav", 2)
    record(tmp_path / "heard/b.wav", 0.5)
    init(cli, tmp_path, "--from", tmp_path / "heard")
    manifest = tmp_path / "m.yaml"
    assert "windowless-rows" not in cli("plan", manifest).out
    manifest.write_text(manifest.read_text().replace("last: pad", "last: drop"))
    found = cli("plan", manifest, "--format", "json").json
    assert [one["rule"] for one in found["diagnostics"]] == ["windowless-rows"]
    assert found["diagnostics"][0]["detail"].startswith("Row 1 of the first 2 rows is shorter than a window: ")
    assert cli("apply", manifest, "-q").code == 0
    record(tmp_path / "heard/c.wav", 0.4)
    new = manifest.read_text().replace("rate: 16000", "rate: 16000\n      on_change: append")
    manifest.write_text(new)
    assert "windowless-rows" in cli("plan", manifest).out, "a remembered plan does not pass over new rows"


@pytest.mark.parametrize("where", [pytest.param("config.json"), pytest.param("nowhere", marks=pytest.mark.slow)])
def test_scores_of_tokens_are_no_sentence(cli: Cli, tmp_path: Path, where: str) -> None:
    pytest.importorskip("tokenizers")
    families.token_classifier(tmp_path / "m.onnx")
    if where == "config.json":
        names = {str(number): name for number, name in enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])}
        (tmp_path / "config.json").write_text(json.dumps({"id2label": names}))
    (tmp_path / "t.txt").write_text("Where is my parcel\nIt rains\n")
    manifest, said = init(cli, tmp_path, "--from", tmp_path / "t.txt")
    assert "[batch, tokens, 5]" in said
    assert steps_of(manifest)[:4] == ["tokenize", "m", "softmax", "argmax"]
    found = rows(cli, tmp_path)
    table = np.random.default_rng(6).standard_normal((40, 5)).astype(np.float32)
    ids = [5, 6, 7, 3]  # where is my parcel
    best = table[ids].argmax(axis=1)
    if where == "config.json":
        assert "a model that names spans of texts" in said
        labels = [["O", "B-PER", "I-PER", "B-LOC", "I-LOC"][one] for one in best]
        named = [
            label[2:] for place, label in enumerate(labels) if label[0] == "B" or label[1:] != labels[place - 1][1:]
        ]
        spans = found[0]["spans"]
        assert [one["label"] for one in spans] == [name for name in named if name]
        assert all("Where is my parcel"[one["start"] : one["end"]] == one["text"] for one in spans)
    else:
        assert [len(row["where"]) for row in found] == [4, 2], "a short text is not filled up"
        assert found[0]["class"] == best.tolist()


@pytest.mark.slow
def test_scores_of_tokens_that_nothing_calls_scores_are_given_as_they_are(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    families.token_classifier(tmp_path / "m.onnx", "output_0")
    manifest, said = init(cli, tmp_path)
    assert "a model that takes texts and gives output_0 [batch, tokens, 5]" in said
    assert "Nothing says what its numbers mean" in said
    assert steps_of(manifest) == ["tokenize", "m"]
    assert {np.shape(row["output_0"])[1] for row in rows(cli, tmp_path)} == {5}


def test_a_model_that_finds_answers_is_no_reranker_however_long_the_text_is_that_was_made_up(
    cli: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    families.answer_finder(tmp_path / "m.onnx")
    (tmp_path / "q.jsonl").write_text('{"context": "my parcel arrived", "question": "where is my parcel"}\n')
    manifest, said = init(cli, tmp_path, "--from", tmp_path / "q.jsonl")
    assert "finds answers in texts, by start_logits and end_logits [batch, tokens]" in said
    assert manifest["jobs"]["run"]["input"]["columns"] == {"text": "question", "pair": "context"}
    (row,) = rows(cli, tmp_path)
    table = np.random.default_rng(7).standard_normal((40, 2)).astype(np.float32)
    ids = [5, 6, 7, 3, 7, 3, 4]
    start, end = np.exp(table[ids, 0]), np.exp(table[ids, 1])
    shares = np.outer(start, end) / start[[0, 4, 5, 6]].sum() / end[[0, 4, 5, 6]].sum()  # the first, and the context
    pairs = {(first, last): shares[first, last] for first in range(4, 7) for last in range(first, 7)}
    (answer,) = row["answers"]
    first, last = max(pairs, key=lambda pair: pairs[pair])
    words = ["my", "parcel", "arrived"]
    assert answer["text"] == " ".join(words[first - 4 : last - 3])
    assert answer["score"] == pytest.approx(pairs[first, last], rel=1e-4)


@pytest.mark.slow
def test_a_classifier_of_texts_without_names_is_no_encoder(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    families.encoder(tmp_path / "m.onnx", output="logits", width=3)
    manifest, said = init(cli, tmp_path)
    assert "a classifier of texts of 3 classes, whose names no file has" in said
    assert steps_of(manifest) == ["tokenize", "m", "softmax", "argmax"]
    assert all(row.keys() == {"row", "class", "probability"} for row in rows(cli, tmp_path))


@pytest.mark.slow
def test_a_vector_that_nothing_calls_one_is_given_as_it_is(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    families.encoder(tmp_path / "m.onnx", output="logits", width=3)
    model = onnx.load(str(tmp_path / "m.onnx"))
    model.graph.output[0].name = model.graph.node[-1].output[0] = "y"
    onnx.save(model, str(tmp_path / "m.onnx"))
    manifest, said = init(cli, tmp_path)
    assert "gives y [batch, 3]" in said
    assert steps_of(manifest) == ["tokenize", "m"]


@pytest.mark.slow
def test_texts_are_of_the_length_that_the_graph_fixes(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    families.encoder(tmp_path / "m.onnx", output="logits", width=3)
    model = onnx.load(str(tmp_path / "m.onnx"))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 4
        value.type.tensor_type.shape.dim[1].dim_value = 16
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, str(tmp_path / "m.onnx"))
    (tmp_path / "t.txt").write_text("a cat\nit rains\nwhere is my parcel\n")
    manifest, _ = init(cli, tmp_path, "--from", tmp_path / "t.txt")
    assert manifest["pipelines"]["read"]["steps"][0]["in"]["length"] == 16
    assert manifest["jobs"]["run"]["batch"] == {"size": 4, "last": "pad"}
    assert len(rows(cli, tmp_path)) == 3


@pytest.mark.slow
def test_a_size_that_grows_with_the_picture_is_no_number_of_classes(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Softmax", ["flat"], ["y"], axis=1)]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 3, "h", "w"])}, {"y": (FLOAT, ["n", "all"])})
    manifest, said = init(cli, tmp_path)
    assert "a model that takes a picture" in said
    assert "postprocess" not in manifest["jobs"]["run"]


@pytest.mark.slow
def test_logits_that_lay_between_0_and_1_once_are_still_logits(cli: Cli, tmp_path: Path) -> None:
    families.with_metadata(families.classifier(tmp_path / "m.onnx", softmax=False), classes="['a', 'b', 'c']")
    model = onnx.load(str(tmp_path / "m.onnx"))
    (weights,) = model.graph.initializer
    weights.CopyFrom(onnx.numpy_helper.from_array(np.full((3, 3), 0.1, np.float32), weights.name))
    onnx.save(model, str(tmp_path / "m.onnx"))
    manifest, _ = init(cli, tmp_path)
    assert "softmax" in manifest["jobs"]["run"]["postprocess"][0]


@pytest.mark.slow
def test_labels_may_be_under_character(cli: Cli, tmp_path: Path) -> None:
    families.with_metadata(families.classifier(tmp_path / "m.onnx"), character="0\n90\n180")
    init(cli, tmp_path)
    assert (tmp_path / "m-labels.txt").read_text() == "0\n90\n180\n"
    assert all(row["label"] in {"0", "90", "180"} for row in rows(cli, tmp_path))


def test_the_last_rows_of_a_fixed_batch_are_filled_up(cli: Cli, tmp_path: Path) -> None:
    families.fixed_batch(tmp_path / "m.onnx")
    mine = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.save(tmp_path / "mine.npy", mine)
    manifest, _ = init(cli, tmp_path, "--from", tmp_path / "mine.npy")
    assert manifest["jobs"]["run"]["batch"] == {"size": 8, "last": "pad"}
    assert [row["y"] for row in rows(cli, tmp_path)] == (mine * 2).tolist()


@pytest.mark.slow
def test_a_batch_is_as_small_as_memory_wants(cli: Cli, tmp_path: Path) -> None:
    families.wide_hearer(tmp_path / "m.onnx", channels=3_000)
    record(tmp_path / "heard/a.wav", 0.2)
    manifest, _ = init(cli, tmp_path, "--from", tmp_path / "heard")
    assert manifest["pipelines"]["listen"]["steps"][1]["batch"] == 1, "each window takes up to 366 MiB, by estimate"
    assert len(rows(cli, tmp_path)) == 1


def test_a_batch_of_items_that_memory_refuses_is_what_the_advice_is_about(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.wide_hearer(tmp_path / "m.onnx", window=160_000, channels=60_000)
    record(tmp_path / "heard/a.wav", 0.2)
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels:\n  m: {path: m.onnx}\npipelines:\n  p:\n    steps:\n"
        "      - {do: windows, in: {x: $samples, size: 160000}, out: [w, start]}\n"
        "      - each: $w\n        as: x\n        batch: 256\n"
        "        steps: [{run: m, in: {wav: $x}, out: {score: found}}]\n        collect: {found: found}\n"
        "    outputs: {found: $found}\njobs:\n  run:\n    pipeline: p\n"
        "    input: {path: heard/*.wav, rate: 16000}\n    output: {path: out, format: jsonl}\n"
    )
    monkeypatch.setattr(
        memory, "ask_fork", lambda *_run, **_settings: Answer([{"halved": 1}], 0, late=False, printed="")
    )
    (found,) = cli("plan", "--measure", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert found["rule"] == "over-memory-limit"
    assert found["detail"].endswith(
        "A step each runs up to 256 items of a row at a time. Write a smaller batch: for it."
    )


@pytest.mark.quick("segment")
@pytest.mark.parametrize("task", ["pose", "segment", "obb"])
def test_what_a_task_gives_beside_boxes_is_in_the_picture(cli: Cli, tmp_path: Path, task: str) -> None:
    families.ultralytics(tmp_path / "m.onnx", task)
    manifest, said = init(cli, tmp_path)
    assert f"an ultralytics export ({task}, YOLO v11)" in said
    assert "normalize" not in steps_of(manifest)
    first, second = rows(cli, tmp_path)
    assert first["labels"] == ["dog"]
    corners = [[24, 20], [40, 20], [40, 44], [24, 44]]
    if task == "obb":
        np.testing.assert_allclose(first["corners"], [corners], atol=1e-3)
    else:
        np.testing.assert_allclose(first["boxes"], [[24, 20, 40, 44]], atol=1e-3)
    if task == "pose":
        assert np.shape(first["keypoints"]) == (1, 17, 3)
        np.testing.assert_allclose(first["keypoints"][0][0], [30, 25, 0.5], atol=1e-3)
        np.testing.assert_allclose(second["keypoints"][0][0], [30 * 128 / 64, (25 - 6) * 2, 0.5], atol=1.5)
    if task == "segment":
        ((*outline,),) = first["outlines"]
        assert sorted(outline) == sorted(corners), "a mask without factors above 0 ends at its box"


@pytest.mark.slow
def test_pictures_of_a_classifier_of_ultralytics_are_not_normalized(cli: Cli, tmp_path: Path) -> None:
    names = "{0: 'cat', 1: 'dog', 2: 'owl'}"
    families.with_metadata(families.classifier(tmp_path / "m.onnx"), task="classify", stride="1", names=names)
    manifest, _ = init(cli, tmp_path)
    prepare = manifest["jobs"]["run"]["prepare"]["x"]
    assert prepare[1:3] == [{"resize": {"shortest": 32}, "method": "bilinear"}, {"center_crop": [32, 32]}]
    assert [next(iter(step)) for step in prepare] == ["rgb", "resize", "center_crop", "scale", "layout"]


@pytest.mark.slow
def test_inputs_and_columns_that_are_paired_in_their_order_are_a_guess(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"])]
    inputs: families.Tensors = {"a": (FLOAT, ["n"]), "b": (FLOAT, ["n"])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, ["n"])})
    (tmp_path / "x.csv").write_text("paid,owed\n1,2\n")
    manifest, said = init(cli, tmp_path, "--from", tmp_path / "x.csv", code=1)
    assert manifest["jobs"]["run"]["input"]["columns"] == {"a": "paid", "b": "owed"}
    assert "columns in line 2" in said.splitlines()[-2]
    assert "# made up: inputs and columns are paired in their order" in (tmp_path / "m.yaml").read_text()


@pytest.mark.slow
def test_a_folder_of_several_formats_is_read_by_all_suffixes_of_one(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (40, 30)).save(tmp_path / "photos" / name)
    (tmp_path / "photos/notes.txt").write_text("one\n")
    manifest, _ = init(cli, tmp_path, "--from", tmp_path / "photos")
    assert manifest["jobs"]["run"]["input"]["path"] == ["photos/*.jpg", "photos/*.png"]
    assert len(rows(cli, tmp_path)) == 2


def test_a_length_of_a_row_is_not_taken_for_a_number_of_rows(cli: Cli, tmp_path: Path) -> None:
    """A tagger [1, length] that gives [length] has no rows in its output, which one letter alone would not show."""
    nodes = [helper.make_node("Cast", ["letters"], ["x"], to=FLOAT), helper.make_node("Squeeze", ["x", "first"], ["y"])]
    types: families.Tensors = {"letters": (TensorProto.INT64, [1, "length"])}
    first: families.Weights = {"first": np.array([0], np.int64)}
    save_model(tmp_path / "m.onnx", nodes, types, {"y": (FLOAT, ["length"])}, first)
    manifest, _ = init(cli, tmp_path)
    assert manifest["jobs"]["run"]["batch"] == {"size": "none"}
