"""Recordings through libsndfile, and recordings at another rate: held against soundfile and librosa themselves."""

import errno
import io
import json
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model, scale_model

from ortdeploy.cli.main import main
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.retries import limited
from ortdeploy.sources import audio
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import PREPARE


def tone(frames: int, rate: int, channels: int = 1) -> np.ndarray:
    """Return sines, float32 [frames] or [channels, frames]."""
    time = np.arange(frames) / rate
    made = np.stack([0.5 * np.sin(2 * np.pi * 220 * (one + 1) * time) for one in range(channels)])
    return (made[0] if channels == 1 else made).astype(np.float32)


def wav(path: Path, samples: np.ndarray, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else len(samples))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.T * 32767).astype("<i2").tobytes())


def floating_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, rate, rate * 4, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


def read(folder: Path, *names: str, **settings: Any) -> Any:
    files = [str(folder / name) for name in names]
    with open_input(
        "audio", files, str(folder), Wanted(dtypes={"samples": None, "rate": None}, settings=settings)
    ) as source:
        (block,) = source.blocks(0, iter([len(names)]))
    return block


@pytest.mark.parametrize(
    ("suffix", "subtype", "atol"), [("flac", "PCM_16", 4e-5), ("wav", "FLOAT", 0), ("ogg", None, 0.1)]
)
@pytest.mark.parametrize("channels", [1, 2])
def test_recordings_are_those_that_were_written(
    tmp_path: Path, suffix: str, subtype: str | None, atol: float, channels: int
) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = tone(9000, 22050, channels)
    soundfile.write(tmp_path / f"a.{suffix}", samples.T, 22050, subtype=subtype)
    block = read(tmp_path, f"a.{suffix}")
    assert block.columns["rate"].tolist() == [22050]
    np.testing.assert_allclose(block.columns["samples"][0], samples, atol=atol)
    theirs, _ = soundfile.read(tmp_path / f"a.{suffix}", dtype="float32")
    np.testing.assert_array_equal(block.columns["samples"][0], theirs.T)


