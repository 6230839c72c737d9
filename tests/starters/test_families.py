"""For each family of models, `init` and `apply` succeed as written, with the steps that the family needs."""

import errno
import gzip
import json
import os
import shlex
import shutil
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from conftest import Cli
from onnx import TensorProto, helper
from PIL import Image
from support import family_models as families
from support.models import save_model, scale_model

from ortdeploy.cli import tryouts
from ortdeploy.cli.commands import init
from ortdeploy.files.atomic import open_whole
from ortdeploy.results.results import JobResult, Status
from ortdeploy.runtime.trial_run import Ran
from ortdeploy.starters import model_info
from ortdeploy.starters.samples import recording

FLOAT = TensorProto.FLOAT


def made(cli: Cli, folder: Path, *further: str | Path, model: str = "m.onnx") -> tuple[dict[str, Any], str]:
    """Return the manifest that init writes, whose first rows it has run, and what init said."""
    said = cli("init", folder / model, "-o", folder / "m.yaml", *further)
    assert said.code == 0, said.out + said.err
    return yaml.safe_load((folder / "m.yaml").read_text()), said.out


def rows(cli: Cli, folder: Path) -> list[dict[str, Any]]:
    """Apply the manifest as it stands, and return what it gives."""
    applied = cli("apply", folder / "m.yaml", "-q")
    assert applied.code == 0, applied.out + applied.err
    parts = sorted((folder / "outbox/m").glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def steps_of(manifest: dict[str, Any]) -> list[str]:
    (pipeline,) = manifest["pipelines"].values()
    return [step.get("do") or step.get("run") or step.get("op") or "each" for step in pipeline["steps"]]


def test_an_ultralytics_export_finds_its_box_in_the_picture(cli: Cli, tmp_path: Path) -> None:
    families.yolo(tmp_path / "m.onnx")
    manifest, said = made(cli, tmp_path)
    assert "YOLO v8" in said
    assert steps_of(manifest)[-4:] == ["yolo_decode", "nms", "unletterbox", "labels"]
    first = rows(cli, tmp_path)[0]
    assert first["labels"] == ["dog's toy"]
    np.testing.assert_allclose(first["boxes"], [[24, 20, 40, 44]], atol=1e-3)  # the first sample is 64 x 64


@pytest.mark.slow
@pytest.mark.parametrize("size", ["[96, 64]", "[0, 0]", "[-64, 64]", "[3000000, 3000000]", "[true, true]"])
def test_a_size_in_the_metadata_counts_if_pictures_have_it(cli: Cli, tmp_path: Path, size: str) -> None:
    model = onnx.load(str(families.yolo(tmp_path / "m.onnx")))
    for axis, name in ((2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, str(tmp_path / "m.onnx"))
    families.with_metadata(tmp_path / "m.onnx", task="detect", stride="32", names="['cat', 'dog']", imgsz=size)
    manifest, _ = made(cli, tmp_path)
    wanted = [96, 64] if size == "[96, 64]" else [224, 224]
    assert manifest["pipelines"]["find"]["steps"][1]["in"]["size"] == wanted


@pytest.mark.slow
def test_what_a_model_says_of_itself_stays_in_its_comment(cli: Cli, tmp_path: Path) -> None:
    size = "[64, 64]\x00\x85\u2028\r\nname: other\n#"
    families.with_metadata(
        families.yolo(tmp_path / "m.onnx"), task="detect", stride="32", names="['cat', 'dog']", imgsz=size
    )
    manifest, _ = made(cli, tmp_path)
    assert "name" not in manifest
    assert "imgsz [64, 64] name: other #." in (tmp_path / "m.yaml").read_text(encoding="utf-8")


def test_a_head_without_suppression_gets_none(cli: Cli, tmp_path: Path) -> None:
    families.yolo(tmp_path / "m.onnx", version="YOLOv10n", decided=True)
    manifest, _ = made(cli, tmp_path)
    assert "nms" not in steps_of(manifest)
    assert rows(cli, tmp_path)[0]["labels"] == ["dog's toy"]


@pytest.mark.slow
def test_the_description_decides_only_what_the_shape_allows(cli: Cli, tmp_path: Path) -> None:
    families.yolo(tmp_path / "m.onnx", version="YOLOv10n")  # says v10, and has the head of v8
    assert "version: v8" in yaml.safe_dump(made(cli, tmp_path)[0])


@pytest.mark.parametrize("decoded", [False, True])
def test_an_export_of_yolox_finds_its_box_in_the_picture(cli: Cli, tmp_path: Path, *, decoded: bool) -> None:
    families.yolox(tmp_path / "m.onnx", decoded=decoded)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    manifest, said = made(cli, tmp_path)
    assert "an export of YOLOX" in said
    assert steps_of(manifest)[:3] == ["letterbox", "bgr", "layout"], "top left, blue first, from 0 to 255"
    assert ("size" in manifest["pipelines"]["find"]["steps"][5]["in"]) == (not decoded)
    first, second = rows(cli, tmp_path)
    assert first["labels"] == second["labels"] == ["dog"]
    box = np.array([3.25 * 16 - 12, 2.5 * 16 - 16, 64, 2.5 * 16 + 16])  # cut at the right edge, 64
    np.testing.assert_allclose(first["boxes"], [box], atol=1e-3)  # the first sample is 64 x 64
    np.testing.assert_allclose(second["boxes"][0][:2], box[:2] * 2, atol=1e-3)  # and the second 104 high, 128 wide


@pytest.mark.slow
@pytest.mark.parametrize("where", ["labels.txt", "config.json", "metadata", "nowhere"])
def test_a_classifier_gets_the_labels_that_are_there(cli: Cli, tmp_path: Path, where: str) -> None:
    families.classifier(tmp_path / "m.onnx")
    if where == "labels.txt":
        (tmp_path / where).write_text("cat\ndog\nowl\n")
    elif where == "config.json":
        (tmp_path / where).write_text(json.dumps({"id2label": {"0": "cat", "1": "dog", "2": "owl"}}))
    elif where == "metadata":
        families.with_metadata(tmp_path / "m.onnx", classes="['cat', 'dog', 'owl']")
    made(cli, tmp_path)
    first = rows(cli, tmp_path)[0]
    assert first.keys() == {"path", "class", "probability"} | ({"label"} if where != "nowhere" else set())
    assert where == "nowhere" or first["label"] == ["cat", "dog", "owl"][first["class"]]


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(
    ("text", "are_taken"), [("cat\ndog\n", False), ("cat\ndog\nowl\nyak\n", False), ("cat\ndog\nowl\n\n", True)]
)
def test_labels_of_another_number_of_classes_are_not_taken(
    cli: Cli, tmp_path: Path, text: str, *, are_taken: bool
) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "labels.txt").write_text(text)
    made(cli, tmp_path)
    assert ("label" in rows(cli, tmp_path)[0]) == are_taken


def test_a_classifier_of_timm_is_prepared_as_its_config_json_says(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    of_pictures = {"input_size": [3, 32, 32], "crop_pct": 0.875, "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3]}
    config = {"pretrained_cfg": {**of_pictures, "std": [0.2, 0.2, 0.2]}, "label_names": ["cat", "dog", "owl"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    manifest, said = made(cli, tmp_path)
    assert "results depend on it" not in said
    steps = manifest["jobs"]["run"]["prepare"]["x"]
    assert {"resize": {"shortest": 36}, "method": "bicubic"} in steps
    assert {"center_crop": [32, 32]} in steps
    assert {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}} in steps
    assert rows(cli, tmp_path)[0]["label"] in config["label_names"]


@pytest.mark.parametrize(
    "changed", [{"input_size": ["3", "32", "32"]}, {"input_size": [3, 10**400, 32]}, {"crop_pct": 1e-320}]
)
def test_a_config_json_of_timm_with_strange_sizes_does_no_harm(
    cli: Cli, tmp_path: Path, changed: dict[str, Any]
) -> None:
    families.classifier(tmp_path / "m.onnx")
    config = {"pretrained_cfg": {"input_size": [3, 32, 32], "crop_pct": 0.875, **changed}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    manifest, _ = made(cli, tmp_path)
    assert "[32, 32]" in str(manifest["jobs"]["run"]["prepare"]["x"])


def test_names_of_classes_that_are_no_text_are_not_taken(cli: Cli, tmp_path: Path) -> None:
    families.with_metadata(families.classifier(tmp_path / "m.onnx"), classes=r"['cat', '\ud800', 'owl']")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "\ud800", "1": "dog", "2": "owl"}}))
    made(cli, tmp_path)
    assert "label" not in rows(cli, tmp_path)[0]


@pytest.mark.slow
def test_a_vector_that_nothing_calls_scores_stays_a_vector(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx", softmax=False)
    manifest, said = made(cli, tmp_path)
    assert "vector for a picture" in said
    assert "postprocess" not in manifest["jobs"]["run"]


def test_a_picture_is_prepared_as_the_file_beside_the_model_says(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    settings = {
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "resample": 3,
        "size": {"shortest_edge": 40},
        "do_center_crop": True,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    manifest, said = made(cli, tmp_path)
    steps = manifest["jobs"]["run"]["prepare"]["x"]
    assert "assumed" not in said
    assert {"resize": {"shortest": 40}, "method": "bicubic"} in steps
    assert {"center_crop": [32, 32]} in steps
    assert {"normalize": {"mean": [0.5] * 3, "std": [0.25] * 3}} in steps


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"image_mean": None, "image_std": None}, [{"scale": 1 / 255}]),
        ({"resample": [2], "do_rescale": False, "image_mean": [0.5]}, [{"cast": "float32"}]),
        (
            {"rescale_factor": 1 / 127.5, "image_mean": 1.0, "image_std": 1.0},
            [{"scale": 1 / 127.5}, {"normalize": {"mean": 1.0, "std": 1.0}}],
        ),
    ],
)
def test_settings_beside_the_model_may_be_missing_one_number_or_something_else(
    cli: Cli, tmp_path: Path, settings: dict[str, Any], steps: list[Any]
) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    manifest, _ = made(cli, tmp_path)
    resized = {"resize": [32, 32], "method": "bilinear"}
    assert manifest["jobs"]["run"]["prepare"]["x"] == [{"rgb": True}, resized, *steps, {"layout": "NCHW"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"size": {"height": 40, "width": 48}}, [{"resize": [40, 48], "method": "bilinear"}]),
        (
            {"size": {"height": 40, "width": 48}, "do_center_crop": True, "crop_size": 36},
            [{"resize": [40, 48], "method": "bilinear"}, {"center_crop": [36, 36]}],
        ),
        (
            {"size": 40, "do_center_crop": True, "crop_size": {"height": 32, "width": 36}},
            [{"resize": {"shortest": 40}, "method": "bilinear"}, {"center_crop": [32, 36]}],
        ),
    ],
)
def test_a_size_that_the_graph_leaves_open_is_that_of_the_settings(
    cli: Cli, tmp_path: Path, settings: dict[str, Any], steps: list[Any]
) -> None:
    families.classifier(tmp_path / "m.onnx", open_sizes=True)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    manifest, _ = made(cli, tmp_path)
    assert manifest["jobs"]["run"]["prepare"]["x"][1:-3] == steps


