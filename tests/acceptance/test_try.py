"""`ortdeploy try`: a few rows into a scratch folder, shown; nothing beside the manifest changes."""

import importlib
import json
import shutil
import tempfile
import wave
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from support import family_models as families
from support.models import gather_model, scale_model

MANIFEST = """\
version: 1
models:
  scale: {path: m.onnx}
jobs:
  run:
    model: scale
    input: {path: data.npy, key: [row]}
    batch: {size: 8}
    output: {path: outbox/run, format: parquet}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a deployment; what try leaves lies in `scratch` beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    place = tmp_path / "deployment"
    scale_model(place / "m.onnx")
    np.save(place / "data.npy", np.arange(400, dtype=np.float32).reshape(100, 4))
    (place / "m.yaml").write_text(MANIFEST)
    return place


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_shows_rows_and_leaves_nothing(cli: Cli, folder: Path) -> None:
    before = tree(folder)
    done = cli("try", folder / "m.yaml", "--rows", "3")
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert lines[0] == "run: 3 rows"
    assert lines[1].split() == ["row", "y"]
    assert lines[-1].split(maxsplit=1) == ["2", "[16, 18, 20, 22]"]
    assert tree(folder) == before
    assert not list((folder.parent / "scratch").iterdir())


def test_twenty_rows_or_as_many_as_there_are(cli: Cli, folder: Path) -> None:
    assert cli("try", folder / "m.yaml").out.startswith("run: 20 rows\n")
    assert cli("try", folder / "m.yaml", "--rows", "1000").out.startswith("run: 100 rows\n")


def test_it_runs_beside_what_is_finished(cli: Cli, folder: Path) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    before = tree(folder / "outbox")
    assert cli("try", folder / "m.yaml").code == 0
    assert tree(folder / "outbox") == before
    assert "nothing to do" in cli("apply", folder / "m.yaml").out


def test_hours_gates_and_stores_do_not_hold_it_up(cli: Cli, folder: Path) -> None:
    text = MANIFEST.replace("    batch:", "    until: 1s\n    hours: {from: '03:00', to: '03:01'}\n    batch:")
    (folder / "m.yaml").write_text(text.replace("{path: m.onnx}", "{path: m.onnx, checks: [], memory: lean}"))
    assert cli("try", folder / "m.yaml", "--rows", "2").out.startswith("run: 2 rows\n")


def test_rows_that_fail_are_shown_with_their_reason(cli: Cli, folder: Path) -> None:
    """Beside those that do not: nothing of a first look is left out because the budget is small."""
    gather_model(folder / "m.onnx", computed=True)
    np.save(folder / "data.npy", np.array([1, 50, 3], np.int64))
    done = cli("try", folder / "m.yaml")
    assert done.code == 1
    assert "run: 2 rows" in done.out
    assert "row 1 failed: " in done.out
    assert "indices element out of data bounds" in done.out


def test_init_says_why_the_first_row_failed(cli: Cli, folder: Path) -> None:
    gather_model(folder / "g.onnx", computed=True)
    np.save(folder / "data.npy", np.array([1, 50, 60], np.int64))
    done = cli("init", folder / "g.onnx", "-o", folder / "g.yaml", "--from", folder / "data.npy")
    assert done.code == 1
    assert "The manifest does not run yet.\n" in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("  row ")]
    assert line.startswith("  row 1 failed: ")
    assert "indices element out of data bounds" in line


def test_what_plan_refuses_it_refuses(cli: Cli, folder: Path) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("data.npy", "nothing.npy"))
    done = cli("try", folder / "m.yaml")
    assert done.code == 1
    assert "unmatched-input" in done.out


def test_one_job_of_several(cli: Cli, folder: Path) -> None:
    second = (
        "".join(f"{line}\n" for line in MANIFEST.splitlines()[5:])
        .replace("run:", "second:")
        .replace("outbox/run", "outbox/second")
    )
    (folder / "m.yaml").write_text(MANIFEST + "  second:\n" + second)
    assert "run: " not in cli("try", folder / "m.yaml", "--job", "second", "--rows", "2").out
    assert cli("try", folder / "m.yaml", "--job", "third").code == 64


def test_in_json_rows_are_whole(cli: Cli, folder: Path) -> None:
    done = cli("try", folder / "m.yaml", "--rows", "2", "--format", "json")
    document = json.loads(done.out)
    (job,) = document["jobs"]
    assert job["rows"][1] == {"row": 1, "y": [8.0, 10.0, 12.0, 14.0]}
    assert document["pictures"] == []


@pytest.mark.parametrize("rows", ["0", "-1", "many"])
def test_a_number_of_rows_that_is_none(cli: Cli, folder: Path, rows: str) -> None:
    done = cli("try", folder / "m.yaml", f"--rows={rows}")
    assert done.code == 64
    assert "number of rows" in done.err


def test_boxes_are_drawn_where_they_are(cli: Cli, folder: Path) -> None:
    families.yolo(folder / "yolo.onnx")
    assert cli("init", folder / "yolo.onnx", "-o", folder / "yolo.yaml").code == 0
    (folder / "yolo-sample-1.png").unlink()
    Image.new("RGB", (640, 640), (0, 0, 0)).save(folder / "yolo-sample-0.png")
    done = cli("try", folder / "yolo.yaml")
    assert done.code == 0, done.out
    drawn = Path(done.out.splitlines()[-1].removeprefix("Pictures, kept until the next try: "))
    with Image.open(drawn) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (640, 640, 3)
    assert pixels[300, 240].any()  # the left edge of [240, 200, 400, 440]
    assert pixels[440, 300].any()
    assert not pixels[320, 320].any()  # inside of it
    assert not pixels[100, 600].any()
    assert not (drawn.parents[2] / ".state").exists()
    assert cli("try", folder / "m.yaml").code == 0
    assert not list((folder.parent / "scratch").iterdir())


@pytest.mark.parametrize("rate", [16_000, 32_000], ids=["as it is", "resampled"])
def test_spans_of_a_recording_are_where_it_is_loud(cli: Cli, folder: Path, rate: int) -> None:
    families.listener(folder / "vad.onnx")
    samples = np.zeros(rate, "<i2")
    samples[5120 * rate // 16_000 : 10_240 * rate // 16_000] = 20_000
    with wave.open(str(folder / "one.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    made = cli("init", folder / "vad.onnx", "-o", folder / "vad.yaml", "--from", folder / "one.wav")
    assert made.code == 0, made.out
    done = cli("try", folder / "vad.yaml")
    assert "speech of one.wav: 0.32-0.67 s (0.6" in done.out  # a window begins with 64 samples of the one before


@pytest.mark.slow
def test_images_that_a_job_makes_can_be_looked_at(cli: Cli, folder: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "deployments/models/painter", folder / "painter")
    (folder / "prompts.csv").write_text("prompt\na cat\n")
    (folder / "m.yaml").write_text(
        "version: 1\npipelines:\n  paint: {preset: text-to-image, from: painter, providers: [CPU], steps: 2, "
        "height: 32, width: 32}\njobs:\n  run:\n    pipeline: paint\n    input: {path: prompts.csv}\n"
        "    output: {path: out, images: [image]}\n"
    )
    done = cli("try", folder / "m.yaml")
    assert Path(done.out.splitlines()[-1].removeprefix("Pictures, kept until the next try: ")).is_file()


def test_the_first_pictures_are_on_the_terminal_and_none_in_a_pipe(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.yolo(folder / "yolo.onnx")
    assert cli("init", folder / "yolo.onnx", "-o", folder / "yolo.yaml").code == 0
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "▀" not in cli("try", folder / "yolo.yaml", "--color", "always").out
    command = importlib.import_module("ortdeploy.cli.commands.try")
    monkeypatch.setattr(command, "protocol_of", lambda *_: "truecolor")
    shown = cli("try", folder / "yolo.yaml", "--color", "always").out
    assert shown.index("0000-yolo-sample-0.png\n\x1b[38;2;") < shown.index("0001-yolo-sample-1.png\n\x1b[38;2;")
    assert "▀" not in cli("try", folder / "yolo.yaml", "--color", "never").out