def test_a_header_that_points_out_of_the_file_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """libsndfile goes there by a call into Python, whose exception would be printed with its traceback."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.aiff", tone(90, 8000), 8000)
    raw = (tmp_path / "a.aiff").read_bytes()
    place = raw.index(b"SSND")
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for size in (0x376D_889A, 0xFFFF_FFF0, 0x8000_0000):
        (tmp_path / "a.aiff").write_bytes(raw[: place - 1] + b"\0" + size.to_bytes(4) + raw[place + 4 :])
        (failed,) = read(tmp_path, "a.aiff").failed
        assert failed.code == "not-audio"
        assert "BufferedReader" not in failed.message
        assert "error" in failed.message
    assert not printed
    assert capfd.readouterr() == ("", "")


def test_why_a_file_cannot_be_read_is_told(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", tone(9000, 8000), 8000)

    class Failing(io.FileIO):
        def readinto(self, _buffer: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch, limited(0, lambda: False):
        patch.setattr(audio, "open_regular", Failing)
        (failed,) = read(tmp_path, "a.flac").failed
    assert (failed.code, failed.message) == ("unreadable-file", "the file cannot be read: Input/output error")


def test_what_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "good.flac", tone(900, 8000), 8000)
    soundfile.write(tmp_path / "other.flac", tone(900, 8000), 16000)
    (tmp_path / "text.flac").write_text("fLaC and nothing else")
    (tmp_path / "empty.ogg").write_bytes(b"")
    whole = (tmp_path / "good.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    names = ("good.flac", "other.flac", "text.flac", "empty.ogg", "cut.flac", "gone.flac")
    block = read(tmp_path, *names, rate=8000)
    assert len(block.columns["samples"]) == 1
    failed = {one.source: one for one in block.failed}
    assert failed["other.flac"].code == "other-rate"
    assert failed["gone.flac"].code == "vanished-file"
    assert {failed[name].code for name in ("text.flac", "empty.ogg", "cut.flac")} == {"not-audio"}


def test_floating_samples_in_a_wav_are_told_where_to_go(tmp_path: Path, cli: Cli) -> None:
    floating_wav(tmp_path / "a.wav", tone(100, 8000), 8000)
    said = cli("plan", deploy(tmp_path, "{path: a.wav, columns: {x: samples}}"))
    assert said.code == 1
    assert "say format: audio (extra audio)" in " ".join(said.out.split())
    pytest.importorskip("soundfile")
    np.testing.assert_array_equal(read(tmp_path, "a.wav").columns["samples"][0], tone(100, 8000))


def deploy(folder: Path, source: str, *, steps: str = "") -> Path:
    sizes: list[int | str | None] = ["batch", "n"]
    kind: int = TensorProto.FLOAT
    save_model(
        folder / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, sizes)}, {"y": (kind, sizes)}
    )
    prepare = f"    prepare: {{x: {steps}}}\n" if steps else ""
    path = folder / "m.yaml"
    path.write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n"
        f"    input: {source}\n{prepare}    output: {{path: out}}\n    batch: {{size: 1}}\n"
    )
    return path


@pytest.mark.parametrize("channels", [(1, 2, 1), (2, 1, 6)])
def test_recordings_of_one_and_of_several_channels_go_through_one_pipeline(
    tmp_path: Path, cli: Cli, channels: tuple[int, ...]
) -> None:
    parts = [tone(160, 8000, one) for one in channels]
    for name, samples in zip("abc", parts, strict=True):
        wav(tmp_path / f"{name}.wav", samples, 8000)
    path = deploy(tmp_path, "{path: '*.wav', rate: 8000}")
    steps = "[{do: mono, in: {x: $samples}, out: s}, {run: m, in: {x: $s}, out: {y: y}}]"
    text = path.read_text().replace("model: m\n", "pipeline: p\n").replace("size: 1", "size: 4")
    path.write_text(f"{text}pipelines: {{p: {{steps: {steps}, outputs: {{y: $y}}}}}}\n")
    said = cli("plan", path, "--format", "json")
    assert (said.code, said.json["diagnostics"]) == (0, []), said.out
    assert cli("apply", path, "-q").code == 0
    rows = [json.loads(line)["y"] for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    for row, samples in zip(rows, parts, strict=True):
        heard = samples if samples.ndim == 1 else samples.mean(axis=0)
        np.testing.assert_allclose(row, heard, atol=1e-4)


def test_files_of_several_rates_become_one_job(tmp_path: Path, cli: Cli) -> None:
    soxr = pytest.importorskip("soxr")
    for name, rate, channels in (("a", 8000, 1), ("b", 44100, 1), ("c", 16000, 1)):
        wav(tmp_path / f"{name}.wav", tone(rate // 50, rate, channels), rate)
    path = deploy(tmp_path, '{path: "*.wav", columns: {x: samples}}', steps="[{mono: true}, {resample: 16000}]")
    said = cli("plan", path, "--format", "json")
    assert (said.code, said.json["diagnostics"]) == (0, []), said.out
    assert cli("apply", path, "-q").code == 0
    rows = [json.loads(line)["y"] for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert [len(row) for row in rows] == [320, 320, 320]
    heard = (np.round(tone(882, 44100) * 32767 - 0.5) / 32768).astype(np.float32)
    np.testing.assert_allclose(rows[1], soxr.resample(heard, 44100, 16000), atol=1e-3)


def test_resampling_is_that_of_librosa() -> None:
    librosa = pytest.importorskip("librosa")
    for have, want, channels in ((44100, 16000, 2), (8000, 16000, 1), (22050, 24000, 1), (16000, 16000, 2)):
        samples = tone(4001, have, channels)
        theirs = librosa.resample(samples, orig_sr=have, target_sr=want)
        options = {"resample": want, "from": have}
        (made,) = PREPARE["resample"].build(options, TensorType())(samples[None])
        (promised,) = PREPARE["resample"].infer(options, TensorType("float32", (ROWS, *samples.shape)))
        assert promised.shape == (ROWS, *made.shape[1:])
        np.testing.assert_allclose(made[0], theirs, atol=1e-6)
        types = {"x": TensorType("float32", (ROWS, *samples.shape)), "rate": TensorType("int64", (ROWS,))}
        call = OPERATIONS["resample"].build({"resample": want}, types)
        np.testing.assert_array_equal(call({"x": samples[None], "rate": np.array([have])})[0], made)
        (one,) = PREPARE["mono"].build({}, TensorType())(samples[None])
        np.testing.assert_allclose(one[0], librosa.to_mono(samples), atol=1e-7)


def test_recordings_that_have_the_rate_already_stay() -> None:
    samples = tone(100, 8000, 2)[None]
    (made,) = PREPARE["resample"].build({"resample": 8000, "from": 8000}, TensorType())(samples)
    np.testing.assert_array_equal(made, samples)
    (made,) = PREPARE["mono"].build({}, TensorType())(samples)
    np.testing.assert_allclose(made, samples.mean(axis=1))
    assert PREPARE["mono"].build({}, TensorType())(made)[0] is made


def test_a_rate_must_be_known(tmp_path: Path, cli: Cli) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 30), np.float32))
    said = cli("plan", deploy(tmp_path, "{path: a.npy}", steps="[{resample: 16000}]"))
    assert said.code == 1
    assert "the input has no column rate; say which rate it has" in " ".join(said.out.split())
    recording, rate = TensorType("float32", (ROWS, 30)), TensorType("int64", (ROWS,))
    for options, types in (({}, {}), ({"from": 8000}, {"rate": rate})):
        with pytest.raises(InapplicableError, match="either the value rate or the setting from"):
            OPERATIONS["resample"].infer({"resample": 16000, **options}, {"x": recording, **types})
    call = OPERATIONS["resample"].build({"resample": 16000}, {"x": recording, "rate": rate})
    with pytest.raises(ValueError, match="0 samples a second"):
        call({"x": np.zeros((1, 30), np.float32), "rate": np.array([0])})


def test_a_package_that_is_missing_is_named(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.runtime.probe._EXTRAS", ())
    wav(tmp_path / "a.wav", tone(100, 8000), 8000)
    said = cli("plan", deploy(tmp_path, "{path: a.wav, columns: {x: samples}}", steps="[{resample: 16000}]"))
    assert 'resample of input "x" needs soxr. Install it: pip install "ortdeploy[audio]"' in " ".join(said.out.split())
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    said = cli("plan", deploy(tmp_path, "{path: a.flac, columns: {x: samples}}"))
    assert "reads audio files, which needs soundfile" in " ".join(said.out.split())


def test_what_the_decoder_notes_of_damaged_recordings_is_no_line_of_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    soundfile = pytest.importorskip("soundfile")
    scale_model(tmp_path / "m.onnx", width="samples")
    soundfile.write(tmp_path / "a.mp3", tone(32000, 16000), 16000, format="MP3")
    content = bytearray((tmp_path / "a.mp3").read_bytes())
    places = np.random.default_rng(0).integers(200, len(content), 60)
    content[300:310] = bytes(10)
    for place in places:
        content[place] ^= 0x55
    (tmp_path / "a.mp3").write_bytes(content)
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels:\n  m: {path: m.onnx}\njobs:\n  run:\n    model: m\n"
        "    input: {path: a.mp3, columns: {x: samples}, rate: 16000}\n    batch: {size: 1}\n"
        "    errors: {max_failed: 100%}\n    output: {path: out, format: jsonl}\n"
    )
    main(["plan", str(tmp_path / "m.yaml"), "--no-color"])
    printed = capfd.readouterr()
    assert "cannot be fed to the model. Row 0 (a.mp3), read: the file ends after" in " ".join(printed.out.split())
    assert printed.err == ""
    assert "Note: " not in printed.out