@pytest.mark.slow
def test_an_assumed_scale_is_told_and_not_only_written_down(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml").out
    assert said.splitlines()[0].endswith("beside it. It ran 2 rows.")
    assumed = "RGB, scale, mean, std (ImageNet's; nothing in the files tells); method (the usual one)"
    *_, told, made_up, check = said.splitlines()
    assert told == f"By convention in {tmp_path / 'm.yaml'}, and results depend on it: {assumed}."
    assert made_up == "Made up: sample rows (m-sample-*.png)."
    assert check == "The model file does not say. Check these values: wrong ones give confident but wrong results."
    assert "# by convention: nothing in the files tells\n" in (tmp_path / "m.yaml").read_text()
    quiet = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "quiet.yaml", "--quiet", "--no-color")
    assert (quiet.code, quiet.out) == (0, "")


def test_a_text_detector_gets_boxes_of_lines(cli: Cli, tmp_path: Path) -> None:
    families.text_detector(tmp_path / "m.onnx")
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest)[-1] == "text_boxes"
    assert rows(cli, tmp_path)[0].keys() == {"path", "boxes", "scores"}


@pytest.mark.quick("file")
@pytest.mark.parametrize("where", ["metadata", "file"])
def test_a_reader_of_lines_gets_its_letters(cli: Cli, tmp_path: Path, where: str) -> None:
    families.text_recogniser(tmp_path / "m.onnx", "0123456789ABC" if where == "metadata" else None)
    if where == "file":
        (tmp_path / "keys.txt").write_text("\n".join("0123456789ABC") + "\n")
    manifest, said = made(cli, tmp_path)
    assert ("blank 0" in said) == (where == "file"), "lines of a file do not say which class is none of them"
    assert steps_of(manifest)[-1] == "ctc_greedy"
    assert set(rows(cli, tmp_path)[0]["text"]) <= set("0123456789ABC ")


def test_letters_that_cannot_be_read_are_unknown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families.text_recogniser(tmp_path / "m.onnx", None)
    (tmp_path / "keys.txt").touch()
    from ortdeploy.files.opening import read_text  # noqa: PLC0415  which is replaced below

    def refuse(path: Path) -> str:
        if path.name == "keys.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path)

    monkeypatch.setattr(model_info, "read_text", refuse)
    _, said = made(cli, tmp_path)
    assert "its letters are unknown" in said


@pytest.mark.slow
def test_a_letter_that_ends_lines_elsewhere_counts_once(cli: Cli, tmp_path: Path) -> None:
    families.text_recogniser(tmp_path / "m.onnx", None)
    (tmp_path / "keys.txt").write_bytes("\n".join("0123456789\u2028\x85C").encode())
    manifest, _ = made(cli, tmp_path)
    assert manifest["pipelines"]["read"]["steps"][-1]["in"]["append"] == " "


