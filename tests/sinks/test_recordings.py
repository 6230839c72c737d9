"""Recordings as results: WAV keeps each sample, FLAC its 24 bits, and jobs write them beside their rows."""

import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from support.models import scale_model

from ortdeploy.sinks.recordings import as_recording


@given(
    st.sampled_from([(7,), (1, 5), (2, 9), (3, 0)]),
    st.sampled_from(["float32", "int16"]),
    st.sampled_from([8000, 48000]),
)
def test_wav_files_are_read_by_libsndfile_as_they_were(shape: tuple[int, ...], dtype: str, rate: int) -> None:
    soundfile = pytest.importorskip("soundfile")
    random = np.random.default_rng(len(shape))
    samples = (random.normal(0, 2 if dtype == "float32" else 9000, shape)).astype(dtype)
    file = io.BytesIO(as_recording("x", samples, rate, "wav"))
    found, its_rate = soundfile.read(file, dtype=dtype, always_2d=True)
    assert its_rate == rate
    np.testing.assert_array_equal(found.T, np.atleast_2d(samples))


def test_wav_of_whole_samples_is_read_by_python(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(as_recording("x", np.array([[1, -2], [3, 4]], np.int16), 16000, "wav"))
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 16000, 2)
        assert np.frombuffer(file.readframes(2), "<i2").tolist() == [1, 3, -2, 4]


def test_flac_has_24_bits_and_no_samples_beyond_1(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.array([0.5, -1, 0.123456], np.float32)
    (tmp_path / "a.flac").write_bytes(as_recording("x", samples, 16000, "flac"))
    found, _ = soundfile.read(tmp_path / "a.flac")
    np.testing.assert_allclose(found, samples, atol=2**-23)
    with pytest.raises(ValueError, match="x has samples beyond 1, which FLAC cannot hold"):
        as_recording("x", np.array([1.5], np.float32), 16000, "flac")
    for wrong in (np.zeros((1, 2, 3), np.float32), np.zeros(3)):
        with pytest.raises(ValueError, match=r"a recording is float32 or int16"):
            as_recording("x", wrong, 16000, "wav")


def test_a_job_writes_recordings_that_its_rows_name(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "m.onnx", width=4, factor=0.5)
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  r:\n    model: m\n    input: {path: x.npy, columns: {x: array}}\n"
        "    output: {path: out, recordings: {y: {rate: 8000}}}\n"
    )
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert [row["y"] for row in rows] == ["recordings/y-00000000.wav", "recordings/y-00000001.wav"]
    content = (tmp_path / "out" / rows[1]["y"]).read_bytes()
    assert content == as_recording("y", np.array([2, 2.5, 3, 3.5], np.float32), 8000, "wav")
    text = (tmp_path / "m.yaml").read_text()
    (tmp_path / "m.yaml").write_text(text.replace("rate: 8000", "rate: 16000"))
    assert "finished-output" in cli("plan", tmp_path / "m.yaml").out


def test_recordings_of_another_model_go_on_behind_those_that_are_there(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  r:\n    model: m\n    input: {path: '*.npy'}\n"
        "    output: {path: out, recordings: {y: {rate: 8000}}, on_upgrade: continue}\n"
    )
    for number, factor in enumerate([0.5, 0.25]):
        scale_model(tmp_path / "m.onnx", width=4, factor=factor)
        np.save(tmp_path / f"{number}.npy", np.ones((1, 4), np.float32))
        done = cli("apply", tmp_path / "m.yaml", "-q")
        assert done.code == 0, done.out + done.err
        content = (tmp_path / f"out/recordings/y-{number:08d}.wav").read_bytes()
        assert content == as_recording("y", np.full(4, factor, np.float32), 8000, "wav")
