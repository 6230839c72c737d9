"""`preset: generate` with a folder that sees: the model that deployments/make_tiny_describer.py makes."""

import csv
import importlib.util
import json
import shutil
import subprocess
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli
from support.models import make_adapter
from support.seeing_models import copy_as, see_one

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.describe import png_of
from ortdeploy.presets.sense_folder import FAMILIES
from ortdeploy.presets.speech import RATE
from ortdeploy.runtime import generation
from ortdeploy.runtime.generation import write_config

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime_genai"), reason="needs the extra generate")

ASKED = "What is this, and is it odd?"
MANIFEST = """\
version: 1
name: describer
pipelines:
  describe: {preset: generate, from: models/describer, components: {vision: {}, embedding: {}, decoder: {}}, SAID}
jobs:
  pictures:
    pipeline: describe
    input: {path: "pictures/*", format: image, columns: {images: pixels}, values: {prompt: PROMPT}, key: [path]}
    errors: {max_failed: 9}
    output: {path: outbox, format: jsonl}
"""
NO_PROVIDER: dict[str, Any] = {"provider_options": []}
DIGITS = ("000.png", "001.png", "008.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / "deployments/models/describer", tmp_path / "models/describer")
    (tmp_path / "pictures").mkdir()
    for name in DIGITS:
        shutil.copy(REPOSITORY / "deployments/digits" / name, tmp_path / "pictures")
    return tmp_path


def apply(cli: Cli, folder: Path, said: str = "chat: prompt", prompt: str = ASKED, command: str = "apply") -> Any:
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said).replace("PROMPT", json.dumps(prompt)))
    return cli(command, folder / "m.yaml", *(["--new-run"] if command == "apply" else []))