def test_a_reader_of_lines_without_letters_is_told_what_it_lacks(cli: Cli, tmp_path: Path) -> None:
    families.text_recogniser(tmp_path / "m.onnx", None)
    _, said = made(cli, tmp_path)
    assert "its letters are unknown: write them, one a line, to keys.txt beside the model" in said


@pytest.mark.slow
def test_a_classifier_with_a_head_for_each_place_of_a_text_gets_columns_for_each(cli: Cli, tmp_path: Path) -> None:
    families.captcha(tmp_path / "m.onnx")
    made(cli, tmp_path)
    assert "# Left out of columns: features.\n" in (tmp_path / "m.yaml").read_text()
    wanted = {f"place_{place}_{what}" for place in range(3) for what in ("class", "probability")}
    assert all(set(row) == {"path", *wanted} for row in rows(cli, tmp_path))


@pytest.mark.slow
def test_a_listener_hears_windows_with_its_state(cli: Cli, tmp_path: Path) -> None:
    families.listener(tmp_path / "m.onnx")
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["windows", "each"]
    lines = rows(cli, tmp_path)
    assert [line["start"] for line in lines] == list(range(0, 512 * len(lines), 512))


@pytest.mark.parametrize(
    ("window", "size", "told"),
    [
        (576, 512, "512 new ones and 64 of before; check this for another model."),
        (400, 400, "If some are of before, write context and less size."),
    ],
)
def test_a_window_of_the_size_of_silero_has_samples_of_before_whatever_the_states_are_called(
    cli: Cli, tmp_path: Path, window: int, size: int, told: str
) -> None:
    families.fixed_listener(tmp_path / "m.onnx", window)
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["windows", "each"]
    assert told in " ".join((tmp_path / "m.yaml").read_text().replace("#", "").split())
    lines = rows(cli, tmp_path)
    assert [line["start"] for line in lines] == list(range(0, size * len(lines), size))


def test_a_model_of_recordings_hears_them_whole(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx")
    manifest, said = made(cli, tmp_path)
    assert "a model of recordings" in said
    assert "rate 16000 (nothing in the files tells how many samples a second it wants)" in said
    assert manifest["jobs"]["run"]["input"]["columns"] == {"waveforms": "samples"}
    assert len(rows(cli, tmp_path)) == 1


def test_a_model_of_recordings_is_told_how_long_each_is(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx", lengths=True)
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["Shape", "squeeze", "m"]
    with wave.open(str(tmp_path / "m-sample.wav")) as sample:
        samples = np.frombuffer(sample.readframes(sample.getnframes()), "<i2") / 32768
    assert rows(cli, tmp_path)[0]["y"] == pytest.approx([samples.sum()], rel=1e-2, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "save",
    [families.listener, families.hearer, partial(families.hearer, lengths=True), partial(families.hearer, samples=800)],
)
def test_recordings_of_one_and_of_several_channels_feed_what_hears(
    cli: Cli, tmp_path: Path, save: Callable[[Path], Path]
) -> None:
    save(tmp_path / "m.onnx")
    (tmp_path / "heard").mkdir()
    samples = np.random.default_rng(0).integers(-9000, 9000, 3200).astype("<i2")
    for name, channels in (("a", 1), ("b", 2), ("c", 1)):
        with wave.open(str(tmp_path / f"heard/{name}.wav"), "wb") as file:
            file.setparams((channels, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.repeat(samples, channels).tobytes())
    made(cli, tmp_path, "--from", tmp_path / "heard")
    found: dict[str, list[Any]] = {}
    for row in rows(cli, tmp_path):
        found.setdefault(row.pop("path"), []).append({name: one for name, one in row.items() if name != "row"})
    first, *others = found.values()
    assert len(others) == 2
    assert all(one == first for one in others)


def test_what_is_said_is_written_down_with_the_letters_of_vocab_json(cli: Cli, tmp_path: Path) -> None:
    families.speller(tmp_path / "m.onnx")
    (tmp_path / "vocab.json").write_text(json.dumps({"B": 2, "<pad>": 0, "A": 1, "|": 4, "<unk>": 3}))
    loud = np.repeat(np.array([0, 0.2, 0.2, 0, 0.2, 0.8, 0.4, 0], np.float32), 160)
    with wave.open(str(tmp_path / "mine.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((loud * 32767).astype("<i2").tobytes())
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "mine.wav")
    assert "a model that writes down what is said (CTC)" in said
    assert steps_of(manifest) == ["m", "ctc_greedy"]
    assert rows(cli, tmp_path)[0]["text"] == "AA B"


@pytest.mark.parametrize("rate", [True, 10**30])
def test_a_file_that_says_no_sample_rate_is_passed_over(cli: Cli, tmp_path: Path, rate: object) -> None:
    families.sound_classifier(tmp_path / "m.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": rate}))
    assert made(cli, tmp_path)[0]["jobs"]["run"]["input"]["rate"] == 16000


def test_recordings_are_prepared_and_classified_as_files_beside_the_model_say(cli: Cli, tmp_path: Path) -> None:
    families.sound_classifier(tmp_path / "m.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "loud", "1": "quiet", "2": "none"}}))
    extractor = {"do_normalize": True, "sampling_rate": 8000}
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": extractor}))
    manifest, said = made(cli, tmp_path)
    assert "a classifier of recordings" in said
    assert "rate" not in said
    job = manifest["jobs"]["run"]
    assert job["input"]["rate"] == 8000
    assert job["prepare"]["samples"] == [{"mono": True}, {"standardize": True}]
    (row,) = rows(cli, tmp_path)
    assert row["label"] == "loud"  # the variance is 1
    assert row["probability"] == pytest.approx(np.e / (np.e + 2 * np.exp(0.5)), abs=1e-3)


def test_a_rate_that_only_the_recordings_tell_is_made_up_and_runs(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx")
    (tmp_path / "mine.wav").write_bytes(recording(0.1, 22_050))
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / "mine.wav")
    assert said.code == 1
    assert "the recordings have it, and nothing tells which one the model wants" in said.out
    assert yaml.safe_load((tmp_path / "m.yaml").read_text())["jobs"]["run"]["input"]["rate"] == 22_050
    assert len(rows(cli, tmp_path)) == 1


def test_recordings_are_resampled_to_the_rate_in_the_metadata(cli: Cli, tmp_path: Path) -> None:
    families.with_metadata(families.hearer(tmp_path / "m.onnx"), sample_rate="8000")
    (tmp_path / "mine.wav").write_bytes(recording(0.1, 22_050))
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "mine.wav")
    assert {"resample": 8000} in next(iter(manifest["jobs"]["run"]["prepare"].values()))
    assert "rate" not in said


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["0", "-16000", "16 kHz", "9" * 5000, "16000.0", ""])
def test_metadata_that_say_no_sample_rate_are_passed_over(cli: Cli, tmp_path: Path, rate: str) -> None:
    families.with_metadata(families.hearer(tmp_path / "m.onnx"), sample_rate=rate)
    _, said = made(cli, tmp_path)
    assert "rate 16000 (nothing in the files tells" in said


def test_recordings_of_another_rate_are_resampled(cli: Cli, tmp_path: Path) -> None:
    families.listener(tmp_path / "m.onnx")
    (tmp_path / "mine.wav").write_bytes(recording(0.1, 22_050))
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "mine.wav")
    assert manifest["jobs"]["run"]["prepare"] == {"samples": [{"mono": True}, {"resample": 16_000}]}
    assert "rate" not in manifest["jobs"]["run"]["input"]


