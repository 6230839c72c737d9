"""`preset: generate` with a folder that hears: the model that deployments/make_tiny_listener.py makes."""

import importlib.util
import json
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli

from ortdeploy.runtime.generation import write_config

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime_genai"), reason="needs the extra generate")

MANIFEST = """\
version: 1
name: listener
pipelines:
  hear: {preset: generate, from: models/listener, components: {encoder: {}, decoder: {}}, session: {intra_op_num_threads: 1}, SAID}
jobs:
  calls:
    pipeline: hear
    input: {path: calls/*.wav, rate: 16000, columns: {audio: samples}}
    output: {path: outbox, format: jsonl}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("models/listener", "calls"):
        shutil.copytree(REPOSITORY / "deployments" / name, tmp_path / name)
    return tmp_path


def apply(cli: Cli, folder: Path, said: str = "timestamps: true", more: str = "") -> Any:
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said) + more)
    return cli("apply", folder / "m.yaml", "--new-run")


def results(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((folder / "outbox").glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.uint8)


def test_recordings_in_and_segments_out(cli: Cli, folder: Path) -> None:
    result = apply(cli, folder)
    assert result.code == 0, result.err
    desk, front, hall = results(folder)
    assert desk == {
        "text": "0800 5550199", "tokens": 15, "finish_reason": "end", "input_tokens": 1, "language": "en",
        "segments": ["0800", "5550199"], "begin": [0.3, 1.8], "end": [1.0, 3.1],
    }  # fmt: skip
    assert (front["segments"], front["begin"], front["end"]) == (["112"], [0.4], [0.9])
    assert (hall["segments"], hall["begin"]) == (["*21#", "42"], [1.2, 2.8])


def test_the_example_writes_down_its_calls(cli: Cli, folder: Path) -> None:
    shutil.copy(REPOSITORY / "deployments/listener.yaml", folder)
    assert cli("apply", folder / "listener.yaml").code == 0
    lines = (folder / "outbox/calls/part-00000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["0800 5550199", "112", "*21# 42"]


def test_try_shows_what_each_recording_says_and_when(cli: Cli, folder: Path) -> None:
    shutil.copy(REPOSITORY / "deployments/listener.yaml", folder)
    said = cli("try", folder / "listener.yaml").out
    heard = "    -> 0800 5550199 (15 tokens, end)\n       0.3 to 1.0 s: 0800\n       1.8 to 3.1 s: 5550199\n"
    assert f"row 0: calls/desk.wav\n{heard}" in said


def test_without_time_stamps_there_is_the_text_alone(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, "max_new_tokens: 3").code == 0
    assert [row["text"] for row in results(folder)] == ["080", "112", "*21"]
    assert [row["finish_reason"] for row in results(folder)] == ["length"] * 3
    assert set(results(folder)[0]) == {"text", "tokens", "finish_reason", "input_tokens", "language"}


def only_call(folder: Path, samples: bytes) -> None:
    for path in (folder / "calls").iterdir():
        path.unlink()
    with wave.open(str(folder / "calls/one.wav"), "wb") as file:
        file.setparams((1, 1, 16_000, 0, "NONE", ""))
        file.writeframes(samples)


def test_a_long_recording_is_heard_window_by_window(cli: Cli, folder: Path) -> None:
    """A number that is cut by the end of a window is heard whole in the next."""
    desk = samples_of(folder / "calls/desk.wav")
    whole = np.full(70 * 16_000, 128, np.uint8)
    for second in (3, 28, 50):
        whole[second * 16_000 : second * 16_000 + len(desk)] = desk
    only_call(folder, whole.tobytes())
    result = apply(cli, folder)
    assert result.code == 0, result.err
    (row,) = results(folder)
    assert row["segments"] == ["0800", "5550199"] * 3
    assert row["begin"] == [3.3, 4.8, 28.3, 29.8, 50.3, 51.8]
    assert row["text"] == "0800 5550199 0800 5550199 0800 5550199"


def test_each_segment_can_be_a_line(cli: Cli, folder: Path) -> None:
    result = apply(cli, folder, more="")
    manifest = (folder / "m.yaml").read_text()
    lines = "format: csv, explode: [segments, begin, end]}\n    postprocess: []\n"
    (folder / "m.yaml").write_text(manifest.replace("path: outbox, format: jsonl}\n", "path: lines, " + lines))
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    text = (folder / "lines/part-00000000.csv").read_text()
    assert [line.split(",")[-3:] for line in text.splitlines()[1:3]] == [
        ["0800", "0.3", "1.0"],
        ["5550199", "1.8", "3.1"],
    ]


def test_a_folder_without_its_tokenizer_is_told_so(cli: Cli, folder: Path) -> None:
    (folder / "models/listener/tokenizer.json").unlink()
    result = apply(cli, folder)
    assert result.code == 1
    assert "There is no models/listener/tokenizer.json" in result.words


def test_silence_has_no_text(cli: Cli, folder: Path) -> None:
    only_call(folder, bytes([128] * 16_000))
    assert apply(cli, folder).code == 0
    (row,) = results(folder)
    assert (row["text"], row["segments"]) == ("", [])


def test_some_samples_behind_the_last_window_are_no_further_one(cli: Cli, folder: Path) -> None:
    """As in transformers, a frame that only begins is none; a window of nothing is not silence."""
    only_call(folder, bytes([128] * (60 * 16_000 + 77)))
    assert apply(cli, folder, "max_new_tokens: 2").code == 0
    (row,) = results(folder)
    assert row["input_tokens"] == 2 * len(("start", "no time stamps"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("language: de", "knows English alone"),
        ("translate: true", "knows English alone"),
        ("system: Be brief.", "system has no effect"),
        ("stop: [x]", "stop has no effect"),
        ("num_beams: 2, timestamps: true", "2 beams write no timestamps. Leave num_beams or timestamps out."),
        ("chat: prompt", "Leave chat out"),
    ],
)
def test_what_a_folder_that_hears_does_not_do_is_refused_before_the_run(
    cli: Cli, folder: Path, said: str, why: str
) -> None:
    result = apply(cli, folder, said)
    assert result.code == 1
    assert why in result.words


def apply_rows(cli: Cli, folder: Path, row: dict[str, Any], said: str, wired: str = "") -> Any:
    """Run a row of samples with columns of its own."""
    heard = ((samples_of(folder / "calls/desk.wav") - 128.0) / 128).round(3).tolist()
    (folder / "rows.jsonl").write_text(json.dumps({"id": 0, "audio": heard, **row}))
    manifest = MANIFEST.replace("path: calls/*.wav, rate: 16000, columns: {audio: samples}", "path: rows.jsonl" + wired)
    (folder / "m.yaml").write_text(manifest.replace("SAID", said))
    return cli("apply", folder / "m.yaml", "--new-run")


@pytest.mark.parametrize(
    ("row", "said", "why"),
    [
        ({"language": "de"}, "timestamps: true", 'the model knows no language "de"'),
        ({"num_beams": 2}, "timestamps: true", "2 beams write no timestamps; set num_beams to 1"),
    ],
)
def test_a_row_that_wants_what_its_model_does_not_do_fails(
    cli: Cli, folder: Path, row: dict[str, Any], said: str, why: str
) -> None:
    assert apply_rows(cli, folder, row, said).code == 1
    assert why in (folder / "outbox/_failed.jsonl").read_text().replace('\\"', '"')


def test_a_row_without_a_language_of_its_own_has_that_of_the_manifest(cli: Cli, folder: Path) -> None:
    knows_languages(folder)
    assert apply_rows(cli, folder, {"language": None}, "language: de").code == 0
    assert results(folder)[0]["language"] == "de"


def test_a_recording_with_what_is_no_number_fails(cli: Cli, folder: Path) -> None:
    np.save(folder / "rows.npy", np.full((1, 400), np.nan, np.float32))
    manifest = MANIFEST.replace(
        "path: calls/*.wav, rate: 16000, columns: {audio: samples}",
        "path: rows.npy, columns: {audio: array}",
    )
    (folder / "m.yaml").write_text(manifest.replace("SAID", "max_new_tokens: 2"))
    assert cli("apply", folder / "m.yaml").code == 1
    assert "some of its samples are NaN or infinite" in (folder / "outbox/_failed.jsonl").read_text()


def test_no_column_says_where_a_transcript_stops(cli: Cli, folder: Path) -> None:
    result = apply_rows(cli, folder, {"stop": '["5"]'}, "timestamps: true", ", columns: {stop: stop}")
    assert result.code == 1
    assert "stop" in result.words
    assert not (folder / "outbox").exists()


@pytest.mark.parametrize(("most", "reason"), [(5, "length"), (20, "end")])
def test_why_the_best_of_beams_ends_is_told(cli: Cli, folder: Path, most: int, reason: str) -> None:
    said = f"num_beams: 2, max_new_tokens: {most}"
    result = apply_rows(cli, folder, {}, said)
    assert result.code == 0, result.err
    assert [(row["finish_reason"]) for row in results(folder)] == [reason]


def test_a_manifest_that_names_no_encoder_is_told_both_parts(cli: Cli, folder: Path) -> None:
    (folder / "m.yaml").write_text(
        MANIFEST.replace("components: {encoder: {}, decoder: {}}, ", "").replace(", SAID", "")
    )
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "components: {encoder: {file: encoder.onnx}, decoder: {file: decoder.onnx}}" in result.words


def test_each_part_gets_its_own_options(tmp_path: Path) -> None:
    folder, beside = REPOSITORY / "deployments/models/listener", tmp_path / "beside"
    beside.mkdir()
    on_cuda: dict[str, Any] = {"provider_options": [{"cuda": {"device_id": "1"}}], "intra_op_num_threads": 2}
    options: dict[str, dict[str, Any]] = {"encoder": on_cuda, "decoder": {"provider_options": [], "session.x": "y"}}
    write_config((folder,), beside, options, {"encoder": {}, "decoder": {"a": "b"}})
    model = json.loads((beside / "genai_config.json").read_text())["model"]
    assert model["encoder"]["session_options"] == {"log_id": "onnxruntime-genai", **on_cuda}
    assert model["decoder"]["session_options"] == {"log_id": "onnxruntime-genai", **options["decoder"]}
    assert model["decoder"]["run_options"] == {"a": "b"}
    assert {path.name for path in beside.iterdir()} == {path.name for path in folder.iterdir()}


def test_the_plan_names_the_options_of_each_part(cli: Cli, folder: Path) -> None:
    said = MANIFEST.replace("encoder: {}", "encoder: {session: {intra_op_num_threads: 2}}").replace(", SAID", "")
    (folder / "m.yaml").write_text(said)
    words = cli("plan", folder / "m.yaml").words
    assert "session hear.encoder: encoder.onnx" in words
    assert "intra_op_num_threads=2" in words


def knows_languages(folder: Path) -> None:
    """Give the model's tokenizer tokens of languages, behind its time stamps; it takes no notice of them."""
    names = ["<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>"]
    models = folder / "models/listener"
    tokenizer = json.loads((models / "tokenizer.json").read_text())
    first = len({*tokenizer["model"]["vocab"]} | {one["content"] for one in tokenizer["added_tokens"]})
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][0], "id": first + n, "content": one} for n, one in enumerate(names)
    ]
    (models / "tokenizer.json").write_text(json.dumps(tokenizer))
    decoder = onnx.load(models / "decoder.onnx")
    for one in decoder.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        more = {"ids": np.arange(first + len(names), dtype=np.float32), "size": array + len(names)}
        if one.name in more:
            one.CopyFrom(onnx.numpy_helper.from_array(np.asarray(more[one.name], array.dtype), one.name))
    decoder.graph.output[0].type.tensor_type.shape.dim[2].dim_value += len(names)
    onnx.save(decoder, models / "decoder.onnx")
    config = json.loads((models / "genai_config.json").read_text())
    config["model"]["vocab_size"] += len(names)
    (models / "genai_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("said", "language"), [("language: de", "de"), ("timestamps: false", "en"), ("num_beams: 2", "en")]
)
def test_a_language_is_given_or_heard(cli: Cli, folder: Path, said: str, language: str) -> None:
    """The first of the languages is that which a model hears that has no opinion."""
    knows_languages(folder)
    result = apply(cli, folder, f"{said}, max_new_tokens: 20")
    assert result.code == 0, result.err
    assert {(row["language"], row["input_tokens"]) for row in results(folder)} == {(language, 4)}
    assert ("the language de" in result.words) == (language == "de")
    refused = apply(cli, folder, "language: fr")
    assert refused.code == 1
    assert "knows no language fr, but de, en" in refused.words