def results(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((folder / "outbox").glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def failures(folder: Path) -> str:
    return (folder / "outbox/_failed.jsonl").read_text()


def written_by_the_library(
    folder: Path,
    pictures: Sequence[Path],
    prompt: str,
    sound: Path | None = None,
    adapter: Path | None = None,
    num_beams: int = 1,
) -> tuple[str, int, int]:
    """Return the text, its tokens and those of its prompt, by GenAI's own reading of pictures or a recording."""
    import onnxruntime_genai  # noqa: PLC0415  an extra

    onnxruntime_genai.disable_telemetry_events()
    model = onnxruntime_genai.Model(str(folder / "models/describer"))
    processor, tokenizer = model.create_multimodal_processor(), onnxruntime_genai.Tokenizer(model)
    message = json.dumps([{"role": "user", "content": prompt}])
    template = json.loads((folder / "models/describer/tokenizer_config.json").read_text())["chat_template"]
    read = tokenizer.apply_chat_template(message, template_str=template)
    files = [one.read_bytes() for one in pictures]
    sensed = {"images": onnxruntime_genai.Images.open_bytes(*files)} if files else {}
    sensed |= {} if sound is None else {"audios": onnxruntime_genai.Audios.open(str(sound))}
    inputs = processor(read, **sensed)
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=inputs["input_ids"].shape()[1] + 20, do_sample=False, num_beams=num_beams)
    generator = onnxruntime_genai.Generator(model, params)
    if adapter is not None:
        adapters = onnxruntime_genai.Adapters(model)
        adapters.load(str(adapter), "x")
        generator.set_active_adapter(adapters, "x")
    generator.set_inputs(inputs)
    tokens = []
    while not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokenizer.decode(np.array(tokens[:-1], np.int32)), len(tokens) - 1, inputs["input_ids"].shape()[1]


def test_pictures_in_and_texts_out_as_the_library_writes_them(cli: Cli, folder: Path) -> None:
    result = apply(cli, folder)
    assert result.code == 0, result.err
    assert [row["text"] for row in results(folder)] == [
        "The picture shows the digit seven, which is odd.",
        "The picture shows the digit six, which is even.",
        "The picture shows the digit nine, which is odd.",
    ]
    for name, row in zip(DIGITS, results(folder), strict=True):
        expected = written_by_the_library(folder, [folder / "pictures" / name], f"<start_of_image>{ASKED}")
        assert (row["text"], row["tokens"], row["input_tokens"]) == expected
        assert row["finish_reason"] == "end"


@pytest.mark.quick("qwen2_5_vl", "phi3v", "mistral3")
@pytest.mark.parametrize("kind", sorted({*FAMILIES} - {"gemma3", "gemma4"}))
def test_other_families_see_as_the_library_does(cli: Cli, folder: Path, kind: str) -> None:
    shutil.rmtree(folder / "models/describer")
    copy_as(REPOSITORY / "deployments/models/describer", folder / "models/describer", kind)
    result = apply(cli, folder)
    assert result.code == 0, result.err
    words = ("seven, which is odd", "six, which is even", "nine, which is odd")
    for name, word, row in zip(DIGITS, words, results(folder), strict=True):
        assert row["text"] == f"The picture shows the digit {word}."
        asked = f"{FAMILIES[kind]['vision'].tag.format(1)}{ASKED}"
        expected = written_by_the_library(folder, [folder / "pictures" / name], asked)
        assert (row["text"], row["tokens"], row["input_tokens"]) == expected


def in_shape_of(kind: str, folder: Path) -> Path:
    """Let the folder be of another family, with a context that holds several pictures, and return it."""
    model = folder / "models/describer"
    if kind != "gemma3":
        shutil.rmtree(model)
        copy_as(REPOSITORY / "deployments/models/describer", model, kind)
    config = json.loads((model / "genai_config.json").read_text())
    config["model"]["context_length"] = config["search"]["max_length"] = 9000
    (model / "genai_config.json").write_text(json.dumps(config))
    return model


SEEN = "path: rows.jsonl, columns: {image_files: seen}"


def several(
    cli: Cli, folder: Path, rows: Sequence[Any], source: str = SEEN, said: str = "chat: prompt", prompt: str = ASKED
) -> Any:
    """Run a model on rows that name pictures, as `seen` of JSON lines."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'seen': row})}\n" for row in rows))
    text = MANIFEST.replace('path: "pictures/*", format: image, columns: {images: pixels}', source)
    text = text.replace("values: {prompt", "values: {messages") if "messages" in said else text
    if (folder / "models/describer/speech.onnx").exists():
        text = text.replace("vision: {}", "vision: {}, speech: {file: speech.onnx}")
    text = text.replace("SAID", f"image_folder: pictures, {said}").replace("PROMPT", json.dumps(prompt))
    (folder / "m.yaml").write_text(text.replace("key: [path]", "key: [row]"))
    return cli("apply", folder / "m.yaml", "--new-run")


@pytest.mark.quick("mistral3-first", "qwen2_5_vl-last")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_several_pictures_of_a_row_are_seen_in_their_order(cli: Cli, folder: Path, kind: str, last: bool) -> None:
    see_one(in_shape_of(kind, folder), last=last)
    rows = [DIGITS[:1], DIGITS, DIGITS[::-1]]
    result = several(cli, folder, rows)
    assert result.code == 0, result.err
    words = ("seven", "nine" if last else "seven", "seven" if last else "nine")
    place = FAMILIES[kind]["vision"]
    for row, word, found in zip(rows, words, results(folder), strict=True):
        tags = place.between.join(place.tag.format(number + 1) for number in range(len(row)))
        expected = written_by_the_library(folder, [folder / "pictures" / name for name in row], f"{tags}{ASKED}")
        assert word in found["text"]
        assert (found["text"], found["tokens"], found["input_tokens"]) == expected


@pytest.mark.quick("gemma3", "mistral3")
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_row_may_have_no_picture(cli: Cli, folder: Path, kind: str) -> None:
    in_shape_of(kind, folder)
    result = several(cli, folder, [[], DIGITS[:1]], said="chat: prompt, max_new_tokens: 2")
    assert result.code == 0, result.err
    assert [row["text"] for row in results(folder)] == [
        "The picture shows the digit The picture shows the digit ",
        "The picture shows the digit seven",
    ]


def pictures_of(folder: Path, source: str) -> str:
    """Write what the sources of the next test read, and return the keys of the input."""
    import pyarrow as pa  # noqa: PLC0415  an extra
    from pyarrow import parquet  # noqa: PLC0415  as above

    lists = pa.array([list(DIGITS[:2]), [], list(DIGITS[:1])], pa.list_(pa.string()))
    parquet.write_table(pa.table({"image_files": lists}), folder / "rows.parquet")
    (folder / "rows.csv").write_text("front,back\n000.png,001.png\n,\n,000.png\n")
    columns = {"csv": ", columns: {image_files: [front, back]}", "parquet": ""}
    return f"path: rows.{source}{columns[source]}"


@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_pictures_are_named_by_lists_or_by_several_columns(cli: Cli, folder: Path, source: str) -> None:
    in_shape_of("mistral3", folder)
    result = several(cli, folder, [], pictures_of(folder, source), said="chat: prompt, max_new_tokens: 2")
    assert result.code == 0, result.err
    assert [row["text"].split()[-1] for row in results(folder)] == ["six", "digit", "seven"]


def test_one_column_of_paths_is_a_list_of_one(cli: Cli, folder: Path) -> None:
    assert several(cli, folder, [DIGITS[:1]]).code == 0
    (folder / "rows.jsonl").write_text('{"seen": "008.png"}\n')
    text = (folder / "m.yaml").read_text()
    (folder / "m.yaml").write_text(
        text.replace("    errors:", "    prepare: {image_files: [{expand: 0}]}\n    errors:")
    )
    result = cli("apply", folder / "m.yaml", "--new-run")
    assert result.code == 0, result.err
    assert "nine" in results(folder)[0]["text"]


def test_a_chat_template_writes_a_place_for_each_part(cli: Cli, folder: Path) -> None:
    """As those of such models do for the messages of OpenAI's form."""
    model = in_shape_of("gemma3", folder)
    see_one(model, last=True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for one in messages %}<|user|>{% for part in one.content %}"
        "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endfor %}<|assistant|>"
    )
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    picture = {"type": "image"}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": ASKED}, picture]}]
    result = several(cli, folder, [DIGITS[1:]], said="chat: messages", prompt=json.dumps(messages))
    assert result.code == 0, result.err
    assert results(folder)[0]["text"] == "The picture shows the digit nine, which is odd."