@pytest.mark.quick("channel last, windows")
@pytest.mark.parametrize(
    ("shape", "lines"),
    [(["n", 800, 1], 40), (["n", 1, 800], 40), (["n", "length", 1], 1), (["n", 1, "length"], 1)],
    ids=["channel last, windows", "channel first, windows", "channel last", "channel first"],
)
def test_one_channel_may_be_an_axis_of_a_recording(cli: Cli, tmp_path: Path, shape: list[Any], lines: int) -> None:
    families.channel_hearer(tmp_path / "m.onnx", shape)
    _, said = made(cli, tmp_path)
    assert "a model of recordings" in said
    assert len(rows(cli, tmp_path)) == lines


@pytest.mark.quick("lines first")
@pytest.mark.parametrize(
    ("shape", "columns"),
    [(["n", 4, 2], 2), (["n", 2, 4], 2), (["n", 4, 1], 1), (["n", 1, 4], 1), (["n", 4], 1)],
    ids=["lines first", "columns first", "one column", "one row", "alone"],
)
def test_lines_of_a_table_are_windows_of_a_series(cli: Cli, tmp_path: Path, shape: list[Any], columns: int) -> None:
    families.forecaster(tmp_path / "m.onnx", shape)
    numbers = np.arange(20 * columns, dtype=np.float32).reshape(20, columns)
    lines = [f"2026-01-01T00:{n:02d},pump{n // 10}," + ",".join(map(str, one)) for n, one in enumerate(numbers)]
    names = ["date", "device", *("flow", "heat")[:columns]]
    (tmp_path / "log.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "log.csv")
    assert "a model of series" in said
    window = manifest["jobs"]["run"]["input"]["window"]
    assert window == {"rows": 4, "hop": 4, "by": ["device"], "order": "date"}
    found = rows(cli, tmp_path)
    assert [(row["device"], row["first_line"]) for row in found if row["first_date"]] == [
        ("pump0", 0), ("pump0", 4), ("pump1", 10), ("pump1", 14),
    ]  # fmt: skip
    wanted = numbers[14:18] if shape[1] == 4 else numbers[14:18].T
    np.testing.assert_array_equal(np.squeeze(found[-1]["y"]), np.squeeze(wanted))


@pytest.mark.slow
def test_how_many_lines_a_series_has_is_made_up_if_the_graph_takes_any(cli: Cli, tmp_path: Path) -> None:
    families.forecaster(tmp_path / "m.onnx", ["n", "lines", 2])
    (tmp_path / "log.csv").write_text("a,b\n" + "1,2\n" * 40)
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / "log.csv")
    assert said.code == 1
    assert "rows in line" in said.out
    assert "how many it was trained on" in said.out


@pytest.mark.slow
def test_a_fixed_length_is_that_of_windows(cli: Cli, tmp_path: Path) -> None:
    families.hearer(tmp_path / "m.onnx", samples=800)
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["windows", "each"]
    assert [line["start"] for line in rows(cli, tmp_path)] == list(range(0, 32000, 800))


def test_recordings_of_the_user_feed_a_model_of_a_fixed_length(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    (tmp_path / "mine.wav").write_bytes(recording(0.01))
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "mine.wav")
    assert manifest["jobs"]["run"]["input"]["path"] == "mine.wav"
    assert len(rows(cli, tmp_path)) == 40  # windows of the four values that it takes


@pytest.mark.slow
def test_files_get_the_types_that_the_settings_name(cli: Cli, tmp_path: Path) -> None:
    families.file_typer(tmp_path / "m.onnx")
    manifest, said = made(cli, tmp_path)
    assert "types of files" in said
    assert manifest["jobs"]["run"]["prepare"]["end"][2:] == [
        {"tail": 8},
        {"cast": "int32"},
        {"pad": 8, "value": 256, "side": "start"},
    ]
    assert {row["type"] for row in rows(cli, tmp_path)} <= {"high", "low"}


def test_all_files_of_a_folder_get_types_whatever_they_end_as(cli: Cli, tmp_path: Path) -> None:
    families.file_typer(tmp_path / "m.onnx")
    (tmp_path / "mine/inner").mkdir(parents=True)
    for name in ("a.csv", "b.csv", "c.jpg", "page.html", "LICENCE"):
        (tmp_path / "mine" / name).write_text("x,y\n1,2\n")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "mine")
    assert manifest["jobs"]["run"]["input"]["path"] == "mine/*"
    assert "left out" not in said
    assert len(rows(cli, tmp_path)) == 5


def test_one_file_gets_its_type_whatever_it_ends_as(cli: Cli, tmp_path: Path) -> None:
    families.file_typer(tmp_path / "m.onnx")
    (tmp_path / "mine.csv").write_text("x,y\n1,2\n")
    made(cli, tmp_path, "--from", tmp_path / "mine.csv")
    assert [row["path"] for row in rows(cli, tmp_path)] == ["mine.csv"]


def test_a_wake_word_is_heard_by_three_networks(cli: Cli, tmp_path: Path) -> None:
    families.wake_word(tmp_path / "m.onnx")
    manifest, said = made(cli, tmp_path)
    assert "a wake word" in said
    assert steps_of(manifest)[-4:] == ["windows", "each", "windows", "each"]
    assert [line["at"] for line in rows(cli, tmp_path)] == list(range(9))  # 11 windows of 76 lie in 160


def test_a_word_without_the_shared_networks_is_fed_embeddings(cli: Cli, tmp_path: Path) -> None:
    families.wake_word(tmp_path / "m.onnx")
    (tmp_path / "embedding_model.onnx").unlink()
    assert "pipelines" not in made(cli, tmp_path)[0]


@pytest.mark.slow
def test_a_detector_beside_a_reader_reads_pages(cli: Cli, tmp_path: Path) -> None:
    families.text_detector(tmp_path / "m.onnx")
    families.text_recogniser(tmp_path / "small-rec.onnx", "0123456789ABC")
    manifest, said = made(cli, tmp_path)
    assert "the reader of lines beside it" in said
    assert steps_of(manifest)[-3:] == ["text_boxes", "crop", "each"]
    assert rows(cli, tmp_path)[0].keys() == {"path", "boxes", "texts", "scores"}


def test_photographs_are_the_rows_of_a_model_that_gives_maps(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    shape: families.Tensors = {"x": (FLOAT, ["n", 3, 40, 48])}
    save_model(tmp_path / "m.onnx", nodes, shape, {"y": (FLOAT, ["n", 3, 40, 48])})
    _, said = made(cli, tmp_path)
    assert "takes a picture" in said


@pytest.mark.slow
def test_empty_cells_of_the_user_are_nan(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv").write_text("age,income,debt\n1,2,3\n4,,6\n")
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "people.csv")
    assert manifest["jobs"]["run"]["input"]["missing"] == "nan"


def test_rows_of_the_user_are_made_flat(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "small.npy", np.ones((3, 2, 2), np.float32))
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "small.npy")
    assert manifest["jobs"]["run"]["prepare"] == {"x": [{"flatten": True}]}


