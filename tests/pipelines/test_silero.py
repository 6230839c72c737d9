"""The voice activity detector of the package silero-vad, a model that hears windows and remembers, against its own code."""

import importlib.util
import json
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from pyarrow import parquet

SAMPLE_RATE, WINDOW = 16_000, 512

MANIFEST = """\
version: 1
models:
  vad: {{path: vad.onnx, session: {{intra_op_num_threads: 1}}{model}}}
pipelines:
  listen:
    steps:
      - {{do: windows, in: {{x: $samples, size: 512, hop: 512, context: 64, last: pad}}, out: [w, start]}}
      - each: $w
        as: x
        batch: {batch}
        state: {{h: $h_after}}
        steps:
          - {{run: vad, in: {{input: $x, state: $h{rate}}}, out: {{output: p, stateN: h_after}}}}
          - {{do: flatten, in: {{x: $p}}, out: flat}}
          - {{do: squeeze, in: {{x: $flat, squeeze: 0}}, out: speech}}
        collect: {{speech: speech_of_row}}
    outputs: {{speech: $speech_of_row, start: $start}}
jobs:
  listen:
    pipeline: listen
    input: {{path: "in/*.wav", rate: 16000, key: [path]}}
    batch: {{size: 4}}
    output: {{path: out, format: parquet, rows_per_part: 4, explode: [speech, start]}}
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("silero_vad") is None or importlib.util.find_spec("torch") is None,
    reason="silero-vad and PyTorch are not installed",
)


def recording(number: int, samples: int) -> np.ndarray:
    """Return int16 samples of a voice-like hum that comes and goes, over noise."""
    time = np.arange(samples) / SAMPLE_RATE
    hum = sum(np.sin(2 * np.pi * (110 + 9 * number) * tone * time) / tone for tone in range(1, 9))
    loud = np.clip(np.sin(2 * np.pi * 1.5 * time + number), 0, 1)
    noise = np.random.default_rng(number).standard_normal(samples)
    return np.asarray(np.clip(0.2 * hum * loud + 0.01 * noise, -1, 1) * 32767).astype("<i2")


LENGTHS = (2 * SAMPLE_RATE,) * 3 + (3 * SAMPLE_RATE + 17, 0, 100, WINDOW, SAMPLE_RATE)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number, samples in enumerate(LENGTHS):
        with wave.open(str(tmp_path / f"in/{number}.wav"), "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            file.writeframes(recording(number, samples).tobytes())
    return tmp_path


def heard_by_silero(model: Path, samples: np.ndarray) -> np.ndarray:
    """Return the probability of speech for each window, as the package's own code computes it."""
    import torch  # noqa: PLC0415  a heavy package that few have
    from silero_vad.utils_vad import OnnxWrapper  # noqa: PLC0415

    if not len(samples):
        return np.zeros(0)
    whole = np.pad(samples.astype(np.float32) / 32768, (0, -len(samples) % WINDOW))
    given: Any = OnnxWrapper(str(model), force_onnx_cpu=True).audio_forward(torch.from_numpy(whole)[None], SAMPLE_RATE)
    return np.asarray(given.numpy()[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "rate", "model", "batch"),
    [
        ("silero_vad.onnx", ", sr: 16000", "", 32),
        ("silero_vad.onnx", ", sr: 16000", ", inputs: {state: {row_axis: 1}}", 32),
        ("silero_vad_16k_op15.onnx", ", sr: 16000", "", 2),
        ("silero_vad_op18_ifless.onnx", ", sr: 16000", "", 32),
        ("silero_vad_openvino_16k.onnx", "", "", 32),
    ],
)
def test_each_window_has_the_probability_that_silero_computes(
    recordings: Path, cli: Cli, name: str, rate: str, model: str, batch: int
) -> None:
    package = importlib.util.find_spec("silero_vad")
    assert package is not None
    assert package.origin is not None
    data = Path(package.origin).parent / "data"
    shutil.copy(data / name, recordings / "vad.onnx")
    (recordings / "m.yaml").write_text(MANIFEST.format(rate=rate, model=model, batch=batch))
    done = cli("apply", recordings / "m.yaml")
    assert done.code == 0, done.out + done.err
    tables = [parquet.read_table(path).to_pydict() for path in sorted((recordings / "out").glob("part-*"))]
    found = {key: np.concatenate([table[key] for table in tables]) for key in tables[0]}
    for row, samples in enumerate(LENGTHS):
        chosen = found["row"] == row
        expected = heard_by_silero(data / "silero_vad.onnx", recording(row, samples))
        np.testing.assert_array_equal(found["item"][chosen], np.arange(len(expected)))
        np.testing.assert_array_equal(found["start"][chosen], WINDOW * np.arange(len(expected)))
        np.testing.assert_allclose(found["speech"][chosen], expected, rtol=0, atol=1e-6)
        assert set(found["path"][chosen]) <= {f"in/{row}.wav"}
    report = json.loads((recordings / "out/_run.json").read_text())
    assert report["rows"]["committed"] == len(LENGTHS)