def test_a_picture_of_the_row_stands_before_those_that_it_names(cli: Cli, folder: Path) -> None:
    from PIL import Image  # noqa: PLC0415  an extra

    see_one(in_shape_of("gemma3", folder), last=False)
    nine = np.asarray(Image.open(folder / "pictures/008.png").convert("RGB"))[np.newaxis]
    np.savez(folder / "rows.npz", images=nine, image_files=np.array([["000.png", "001.png"]]))
    result = several(cli, folder, [], "path: rows.npz")
    assert result.code == 0, result.err
    assert "nine" in results(folder)[0]["text"]


def test_pictures_that_cannot_be_seen_fail_their_rows(cli: Cli, folder: Path) -> None:
    """What a row names is below the folder, and is decoded as all pictures are."""
    from PIL import Image  # noqa: PLC0415  an extra

    in_shape_of("mistral3", folder)
    shutil.copy(folder / "pictures/000.png", folder / "000.png")
    (folder / "pictures/link.png").symlink_to(folder / "000.png")
    (folder / "pictures/004.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture at all" * 9)
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "pictures/deep.png")
    rows = {
        "../000.png": "leads out of the folder",
        str(folder / "000.png"): "leads out of the folder",
        "link.png": "leads out of the folder",
        "https://example.org/000.png": "this must be a local file",
        "000\0.png": "A path holds no NUL",
        "nowhere.png": "image_files: there is no nowhere.png in ",
        "004.jpg": "004.jpg: not an image that can be decoded",
        ".": "the file cannot be read",
        "deep.png": "a picture is uint16 [8, 8, 1], and a picture is uint8",
    }
    result = several(cli, folder, [[one] for one in (*rows, str(folder / "pictures/000.png"))])
    assert result.code == 0, result.err
    assert "seven" in results(folder)[0]["text"]
    for line, why in zip(failures(folder).splitlines(), rows.values(), strict=True):
        assert why in json.loads(line)["message"]


@pytest.mark.parametrize("rows", [["000.png"], [DIGITS[:1], "000.png"]], ids=["all", "one"])
def test_a_row_with_one_path_and_no_list_is_told_the_step(cli: Cli, folder: Path, rows: list[Any]) -> None:
    result = several(cli, folder, rows)
    assert "prepare: {image_files: [{expand: 0}]}" in " ".join((result.out + result.err).split())


def test_a_bundle_leaves_the_pictures_of_rows_where_they_are(cli: Cli, folder: Path) -> None:
    assert several(cli, folder, [DIGITS[:1]]).code == 0
    expected = results(folder)
    assert cli("lock", folder / "m.yaml").code == 0
    assert cli("bundle", folder / "m.yaml", "-o", folder / "m.tar").code == 0
    shutil.rmtree(folder / "models")
    (folder / "pictures").rename(folder / "kept")
    refused = cli("plan", folder / "m.tar")
    assert "There is no folder pictures" in refused.words
    (folder / "kept").rename(folder / "pictures")
    result = cli("apply", folder / "m.tar", "--new-run")
    assert result.code == 0, result.err
    assert results(folder) == expected