@pytest.mark.slow
def test_a_table_is_fed_from_columns(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx")
    manifest, _ = made(cli, tmp_path)
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["f*"]}
    assert rows(cli, tmp_path)[0].keys() == {"row", "label", "probabilities"}


def test_columns_of_a_table_may_have_commas_and_quotes_in_their_names(cli: Cli, tmp_path: Path) -> None:
    names = ('age, in "years"', "income")
    scaled = [
        helper.make_node("Scaler", [name], [f"s{at}"], domain="ai.onnx.ml", offset=[0.0], scale=[1.0])
        for at, name in enumerate(names)
    ]
    inputs: families.Tensors = {name: (FLOAT, ["n", 1]) for name in names}
    save_model(
        tmp_path / "m.onnx", [*scaled, helper.make_node("Add", ["s0", "s1"], ["y"])], inputs, {"y": (FLOAT, ["n", 1])}
    )
    model = onnx.load(str(tmp_path / "m.onnx"))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, str(tmp_path / "m.onnx"))
    _, said = made(cli, tmp_path)
    assert "a table's model" in said
    assert (tmp_path / "m-sample.csv").read_text().startswith('"age, in ""years""",income\n')


def test_an_output_whose_written_rows_no_run_keeps_to_is_declared(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx", rows_in_outputs=False)  # as LightGBM's converter writes them
    manifest, said = made(cli, tmp_path)
    assert manifest["models"]["m"]["outputs"]["label"]["row_axis"] == 0
    assert "does not run" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "width", "keys"),
    [("last_hidden_state", 6, {"vector"}), ("logits", 3, {"label", "probability"}), ("logits", 1, {"score"})],
)
def test_a_transformer_beside_its_tokenizer_reads_text(
    cli: Cli, tmp_path: Path, output: str, width: int, keys: set[str]
) -> None:
    pytest.importorskip("tokenizers")
    families.encoder(tmp_path / "m.onnx", output=output, width=width)
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "good", "1": "bad", "2": "none"}}))
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest)[:2] == ["tokenize", "m"]
    assert rows(cli, tmp_path)[0].keys() == keys | {"row"}


def test_a_sentence_encoder_pools_as_its_folder_says(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    families.encoder(tmp_path / "m.onnx")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert "Gather" in steps_of(made(cli, tmp_path)[0])


@pytest.mark.slow
def test_without_a_tokenizer_the_same_model_is_fed_tokens(cli: Cli, tmp_path: Path) -> None:
    families.encoder(tmp_path / "m.onnx")
    (tmp_path / "tokenizer.json").unlink()
    assert "pipelines" not in made(cli, tmp_path)[0]


@pytest.mark.slow
def test_a_folder_of_stable_diffusion_paints(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/painter", tmp_path / "painter")
    (tmp_path / "painter/unet/config.json").write_text(json.dumps({"sample_size": 4}))
    manifest, _ = made(cli, tmp_path, model="painter")
    assert manifest["pipelines"]["paint"]["height"] == 32
    assert rows(cli, tmp_path)[0]["image"].endswith(".png")


def test_a_folder_of_other_graphs_is_told_which_they_are(cli: Cli, tmp_path: Path) -> None:
    for name in ("net.onnx", "last.onnx"):
        (tmp_path / name).write_bytes(b"")
    assert (
        "It holds last.onnx, net.onnx. init takes a .onnx file" in cli("init", tmp_path, "-o", tmp_path / "m.yaml").err
    )


def test_a_folder_of_a_model_that_writes_writes(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/writer", tmp_path / "writer")
    manifest, _ = made(cli, tmp_path, model="writer")
    assert manifest["pipelines"]["write"]["chat"] == "prompt"
    assert rows(cli, tmp_path)[0]["text"] == '{"part": "pump", "fault": "none"}'


def test_a_folder_of_a_model_that_writes_may_call_its_model_otherwise(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    folder = Path(shutil.copytree(Path(__file__).parents[2] / "deployments/models/writer", tmp_path / "writer"))
    (folder / "model.onnx").rename(folder / "phi-int4.onnx")
    config = folder / "genai_config.json"
    config.write_text(config.read_text().replace("model.onnx", "phi-int4.onnx"))
    manifest, _ = made(cli, tmp_path, model="writer")
    assert manifest["pipelines"]["write"]["components"] == {"decoder": {"file": "phi-int4.onnx"}}
    assert rows(cli, tmp_path)[0]["text"] == '{"part": "pump", "fault": "none"}'


def test_a_folder_of_a_model_that_hears_writes_down_recordings(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/listener", tmp_path / "listener")
    manifest, _ = made(cli, tmp_path, model="listener")
    assert list(manifest["pipelines"]["hear"]["components"]) == ["encoder", "decoder"]
    assert rows(cli, tmp_path)[0]["text"] == ""  # the sample is a hum


def test_a_folder_of_a_model_that_sees_writes_about_pictures(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/describer", tmp_path / "describer")
    manifest, _ = made(cli, tmp_path, model="describer")
    assert list(manifest["pipelines"]["describe"]["components"]) == ["vision", "embedding", "decoder"]
    assert rows(cli, tmp_path)[0]["text"].startswith("The picture shows the digit ")


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_pictures_that_a_table_names_go_to_a_model_that_sees(cli: Cli, tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime_genai")
    deployments = Path(__file__).parents[2] / "deployments"
    shutil.copytree(deployments / "models/describer", tmp_path / "describer")
    (tmp_path / "photos").mkdir()
    shutil.copy(deployments / "digits/000.png", tmp_path / "photos/a.png")
    texts = {"rows.csv": "id,photo,question\n1,a.png,Is this odd?\n", "rows.jsonl": '{"id": 1, "photo": ["a.png"]}\n'}
    (tmp_path / name).write_text(texts[name])
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / name, model="describer")
    assert manifest["pipelines"]["describe"]["image_folder"] == "photos"
    assert rows(cli, tmp_path)[0]["text"].startswith("The picture shows the digit seven")


def test_a_column_with_the_name_of_a_question_goes_to_a_model_that_writes(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/writer", tmp_path / "writer")
    (tmp_path / "rows.csv").write_text("id,question\n1,the pump leaks\n")
    made(cli, tmp_path, "--from", tmp_path / "rows.csv", model="writer")
    assert rows(cli, tmp_path)[0]["text"] == '{"part": "pump", "fault": "leak"}'


@pytest.mark.parametrize("text", ["[]", "{}", '{"model": 3}', '{"model": {"decoder": {"pipeline": 3}}}'])
def test_a_folder_of_a_strange_config_is_refused_by_plan(cli: Cli, tmp_path: Path, text: str) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[2] / "deployments/models/writer", tmp_path / "writer"))
    (folder / "genai_config.json").write_text(text)
    said = cli("init", folder, "-o", tmp_path / "m.yaml")
    assert said.code == 1
    assert "unusable-preset" in said.words


def test_names_of_parts_of_a_strange_config_stay_names(cli: Cli, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[2] / "deployments/models/writer", tmp_path / "writer"))
    name = "a: {}}, sha256: {b"
    pipeline = [{name: {"filename": "a.onnx"}}]
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"pipeline": pipeline}}}))
    cli("init", folder, "-o", tmp_path / "m.yaml")
    manifest = yaml.safe_load((tmp_path / "m.yaml").read_text())
    assert manifest["pipelines"]["write"]["components"] == {name: {"file": "a.onnx"}}


