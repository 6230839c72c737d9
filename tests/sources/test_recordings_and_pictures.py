"""What recordings and pictures say of themselves is used: sample rates, orientation. What libraries warn of is logged."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, run_process
from onnx import TensorProto, helper
from PIL import ExifTags, Image
from support.models import save_model

from ortdeploy.cli.commands.check import show_warning
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted

FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8


def recording(path: Path, rate: int, frames: int = 4) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.arange(frames, dtype="<i2").tobytes())


def deploy(folder: Path, source: str, *, errors: str = "", shape: str = "n", kind: int = FLOAT) -> Path:
    sizes = ["batch", *shape.split(",")]
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(folder / "m.onnx", [node], {"x": (kind, sizes)}, {"y": (kind, sizes)})
    path = folder / "m.yaml"
    path.write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n"
        f"    input: {source}\n    output: {{path: out}}\n    batch: {{size: 1}}\n    errors: {{{errors}}}\n"
    )
    return path


def rules(said: Any) -> dict[str, str]:
    return {one["rule"]: one["detail"] for one in said.json["diagnostics"]}


def test_a_recording_of_another_rate_than_declared_is_refused_with_its_row(cli: Cli, tmp_path: Path) -> None:
    for name, rate in (("a", 16000), ("b", 8000), ("c", 16000)):
        recording(tmp_path / f"{name}.wav", rate)
    path = deploy(tmp_path, '{path: "*.wav", rate: 16000, columns: {x: samples}}')
    said = cli("plan", path, "--format", "json")
    assert said.code == 1
    assert "Row 1 (b.wav) has 8,000" in rules(said)["sample-rate-mismatch"]


def test_within_the_error_budget_such_a_row_fails_alone(cli: Cli, tmp_path: Path) -> None:
    for name, rate in (("a", 16000), ("b", 8000), ("c", 16000)):
        recording(tmp_path / f"{name}.wav", rate)
    path = deploy(tmp_path, '{path: "*.wav", rate: 16000, columns: {x: samples}}', errors="max_failed: 1")
    assert cli("apply", path, "-q").code == 0
    (line,) = (tmp_path / "out/_failed.jsonl").read_text().splitlines()
    assert json.loads(line)["row"] == 1
    assert "other-rate" in line
    assert "8,000 samples a second" in line
    assert "INPUT: [{resample: 16000}]" in line


def test_rates_that_nothing_checks_are_told_and_several_are_refused(cli: Cli, tmp_path: Path) -> None:
    recording(tmp_path / "a.wav", 8000)
    path = deploy(tmp_path, '{path: "*.wav", columns: {x: samples}}')
    said = cli("plan", path, "--format", "json")
    assert said.code == 0
    assert "8,000 samples a second" in rules(said)["unchecked-sample-rate"]
    recording(tmp_path / "b.wav", 16000)
    said = cli("plan", path, "--format", "json")
    assert said.code == 1
    assert "8,000 Hz (a.wav), 16,000 Hz (b.wav)" in rules(said)["sample-rate-mismatch"]


def test_a_rate_is_for_recordings(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    said = cli("plan", deploy(tmp_path, "{path: a.npy, rate: 8000}"), "--format", "json")
    assert said.code == 1
    assert "rate: is for recordings" in rules(said)["unreadable-input"]


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_it_was_held(tmp_path: Path, suffix: str, orientation: int) -> None:
    upright = np.zeros((16, 24, 3), np.uint8)
    upright[:8, :8] = 255  # one bright corner, on the borders of JPEG's blocks
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.swapaxes(0, 1),
        6: np.rot90(upright), 7: np.rot90(upright, 2).swapaxes(0, 1), 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    name = tmp_path / f"a.{suffix}"
    Image.fromarray(np.ascontiguousarray(stored)).save(name, exif=exif, quality=95)
    with open_input("image", [str(name)], str(tmp_path), Wanted(dtypes={"pixels": None})) as source:
        (block,) = source.blocks(0, iter([1, 1]))
    assert not block.failed
    pixels = np.asarray(block.columns["pixels"][0], np.int16)
    assert pixels.shape == upright.shape
    assert np.abs(pixels - upright).max() < 40


def test_a_png_that_tells_how_it_was_held_behind_its_pixels_is_turned(tmp_path: Path) -> None:
    upright = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    name = tmp_path / "a.png"
    Image.fromarray(np.ascontiguousarray(np.rot90(upright))).save(name, exif=exif)
    content = name.read_bytes()
    begin, end = content.index(b"eXIf") - 4, content.index(b"IDAT") - 4
    last = content.index(b"IEND") - 4
    name.write_bytes(content[:begin] + content[end:last] + content[begin:end] + content[last:])
    with open_input("image", [str(name)], str(tmp_path), Wanted(dtypes={"pixels": None})) as source:
        (block,) = source.blocks(0, iter([1, 1]))
    assert np.array_equal(block.columns["pixels"][0], upright)


def odd_picture(path: Path) -> None:
    """A palette with transparency in bytes, of which Pillow says that it should be RGBA, and a broken EXIF block."""
    picture = Image.new("P", (4, 4))
    picture.putpalette(bytes(range(48)))
    picture.save(path, transparency=bytes(range(16)), exif=b"Exif\x00\x00MM\x00\x2a\x00\x00\x00\x08\x00\x05\x01\x12")


@pytest.mark.quick("flags0-apply")
@pytest.mark.parametrize("command", ["plan", "apply"])
@pytest.mark.parametrize("flags", [["--log-format", "json"], ["--log-format", "json", "-v"]])
def test_what_libraries_warn_of_is_a_log_line(tmp_path: Path, command: str, flags: list[str]) -> None:
    odd_picture(tmp_path / "a.png")
    path = deploy(
        tmp_path, '{path: "*.png", columns: {x: pixels}}\n    prepare: {x: [{cast: float16}]}', shape="h,w,3", kind=10
    )
    said = run_process([command, path, *flags], cwd=tmp_path, env={"PYTHONWARNINGS": "always"})
    assert said.code == 0, said.err + said.out
    events = [json.loads(line) for line in said.err.splitlines()]
    assert {one["category"] for one in events if one["event"] == "python.warning"} == {"UserWarning"}


def test_warnings_of_a_checks_child_are_handed_on() -> None:
    found: list[tuple[str, str, str]] = []
    with warnings_to(lambda *warning: found.append(warning)):
        show_warning("RuntimeWarning", "overflow", "a.py:3")
    assert found == [("RuntimeWarning", "overflow", "a.py:3")]


def test_the_size_of_a_picture_is_a_column(cli: Cli, tmp_path: Path) -> None:
    """Of the upright picture; no column but the pixels feeds an input that nobody names."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png", exif=exif)
    Image.new("RGB", (5, 3)).save(tmp_path / "b.png")
    path = deploy(tmp_path, '{path: "*.png", key: [height, width]}', shape="h,w,3", kind=UINT8)
    assert cli("apply", path, "-q").code == 0
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert [(row["height"], row["width"], np.shape(row["y"])) for row in rows] == [(6, 4, (6, 4, 3)), (3, 5, (3, 5, 3))]
    path = deploy(tmp_path, '{path: "*.png", columns: {x: [height, width]}}', shape="2", kind=int(TensorProto.INT64))
    path.write_text(path.read_text().replace("path: out}", "path: sizes}"))
    done = cli("apply", path, "-q")
    assert done.code == 0, done.out
    rows = [json.loads(line) for line in (tmp_path / "sizes/part-00000000.jsonl").read_text().splitlines()]
    assert [row["y"] for row in rows] == [[6, 4], [3, 5]]