def test_what_the_model_does_not_hold_fails_its_row(cli: Cli, folder: Path) -> None:
    config = folder / "models/describer/genai_config.json"
    held = config.read_text()
    in_shape_of("gemma3", folder)
    config.write_text(held)
    result = several(cli, folder, [DIGITS[:1], DIGITS[:2], DIGITS[:1] * 600])
    assert result.code == 0, result.err
    assert len(results(folder)) == 1
    first, second = failures(folder).splitlines()
    assert "the prompt has 551 tokens, and the model's context holds 512" in first
    assert "the row has 600 pictures, and the model's context holds 512 tokens" in second


def test_pictures_of_which_none_is_the_widest_and_the_highest_fail_their_row(cli: Cli, folder: Path) -> None:
    """GenAI makes room for each in the size of one; the row fails, and the next one does not."""
    from PIL import Image  # noqa: PLC0415  an extra

    model = in_shape_of("mistral3", folder)
    vision, processor = onnx.load(model / "vision.onnx"), model / "processor_config.json"
    for size, of in zip(vision.graph.input[0].type.tensor_type.shape.dim[2:], ("high", "wide"), strict=True):
        size.dim_param = of
    onnx.save(vision, model / "vision.onnx")
    steps = json.loads(processor.read_text())
    sizes = {"smart_resize": 1, "min_pixels": 64, "max_pixels": 9000, "patch_size": 4, "merge_size": 2}
    steps["processor"]["transforms"][1]["operation"]["attrs"] = {"width": 8, "height": 8, **sizes}
    processor.write_text(json.dumps(steps))
    for name, shape in {"000.png": (32, 8), "001.png": (8, 64)}.items():
        path = folder / "pictures" / name
        Image.open(path).resize(shape, Image.Resampling.NEAREST).save(path)
    assert several(cli, folder, [["008.png", "000.png", "001.png"], ["008.png"]]).code == 0
    assert "PixtralVisionState" in json.loads(failures(folder))["message"]
    assert "nine" in results(folder)[0]["text"]


@pytest.mark.parametrize(
    ("kind", "prompt", "why"),
    [
        ("gemma3", "<start_of_image>", "needs 2 places for images, <start_of_image>, and has 1"),
        ("phi3v", "<|image_2|> <|image_1|>", "needs 2 places for images, <|image_1|> <|image_2|>, and has 2"),
        ("phi3v", "<|image_1|> <|image_1|>", "needs 2 places for images, <|image_1|> <|image_2|>, and has 2"),
        ("mistral3", "[IMG][IMG]", "[IMG][IMG] would be taken for one picture: write text between them"),
    ],
)
def test_places_are_as_many_as_pictures(cli: Cli, folder: Path, kind: str, prompt: str, why: str) -> None:
    in_shape_of(kind, folder)
    assert several(cli, folder, [DIGITS[:2]], prompt=prompt).code == 0
    assert why in failures(folder)


TONES = {
    "low": (500, "two, which is even"),
    "middle": (1000, "three, which is odd"),
    "high": (3000, "six, which is even"),
}
"""Pitches in Hz, and the digits that they stand for."""


def tone(pitch: float, seconds: float = 0.5) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def hears(cli: Cli, folder: Path, rows: dict[str, np.ndarray], prompt: str = ASKED, said: str = "chat: prompt") -> Any:
    """Run Gemma 4 on rows of arrays."""
    if not (folder / "models/describer/speech.onnx").exists():
        shutil.rmtree(folder / "models/describer")
        copy_as(REPOSITORY / "deployments/models/describer", folder / "models/describer", "gemma4")
    np.savez(folder / "rows.npz", **rows)  # type: ignore[arg-type]  # names of arrays
    text = MANIFEST.replace("vision: {}", "vision: {}, speech: {file: speech.onnx}").replace("SAID", said)
    text = text.replace('path: "pictures/*", format: image, columns: {images: pixels}', "path: rows.npz")
    (folder / "m.yaml").write_text(text.replace("PROMPT", json.dumps(prompt)).replace("key: [path]", "key: [row]"))
    return cli("apply", folder / "m.yaml", "--new-run")