def test_a_folder_of_something_else_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    said = cli("init", tmp_path / "other")
    assert said.code == 1
    assert "folder without genai_config.json" in said.err
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.slow
def test_weights_that_are_listed_as_inputs_are_none(cli: Cli, tmp_path: Path) -> None:
    """As PyTorch has exported them for years."""
    nodes = [helper.make_node("MatMul", ["x", "fc.weight"], ["y"])]
    inputs: families.Tensors = {"x": (FLOAT, ["n", 4]), "fc.weight": (FLOAT, [4, 2])}
    weights: families.Weights = {"fc.weight": np.ones((4, 2), np.float32)}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, ["n", 2])}, weights)
    assert list(made(cli, tmp_path)[0]["models"]["m"]["inputs"]) == ["x"]


@pytest.mark.quick(0)
@pytest.mark.parametrize("length", [80, 771])
def test_a_length_that_only_the_weights_know_is_found(cli: Cli, tmp_path: Path, length: int) -> None:
    """80 is among the usual ones, and 771 a size of its weights."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs: families.Tensors = {"x": (FLOAT, ["n", "width"])}
    outputs: families.Tensors = {"y": (FLOAT, ["n", 2])}
    save_model(tmp_path / "m.onnx", nodes, inputs, outputs, {"w": np.ones((length, 2), np.float32)})
    made(cli, tmp_path)
    with np.load(tmp_path / "m-sample.npz") as sample:
        assert sample["x"].shape == (4, length)


@pytest.mark.slow
def test_a_model_whose_rows_depend_on_each_other_runs_them_one_by_one(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])})
    assert made(cli, tmp_path)[0]["jobs"]["run"]["batch"] == {"size": 1}


@pytest.mark.slow
def test_a_model_that_takes_nothing_made_up_says_so(cli: Cli, tmp_path: Path) -> None:
    """Its input is a table of places, and no place that is made up is in it."""
    nodes = [
        helper.make_node("Sub", ["x", "far"], ["shifted"]),
        helper.make_node("Gather", ["table", "shifted"], ["y"]),
    ]
    weights: families.Weights = {"far": np.array(-1000, np.int64), "table": np.ones((3, 2), np.float32)}
    save_model(tmp_path / "m.onnx", nodes, {"x": (TensorProto.INT64, ["n"])}, {"y": (FLOAT, ["n", 2])}, weights)
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    assert said.code == 1
    assert "no values that were made up" in said.out
    assert "--from" in said.out
    assert "ONNXRuntimeError" not in said.out.partition("Name rows")[0]
    assert (tmp_path / "m.yaml").is_file()


def test_a_family_whose_manifest_does_not_run_is_told_and_left(cli: Cli, tmp_path: Path) -> None:
    families.encoder(tmp_path / "m.onnx")
    (tmp_path / "tokenizer.json").write_text('{"no": "tokenizer"}')
    manifest, said = made(cli, tmp_path)
    assert "It looked like a sentence encoder" in said
    assert "pipelines" not in manifest
    assert {path.name for path in tmp_path.glob("m-*")} == {"m-sample.npz"}


@pytest.mark.slow
def test_pictures_of_the_user_take_the_place_of_samples(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30 + number), (number, 2, 3)).save(tmp_path / f"photos/{number}.jpg")
    (tmp_path / "photos/notes.doc").write_text("no picture")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "photos")
    assert manifest["jobs"]["run"]["input"]["path"] == "photos/*.jpg"
    assert "left out" not in said
    assert len(rows(cli, tmp_path)) == 3
    assert not list(tmp_path.glob("m-sample*"))


def test_all_files_of_one_format_are_read_and_the_others_are_named(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.jpg", "c.PNG", "d.png"):
        Image.new("RGB", (40, 30)).save(tmp_path / "photos" / name)
    (tmp_path / "photos/notes.txt").write_text("no picture\n")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "photos")
    assert manifest["jobs"]["run"]["input"]["path"] == ["photos/*.jpg", "photos/*.PNG", "photos/*.png"]
    assert {row["path"] for row in rows(cli, tmp_path)} == {
        f"photos/{name}" for name in ("a.jpg", "b.jpg", "c.PNG", "d.png")
    }
    assert (
        "It reads photos/*.jpg, photos/*.PNG and photos/*.png. Other files of that folder are left out: 1 of *.txt."
        in said
    )


@pytest.mark.quick("ultralytics")
@pytest.mark.parametrize("family", ["classifier", "detr", "text_detector", "ultralytics", "yolox"])
def test_a_folder_of_grey_and_coloured_pictures_feeds_every_family(cli: Cli, tmp_path: Path, family: str) -> None:
    getattr(families, "yolo" if family == "ultralytics" else family)(tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    for mode in ("RGB", "L", "RGBA", "P", "1", "LA", "CMYK"):
        Image.new(mode, (64, 64)).save(tmp_path / f"photos/{mode}.{'jpg' if mode == 'CMYK' else 'png'}")
    _, said = made(cli, tmp_path, "--from", tmp_path / "photos")
    assert "It looked like" not in said
    assert len(rows(cli, tmp_path)) == 7


def test_an_export_whose_boxes_cannot_be_found_is_not_prepared_as_a_classifier_is(cli: Cli, tmp_path: Path) -> None:
    families.yolo(tmp_path / "m.onnx")
    Image.new("RGB", (64, 64)).save(tmp_path / "one.png")
    (tmp_path / "two.png").write_bytes(b"no picture")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path)
    assert said.code == 1
    assert "for an ultralytics export" in said.out
    assert "does not run yet" in said.out
    assert "center_crop" not in (tmp_path / "m.yaml").read_text()


@pytest.mark.slow
def test_pictures_of_the_user_feed_any_model_that_takes_them(cli: Cli, tmp_path: Path) -> None:
    """A map as large as the picture, not one of heat: no family knows it."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    shape: families.Tensors = {"x": (FLOAT, ["n", 3, "h", "w"])}
    save_model(tmp_path / "m.onnx", nodes, shape, {"y": (FLOAT, ["n", 3, "h", "w"])})
    Image.new("RGB", (40, 30)).save(tmp_path / "one.png")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "one.png")
    assert "takes a picture" in said
    assert {"resize": [224, 224], "method": "bilinear"} in manifest["jobs"]["run"]["prepare"]["x"]


def test_columns_of_the_user_feed_a_table(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv").write_text("age,income,debt\n1,2,3\n4,5,6\n")
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "people.csv")
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["age", "income", "debt"]}