def test_a_picture_stays_as_it_is_stored_where_the_manifest_says_so(cli: Cli, tmp_path: Path) -> None:
    """Results are others then, so a finished job does not go on; and other formats have no orientation."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png", exif=exif)
    sizes = {}
    for written in ("exif: true, ", "exif: false, ", ""):
        path = deploy(tmp_path, f'{{path: "*.png", {written}key: [height, width]}}', shape="h,w,3", kind=UINT8)
        done = cli("apply", path, "-q")
        if written == "exif: false, ":
            assert done.code == 1
            assert "prepare" in done.out + done.err
            assert cli("apply", path, "-q", "--new-run").code == 0
        elif not written:
            assert cli("apply", path, "-q", "--new-run").code == 0
        row = json.loads((tmp_path / "out/part-00000000.jsonl").read_text())
        sizes[written] = row["height"], row["width"]
        assert np.shape(row["y"]) == (*sizes[written], 3)
    assert sizes == {"exif: true, ": (6, 4), "exif: false, ": (4, 6), "": (6, 4)}
    np.save(tmp_path / "a.npy", np.zeros((2, 2, 2, 3), np.uint8))
    path = deploy(tmp_path, "{path: a.npy, exif: true}", shape="h,w,3", kind=UINT8)
    said = cli("plan", path)
    assert said.code == 1
    assert "exif: is for pictures (image); npy files have no EXIF orientation. Remove it." in " ".join(said.out.split())