def test_a_model_hears_beside_text_as_the_library_does(cli: Cli, folder: Path) -> None:
    result = hears(cli, folder, {"audio": np.stack([tone(pitch) for pitch, _ in TONES.values()])})
    assert result.code == 0, result.err
    for row, (pitch, digit) in zip(results(folder), TONES.values(), strict=True):
        assert row["text"] == f"The picture shows the digit {digit}."
        with wave.open(str(folder / "tone.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((tone(pitch) * 32767).astype("<i2").tobytes())
        expected = written_by_the_library(folder, [], f"<|audio|>{ASKED}", folder / "tone.wav")
        assert (row["text"], row["tokens"], row["input_tokens"]) == expected


def test_a_model_sees_and_hears_in_one_row(cli: Cli, folder: Path) -> None:
    """It says the lower of the two digits, so of one alone that one."""
    from PIL import Image  # noqa: PLC0415  an extra

    seven = np.asarray(Image.open(folder / "pictures/000.png").convert("RGB"))[np.newaxis]
    two = tone(500)[np.newaxis]
    found = []
    for rows in ({"images": seven}, {"audio": two}, {"images": seven, "audio": two}):
        result = hears(cli, folder, rows)
        assert result.code == 0, result.err
        found += results(folder)
    assert ["seven" in row["text"] for row in found] == [True, False, False]
    seen, heard, both = (row["input_tokens"] for row in found)
    assert max(seen, heard) < both


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (0, "has 0 samples, and the model hears 321 to 480,000"),
        (320, "has 320 samples"),
        (480_001, "has 480,001 samples"),
    ],
)
def test_a_recording_that_the_library_would_cut_or_end_over_fails_its_row(
    cli: Cli, folder: Path, samples: int, why: str
) -> None:
    assert hears(cli, folder, {"audio": np.zeros((1, samples), np.float32)}).code == 0
    assert why in failures(folder)


def test_a_place_without_a_column_fails_its_row(cli: Cli, folder: Path) -> None:
    assert hears(cli, folder, {"audio": tone(500)[np.newaxis]}, f"<|image|>{ASKED}").code == 0
    assert "the prompt has a place for images, and the row gives none" in failures(folder)