def test_columns_are_those_that_the_metadata_of_a_table_name(cli: Cli, tmp_path: Path) -> None:
    """In the order of the model, whatever the order of the file is, and also if the file has more."""
    families.with_metadata(families.table(tmp_path / "m.onnx"), feature_names='["debt", "age", "income"]')
    (tmp_path / "people.csv").write_text("id,age,income,debt\n7,1,2,3\n")
    manifest, said = made(cli, tmp_path, "--from", tmp_path / "people.csv")
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["debt", "age", "income"]}
    assert "results depend on it" not in said


def test_columns_that_the_metadata_name_and_a_file_lacks_are_a_question(cli: Cli, tmp_path: Path) -> None:
    families.with_metadata(families.table(tmp_path / "m.onnx"), feature_names='["debt", "age", "income"]')
    (tmp_path / "people.csv").write_text("age,income,debts\n1,2,3\n")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / "people.csv")
    assert said.code == 1
    assert "feature_names in the model names debt that people.csv does not have" in said.out


@pytest.mark.slow
@pytest.mark.parametrize("names", ['["debt", "age"]', '["debt", "debt", "age"]', "debt,age,income", "3"])
def test_names_that_are_not_those_of_all_columns_are_passed_over(cli: Cli, tmp_path: Path, names: str) -> None:
    families.with_metadata(families.table(tmp_path / "m.onnx"), feature_names=names)
    manifest, _ = made(cli, tmp_path)
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["f*"]}


@pytest.mark.parametrize("delimiter", [pytest.param(";", marks=pytest.mark.slow), "\t"])
def test_the_delimiter_of_the_users_table_is_written(cli: Cli, tmp_path: Path, delimiter: str) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv").write_text("age,income,debt\n1,2,3\n4,5,6\n".replace(",", delimiter))
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "people.csv")
    assert manifest["jobs"]["run"]["input"]["delimiter"] == delimiter
    assert len(rows(cli, tmp_path)) == 2


def test_more_columns_than_a_table_takes_are_a_question(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv").write_text("age,income,debt,id,name\n1,2,3,4,Ada\n")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / "people.csv")
    assert said.code == 1
    why = "the model takes 3 columns and people.csv has 4 of numbers; left out: id"
    assert f"{why}; write those that it was trained on, in that order" in said.out
    assert f"# made up: {why}; write those that it was trained on" in (tmp_path / "m.yaml").read_text()


def test_columns_of_text_are_left_out_where_those_of_numbers_are_as_many_as_the_model_takes(
    cli: Cli, tmp_path: Path
) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv").write_text("name,age,income,debt\nAda,1,2,3\nBob,4,5,6\n")
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "people.csv")
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["age", "income", "debt"]}


@pytest.mark.slow
def test_arrays_of_the_user_feed_any_model(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    np.savez(tmp_path / "mine.npz", other=np.ones((5, 4), np.float32))
    made(cli, tmp_path, "--from", tmp_path / "mine.npz")
    assert len(rows(cli, tmp_path)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("data", ["people[1].csv", "all [1]", "all*"])
def test_names_of_the_user_s_files_may_have_signs_of_patterns(cli: Cli, tmp_path: Path, data: str) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "all 1").mkdir()
    (tmp_path / "all 1/a.csv").write_text("height,weight\n1,2\n")
    for path in ("people[1].csv", "all [1]/a.csv", "all*/a.csv"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("name,age,income,debt\nAda,1,2,3\n")
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / data)
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["age", "income", "debt"]}
    assert len(rows(cli, tmp_path)) == 1


def test_samples_may_have_signs_of_patterns_in_their_names(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m[1].onnx")
    said = cli("init", tmp_path / "m[1].onnx", "-o", tmp_path / "m[1].yaml")
    assert (said.code, "picture classifier" in said.out) == (0, True)
    assert "It looked like" not in said.out


def test_compressed_columns_of_text_are_left_out_too(cli: Cli, tmp_path: Path) -> None:
    families.table(tmp_path / "m.onnx")
    (tmp_path / "people.csv.gz").write_bytes(gzip.compress(b"name,age,income,debt\nAda,1,2,3\n"))
    manifest, _ = made(cli, tmp_path, "--from", tmp_path / "people.csv.gz")
    assert manifest["jobs"]["run"]["input"]["columns"] == {"X": ["age", "income", "debt"]}


@pytest.mark.parametrize(
    ("what", "told"),
    [("nothing.csv", "there is no"), ("empty", "no file in"), ("broken.npz", "broken.npz")],
)
def test_data_that_cannot_be_read_is_told(cli: Cli, tmp_path: Path, what: str, told: str) -> None:
    scale_model(tmp_path / "m.onnx")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / what)
    assert said.code == 1
    assert told in said.err
    assert not (tmp_path / "m.yaml").exists()


@pytest.mark.slow
def test_a_model_with_a_dimension_that_has_a_formula_for_a_name(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width="floor(width/2) + 1")
    manifest, _ = made(cli, tmp_path)
    assert manifest["models"]["m"]["inputs"]["x"]["shape"] == ["batch", None]
    assert onnx.load(str(tmp_path / "m.onnx")).graph.input[0].type.tensor_type.shape.dim[1].dim_param


def test_an_input_may_be_called_as_a_parameter_of_numpy_is(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["file", "allow_pickle"], ["y"])]
    inputs: families.Tensors = {"file": (FLOAT, ["n", 3]), "allow_pickle": (FLOAT, ["n", 3])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, ["n", 3])})
    made(cli, tmp_path)
    with np.load(tmp_path / "m-sample.npz") as sample:
        assert {name: sample[name].shape for name in sample.files} == dict.fromkeys(inputs, (4, 3))


def test_a_length_that_a_refusal_names_is_found(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
    inputs: families.Tensors = {"x": (FLOAT, ["n", "width"])}
    outputs: families.Tensors = {"y": (FLOAT, ["n", 7, 13])}
    save_model(tmp_path / "m.onnx", nodes, inputs, outputs, {"to": np.array([4, 91], np.int64)})
    cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    with np.load(tmp_path / "m-sample.npz") as sample:
        assert sample["x"].shape[-1] == 91


def test_a_number_of_rows_that_a_refusal_names_is_found(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "splits"], ["parts"]),
        helper.make_node("SequenceLength", ["parts"], ["y"]),
    ]
    inputs: families.Tensors = {"x": (FLOAT, ["n"]), "splits": (TensorProto.INT64, [3])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (TensorProto.INT64, [])})
    made(cli, tmp_path)
    with np.load(tmp_path / "m-sample.npz") as sample:
        assert sample["x"].shape == sample["splits"].shape == (4, 3)  # each of the four rows is a run of three


def test_a_model_that_nothing_here_can_run_is_told_as_plan_tells_it(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])]
    shape: families.Tensors = {"x": (FLOAT, [1, 3, 8, 8])}
    save_model(tmp_path / "m.onnx", nodes, shape, {"y": (FLOAT, [1, 3, 7, 7])}, opset=1, ir_version=3)
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    assert said.code == 1
    assert "unsupported-operator" in said.out
    assert "  7 |     path: m.onnx\n    |           ^^^^^^\n" in said.out
    assert "--from" not in said.out


