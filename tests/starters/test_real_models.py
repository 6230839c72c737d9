"""Models that packages ship: what `init` writes for them runs, and finds what they are for; skipped where not installed."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from PIL import Image, ImageDraw, ImageFont


def shipped(package: str, pattern: str) -> Path:
    """Return a model that an installed package has, without importing the package."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    models = sorted(path for place in places for path in Path(place).rglob(pattern))
    if not models:
        pytest.skip(f"{package} with {pattern} is not installed")
    return models[0]


def results(cli: Cli, folder: Path, *further: str | Path) -> list[dict[str, Any]]:
    """Return the rows of the manifest that init writes."""
    made = cli("init", folder / "m.onnx", "-o", folder / "m.yaml", *further)
    assert made.code == 0, made.out + made.err
    done = cli("try", folder / "m.yaml", "--format", "json")
    assert done.code == 0, done.out
    (job,) = json.loads(done.out)["jobs"]
    rows: list[dict[str, Any]] = job["rows"]
    return rows


def line_of_text(text: str) -> Image.Image:
    image = Image.new("RGB", (60 + 21 * len(text), 64), "white")
    ImageDraw.Draw(image).text((12, 8), text, fill="black", font=ImageFont.load_default(40))
    return image


def test_a_reader_of_rapidocr_reads(cli: Cli, tmp_path: Path) -> None:
    shutil.copy(shipped("rapidocr", "*_rec_*.onnx"), tmp_path / "m.onnx")
    line_of_text("Invoice 4711").save(tmp_path / "line.png")
    (row,) = results(cli, tmp_path, "--from", tmp_path / "line.png")
    assert row["text"] == "Invoice 4711"


def test_a_detector_of_rapidocr_finds_lines(cli: Cli, tmp_path: Path) -> None:
    shutil.copy(shipped("rapidocr", "*_det_*.onnx"), tmp_path / "m.onnx")
    page = Image.new("RGB", (640, 400), "white")
    page.paste(line_of_text("Invoice 4711"), (40, 40))
    page.paste(line_of_text("Total: 12.50"), (40, 200))
    page.save(tmp_path / "page.png")
    (row,) = results(cli, tmp_path, "--from", tmp_path / "page.png")
    assert len(row["boxes"]) == 2


def test_nudenet_gets_its_labels(cli: Cli, tmp_path: Path) -> None:
    shutil.copy(shipped("nudenet", "320n.onnx"), tmp_path / "m.onnx")
    rows = results(cli, tmp_path)
    assert all(row["labels"] == [] for row in rows)  # nobody is in the sample
    assert "FACE_FEMALE" in (tmp_path / "m-labels.txt").read_text().splitlines()


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_half.onnx", "silero_vad_op18_ifless.onnx"])
def test_silero_hears(cli: Cli, tmp_path: Path, name: str) -> None:
    shutil.copy(shipped("silero_vad", name), tmp_path / "m.onnx")
    (row,) = results(cli, tmp_path)
    assert len(row["speech"]) == len(row["start"]) == 63


def test_magika_takes_bytes_that_are_made_up(cli: Cli, tmp_path: Path) -> None:
    shutil.copy(shipped("magika", "model.onnx"), tmp_path / "m.onnx")
    assert len(results(cli, tmp_path)) == 4


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", ["mul_1.onnx", "sigmoid.onnx", "logreg_iris.onnx"])
def test_what_onnxruntime_ships_runs(cli: Cli, tmp_path: Path, name: str) -> None:
    shutil.copy(shipped("onnxruntime", name), tmp_path / "m.onnx")
    assert results(cli, tmp_path)