def test_wav_files_are_heard(cli: Cli, folder: Path) -> None:
    hears(cli, folder, {"audio": tone(500)[np.newaxis]})
    (folder / "calls").mkdir()
    with wave.open(str(folder / "calls/high.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((tone(3000) * 32767).astype("<i2").tobytes())
    text = (folder / "m.yaml").read_text()
    text = text.replace("path: rows.npz", "path: calls/*.wav, rate: 16000, columns: {audio: samples}")
    (folder / "m.yaml").write_text(text.replace("key: [row]", "key: [path]"))
    result = cli("apply", folder / "m.yaml", "--new-run")
    assert result.code == 0, result.err
    assert results(folder)[0]["text"] == "The picture shows the digit six, which is even."


def test_answers_about_pictures_are_columns(cli: Cli, folder: Path) -> None:
    said = "{type: object, properties: {part: {enum: [pump, valve]}}, required: [part], additionalProperties: false}"
    result = apply(cli, folder, f"chat: prompt, json_schema: {said}")
    assert result.code == 0, result.err
    assert {row["part"] for row in results(folder)} <= {"pump", "valve"}


def test_a_bundle_has_all_that_sees(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, command="lock").code == 0
    assert cli("bundle", folder / "m.yaml", "-o", folder / "m.tar").code == 0
    shutil.rmtree(folder / "models")
    result = cli("apply", folder / "m.tar")
    assert result.code == 0, result.err
    assert len(results(folder)) == len(DIGITS)


def test_a_folder_that_prepares_pictures_otherwise_is_another(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, command="lock").code == 0
    path = folder / "models/describer/processor_config.json"
    path.write_text(path.read_text().replace("LINEAR", "CUBIC"))
    refused = cli("plan", folder / "m.yaml")
    assert refused.code == 1
    assert "digest-mismatch" in refused.words


def test_rows_of_a_batch_may_have_pictures_of_different_sizes(cli: Cli, folder: Path) -> None:
    from PIL import Image  # noqa: PLC0415  an extra

    path = folder / "pictures/001.png"
    Image.open(path).resize((40, 24), Image.Resampling.NEAREST).save(path)
    text = MANIFEST.replace("decoder: {}", "decoder: {row_independence: false}")
    text = text.replace("    output:", "    batch: {size: 3}\n    output:").replace("SAID", "chat: prompt")
    (folder / "m.yaml").write_text(text.replace("PROMPT", json.dumps("What is this?")))
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    assert ["seven" in row["text"] for row in results(folder)] == [True, False, False]


@pytest.mark.parametrize(
    ("steps", "rule"), [("[{scale: 0.5}]", "input-type-mismatch"), ("[{layout: NCHW}]", "input-shape-mismatch")]
)
def test_what_is_no_picture_any_more_is_refused_before_the_run(cli: Cli, folder: Path, steps: str, rule: str) -> None:
    text = MANIFEST.replace("    errors:", f"    prepare: {{images: {steps}}}\n    errors:").replace(
        "SAID", "chat: prompt"
    )
    (folder / "m.yaml").write_text(text.replace("PROMPT", json.dumps(ASKED)))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert rule in result.words


def test_the_example_tells_the_digits_of_its_pictures(cli: Cli, folder: Path) -> None:
    shutil.copy(REPOSITORY / "deployments/describer.yaml", folder)
    shutil.copytree(REPOSITORY / "deployments/digits", folder / "digits")
    assert cli("apply", folder / "describer.yaml").code == 0
    with (folder / "outbox/pictures/part-00000000.csv").open(newline="") as file:
        texts = {row["path"]: row["text"] for row in csv.DictReader(file)}
    with (folder / "digits/labels.csv").open(newline="") as file:
        labels = {row["path"]: int(row["label"]) for row in csv.DictReader(file)}
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert len(texts) == 10
    for path, text in texts.items():
        label = labels[path]
        assert text == f"The picture shows the digit {words[label]}, which is {'odd' if label % 2 else 'even'}."


def test_the_prompt_counts_beside_the_picture(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, prompt="What is this?").code == 0
    assert results(folder)[0]["text"] == "The picture shows the digit seven."


def test_a_broken_picture_fails_its_row_alone(cli: Cli, folder: Path) -> None:
    """Over this one, the library's own decoder ends the process."""
    (folder / "pictures/004.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture at all" * 9)
    (folder / "pictures/005.png").write_bytes((folder / "pictures/000.png").read_bytes()[:60])
    assert apply(cli, folder).code == 0
    assert [row["path"] for row in results(folder)] == [f"pictures/{name}" for name in DIGITS]
    assert [json.loads(line)["path"] for line in failures(folder).splitlines()] == [
        "pictures/004.jpg",
        "pictures/005.png",
    ]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK"])
def test_pictures_of_any_colours_and_size_are_seen(cli: Cli, folder: Path, mode: str) -> None:
    from PIL import Image  # noqa: PLC0415  an extra

    for name in DIGITS:
        path = folder / "pictures" / name
        Image.open(path).convert("RGB").resize((64, 64), Image.Resampling.NEAREST).convert(mode).save(
            path.with_suffix(".tiff")
        )
        path.unlink()
    result = apply(cli, folder)
    assert result.code == 0, result.err
    assert ["seven" in row["text"] for row in results(folder)] == [True, False, False]


@pytest.mark.parametrize("tag", ["", "<start_of_image> and <start_of_image>"])
def test_a_prompt_needs_one_place_for_its_picture(cli: Cli, folder: Path, tag: str) -> None:
    assert apply(cli, folder, "chat: none", f"{tag} What is this?").code == 0
    places = tag.count("<start_of_image>")
    assert f"the prompt needs one place for images, <start_of_image>, and has {places}" in failures(folder)


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ("chat: none", "<|user|><start_of_image>What is this, and is it odd?<|assistant|>"),
        ("chat: messages", json.dumps([{"role": "user", "content": f"<start_of_image>{ASKED}"}])),
        ("chat: prompt, system: Be brief.", f"{ASKED} Here: <start_of_image>"),
    ],
)
def test_the_place_may_be_anywhere(cli: Cli, folder: Path, said: str, prompt: str) -> None:
    (folder / "m.yaml").write_text(MANIFEST)
    column = "messages" if "messages" in said else "prompt"
    text = MANIFEST.replace("values: {prompt", f"values: {{{column}").replace("SAID", said)
    (folder / "m.yaml").write_text(text.replace("PROMPT", json.dumps(prompt)))
    result = cli("apply", folder / "m.yaml", "--new-run")
    assert result.code == 0, result.err
    assert results(folder)[0]["text"] == "The picture shows the digit seven, which is odd."


def test_a_text_ends_where_the_manifest_says(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, "chat: prompt, max_new_tokens: 2").code == 0
    assert results(folder)[0]["text"] == "The picture shows the digit seven"
    assert results(folder)[0]["finish_reason"] == "length"
    assert apply(cli, folder, 'chat: prompt, stop: [", which"]').code == 0
    assert results(folder)[0]["text"] == "The picture shows the digit seven"
    assert results(folder)[0]["finish_reason"] == "stop"