@pytest.mark.slow
def test_whole_numbers_that_must_not_be_zero_are_one(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    inputs: families.Tensors = {"x": (FLOAT, [1, 3]), "shape": (TensorProto.INT64, [2])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, ["a", "b"])})
    made(cli, tmp_path)
    with np.load(tmp_path / "m-sample.npz") as sample:
        assert (sample["shape"] == 1).all()


def test_data_of_another_kind_is_told_and_leaves_a_manifest_to_mend(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "m.onnx")
    (tmp_path / "x.txt").write_text("hello\n")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml", "--from", tmp_path / "x.txt")
    assert said.code == 1
    assert "A row is a single value" in said.out
    assert "x.txt holds lines of text, and the model takes x float32 [n, 3, 32, 32]" in said.out
    assert "After that: ortdeploy try" in said.out
    assert (tmp_path / "m.yaml").is_file()


def test_a_disk_that_is_full_as_the_manifest_is_written_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_model(tmp_path / "m.onnx")

    def full(path: Path) -> Any:
        if path.suffix == ".yaml":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_whole(path)

    monkeypatch.setattr(init, "open_whole", full)
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    assert (said.code, "m.yaml cannot be written: No space left on device" in said.err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_the_next_command_can_be_copied_if_a_name_has_blanks(cli: Cli, tmp_path: Path) -> None:
    families.classifier(tmp_path / "my model.onnx")
    said = cli("init", tmp_path / "my model.onnx", "-o", tmp_path / "my model.yaml")
    (line,) = (one for one in said.out.splitlines() if one.startswith("Next: "))
    assert shlex.split(line)[1:] == ["ortdeploy", "try", str(tmp_path / "my model.yaml")]


def test_a_model_whose_name_begins_as_a_flag_does(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_model(tmp_path / "-m.onnx")
    monkeypatch.chdir(tmp_path)
    said = cli("init", "./-m.onnx")
    assert (said.code, f"Next: ortdeploy try {os.path.join('.', '-m.yaml')}" in said.out) == (0, True)  # noqa: PTH118
    assert Path("-m.yaml").is_file()


def test_rows_that_are_not_there_take_no_time(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    (tmp_path / "none.csv").write_text("a,b,c,d\n")
    _, said = made(cli, tmp_path, "--from", tmp_path / "none.csv")
    assert "holds no row" in said
    assert "takes long" not in said


def test_a_signal_during_the_first_rows_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_model(tmp_path / "m.onnx")
    interrupted = JobResult(job="run", status=Status.INTERRUPTED, output="out")
    monkeypatch.setattr(tryouts, "run_plan", lambda *_, **__: (interrupted,))
    assert cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml").code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_that_ends_every_process_is_told_and_not_run_in_this_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_model(tmp_path / "m.onnx")
    crashed = Ran(refusal="running it ends the process", crashed=True)
    monkeypatch.setattr(init, "run_on_synthetic", lambda _: crashed)
    monkeypatch.setattr(init, "run_tryout", lambda *_: pytest.fail("it was run"))
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    assert said.code == 1
    assert "running it ends the process" in said.out


@pytest.mark.slow
def test_each_of_several_labels_is_sure_by_itself(cli: Cli, tmp_path: Path) -> None:
    families.encoder(tmp_path / "m.onnx", output="logits", width=3)
    families.tokenizer_file(tmp_path / "tokenizer.json")
    config = {"id2label": {"0": "a", "1": "b", "2": "c"}, "problem_type": "multi_label_classification"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["tokenize", "m", "sigmoid", "argmax", "labels"]
    assert len(rows(cli, tmp_path)) == 4


def test_a_detector_like_detr_gives_boxes_in_the_picture(cli: Cli, tmp_path: Path) -> None:
    families.detr(tmp_path / "m.onnx")
    (tmp_path / "labels.txt").write_text("cat\ndog\nowl\n")
    manifest, said = made(cli, tmp_path)
    assert "a detector like DETR" in said
    assert steps_of(manifest) == ["m", "softmax", "Slice", "boxes", "nms", "labels"]
    first, second = rows(cli, tmp_path)  # pictures of 64 x 64, and of 104 x 128
    np.testing.assert_allclose(first["boxes"], [[16, 8, 48, 24]], atol=1e-3)
    np.testing.assert_allclose(second["boxes"], [[32, 13, 96, 39]], atol=1e-3)
    assert first["labels"] == ["dog"]


@pytest.mark.slow
def test_a_relative_of_detr_that_config_json_names_has_no_class_for_none(cli: Cli, tmp_path: Path) -> None:
    families.detr(tmp_path / "m.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["RTDetrForObjectDetection"]}))
    manifest, _ = made(cli, tmp_path)
    assert steps_of(manifest) == ["m", "sigmoid", "boxes", "nms"]


def test_pictures_keep_their_proportions_if_the_file_of_the_processor_says_so(cli: Cli, tmp_path: Path) -> None:
    families.detr(tmp_path / "m.onnx", open_sizes=True)
    size = {"shortest_edge": 80, "longest_edge": 90}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"size": size, "resample": 3}}))
    manifest, _ = made(cli, tmp_path)
    (resize,) = [one for one in manifest["jobs"]["run"]["prepare"]["image"] if "resize" in one]
    assert resize == {"resize": {"shortest": 80, "longest": 90}, "method": "bicubic"}
    assert manifest["jobs"]["run"]["batch"] == {"size": 1}, "pictures of several sizes are no batch"
    assert manifest["pipelines"]["find"]["steps"][4]["in"]["max"] == 5, "as many boxes as queries"
    assert len(rows(cli, tmp_path)) == 2


@pytest.mark.quick("True")
@pytest.mark.parametrize("with_rows", [True, False])
def test_a_detector_like_torchvisions_runs_picture_by_picture(cli: Cli, tmp_path: Path, *, with_rows: bool) -> None:
    families.torchvision_detector(tmp_path / "m.onnx", rows=with_rows)
    _, said = made(cli, tmp_path)
    assert "a detector like torchvision's" in said
    first, second = rows(cli, tmp_path)
    np.testing.assert_allclose(first["boxes"], [[1, 2, 30, 40]], atol=1e-3)
    assert first["classes"] == [17]
    wanted = [1, 2, 30, 40] if with_rows else [2, 2 * 104 / 64, 60, 40 * 104 / 64]
    np.testing.assert_allclose(second["boxes"], [wanted], atol=1e-3)


def test_a_segmenter_gives_a_picture_of_classes(cli: Cli, tmp_path: Path) -> None:
    families.segmenter(tmp_path / "m.onnx")
    manifest, said = made(cli, tmp_path)
    assert "a segmenter of pictures" in said
    assert steps_of(manifest) == ["m", "Resize", "ArgMax", "cast"]
    for row, shape in zip(rows(cli, tmp_path), [(32, 48), (72, 112)], strict=True):  # as large as the samples
        picture = np.asarray(Image.open(tmp_path / "outbox/m" / row["classes"]))
        assert picture.shape == shape
        assert set(np.unique(picture)) <= {0, 1, 2}