def test_a_picture_takes_tokens_of_the_context(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, prompt="x" * 260).code == 0
    assert "tokens, and the model's context holds 512" in failures(folder)


def test_each_part_gets_its_own_options(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library reads of each part is what the manifest says of it."""
    read = folder / "read.json"  # the last is that of the process that runs

    def spy(folders: Any, beside: Path, options: Any, runs: Any) -> None:
        write_config(folders, beside, options, runs)
        shutil.copy(beside / "genai_config.json", read)

    monkeypatch.setattr(generation, "write_config", spy)
    own = {
        "vision": "{session: {intra_op_num_threads: 2}, run: {config: {memory.enable_memory_arena_shrinkage: cpu:0}}}",
        "embedding": "{session: {config: {session.set_denormal_as_zero: true}}}",
        "decoder": "{session: {graph_optimization_level: basic}}",
    }
    text = MANIFEST.replace("SAID", "chat: prompt").replace("PROMPT", json.dumps(ASKED))
    for part, keys in own.items():
        text = text.replace(f"{part}: {{}}", f"{part}: {keys}")
    (folder / "m.yaml").write_text(text)
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    model = json.loads(read.read_text())["model"]
    said = {part: model[part]["session_options"] for part in own}
    assert [said[part].get("intra_op_num_threads") for part in own] == [2, None, None]
    assert [said[part].get("session.set_denormal_as_zero") for part in own] == [None, "1", None]
    assert [said[part].get("graph_optimization_level") for part in own] == [None, None, "ORT_ENABLE_BASIC"]
    assert [len(model[part]["run_options"]) for part in own] == [1, 0, 0]


COUNTING = """\
import os, sys
from pathlib import Path
from ortdeploy.runtime.generation import genai, write_config
parts, folder, models = ("vision", "embedding", "decoder"), Path(sys.argv[1]), []
for many in ("none", *parts):
    options = {one: {"provider_options": [], "intra_op_num_threads": 5 if one == many else 1} for one in parts}
    beside = Path(sys.argv[2], many)
    beside.mkdir()
    write_config((folder,), beside, options, {one: {} for one in parts})
    before = len(os.listdir("/proc/self/task"))
    models.append(genai().Model(genai().Config(str(beside))))  # kept: threads that have ended are listed for a while
    print(many, len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
def test_each_part_runs_with_its_own_threads(tmp_path: Path) -> None:
    """Four threads beside the one that runs it, in a process that does nothing else."""
    command = [sys.executable, "-c", COUNTING, str(REPOSITORY / "deployments/models/describer"), str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["none", "0", "vision", "4", "embedding", "4", "decoder", "4"]


def test_the_vision_model_may_have_a_provider_of_its_own(tmp_path: Path) -> None:
    on_cuda: dict[str, Any] = {"provider_options": [{"cuda": {"device_id": "1"}}]}
    options: dict[str, dict[str, Any]] = {"vision": on_cuda, **dict.fromkeys(("embedding", "decoder"), NO_PROVIDER)}
    write_config((REPOSITORY / "deployments/models/describer",), tmp_path, options, {key: {} for key in options})
    model = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    assert [model[part]["session_options"]["provider_options"] for part in options] == [
        [{"cuda": {"device_id": "1"}}],
        [],
        [],
    ]
    assert (tmp_path / "processor_config.json").is_file()


def test_what_the_folder_says_of_a_part_and_the_manifest_does_not_is_a_finding(cli: Cli, folder: Path) -> None:
    path = folder / "models/describer/genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["vision"]["session_options"] = {"provider_options": [{"cuda": {}}]}
    path.write_text(json.dumps(config))
    found = apply(cli, folder, command="plan").words
    assert "contradictory-genai-config" in found
    assert "Of the vision, it names the provider cuda" in found


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("num_beams: 2", "no room for several beams"),
        ("image_folder: nowhere", "There is no folder nowhere"),
        ("image_folder: ../elsewhere", "path-outside-tree"),
        ("image_folder: linked", "link-out-of-tree"),
        ("image_folder: https://example.org/a", "There is no folder https://example.org/a"),
        ("timestamps: true", "timestamps has no effect"),
    ],
)
def test_what_a_folder_that_sees_does_not_do_is_refused_before_the_run(
    cli: Cli, folder: Path, said: str, why: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "linked").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    result = apply(cli, folder, said, command="plan")
    assert result.code == 1
    assert why in result.words


@pytest.mark.parametrize(
    ("wired", "why"),
    [
        ("columns: {images: pixels}", 'Nothing feeds input "prompt"'),
        ("columns: {images: pixels, image_files: path}, values: {prompt: odd}", "Set its image_folder"),
    ],
    ids=["no prompt", "no folder of pictures"],
)
def test_pictures_that_are_fed_wrongly_lead_to_what_is_missing(cli: Cli, folder: Path, wired: str, why: str) -> None:
    text = MANIFEST.replace("SAID", "chat: prompt")
    begin, end = text.index("columns: {"), text.index(", key: [path]")
    (folder / "m.yaml").write_text(text[:begin] + wired + text[end:])
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert why in result.words
    assert "cast: string" not in result.words


def with_adapter(folder: Path) -> Path:
    """Let the decoder take its bias from an adapter, and return one with which each text ends at once."""
    decoder = folder / "models/describer/decoder.onnx"
    model = onnx.load(decoder)
    bias = next(one for one in model.graph.initializer if one.name == "bias")
    model.graph.input.append(onnx.helper.make_tensor_value_info("bias", bias.data_type, bias.dims))
    onnx.save(model, decoder)
    ending = onnx.numpy_helper.to_array(bias).copy()
    ending[json.loads((folder / "models/describer/tokenizer.json").read_text())["model"]["vocab"]["</s>"]] = 1e9
    return make_adapter(folder / "ending.onnx_adapter", bias=ending)


def test_the_library_runs_models_that_see_without_adapters(folder: Path) -> None:
    """This is why they are refused: GenAI takes them and changes nothing, neither those of a run nor a folder's own."""
    adapter = with_adapter(folder)
    asked = [folder / "pictures/000.png"], f"<start_of_image>{ASKED}"
    plain = written_by_the_library(folder, *asked)
    assert written_by_the_library(folder, *asked, adapter=adapter) == plain
    config = folder / "models/describer/genai_config.json"
    said = json.loads(config.read_text())
    said["model"]["vision"]["adapter_filename"] = "nowhere.onnx_adapter"
    config.write_text(json.dumps(said))
    assert written_by_the_library(folder, *asked) == plain


def test_the_library_writes_no_beams_about_pictures(folder: Path) -> None:
    """This is why they are refused."""
    with pytest.raises(Exception, match="inputs_embeds"):
        written_by_the_library(folder, [folder / "pictures/000.png"], f"<start_of_image>{ASKED}", num_beams=2)


@pytest.mark.parametrize("of_job", [True, False], ids=["job", "component"])
def test_adapters_of_models_that_see_are_refused_before_the_run(cli: Cli, folder: Path, of_job: bool) -> None:
    with_adapter(folder)
    text = MANIFEST.replace("SAID", "chat: prompt").replace("PROMPT", json.dumps(ASKED))
    if of_job:
        text = text.replace("    errors:", "    adapter: ending\n    errors:")
    else:
        text = text.replace("decoder: {}", "decoder: {adapter: ending}")
    text += "adapters: {ending: {path: ending.onnx_adapter, model: describe.decoder}}\n"
    (folder / "m.yaml").write_text(text)
    refused = cli("plan", folder / "m.yaml")
    assert refused.code == 1
    assert "GenAI runs such models without adapters" in refused.words


def test_a_manifest_that_names_no_parts_is_told_all(cli: Cli, folder: Path) -> None:
    text = MANIFEST.replace("components: {vision: {}, embedding: {}, decoder: {}}, SAID", "chat: prompt")
    (folder / "m.yaml").write_text(text.replace("PROMPT", json.dumps(ASKED)))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    named = "vision: {file: vision.onnx}, embedding: {file: embedding.onnx}, decoder: {file: decoder.onnx}"
    assert f"components: {{{named}}}" in result.words


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_survives_its_way_as_png(channels: int) -> None:
    import io  # noqa: PLC0415

    from PIL import Image  # noqa: PLC0415  an extra

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    read = np.asarray(Image.open(io.BytesIO(png_of(pixels))))
    assert np.array_equal(read, np.broadcast_to(pixels, (5, 7, 3)))


@pytest.mark.parametrize("shape", [(5, 7), (0, 7, 3), (5, 7, 4), (1, 20_000, 3)])
def test_what_is_no_picture_for_the_library_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OrtdeployError, match="a picture is"):
        png_of(np.zeros(shape, np.uint8))
