"""The gallery's voice activity detectors hear in every window what silero-vad's own code hears."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import Cli
from support.gallery import applied, deployed, of_file, write_recording

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of PyTorch
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch, which silero-vad uses, is missing"),
]


def heard_by_silero(model: Path, samples: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
    """Return the probability of speech for each window, [windows]."""
    torch, utils = pytest.importorskip("torch"), pytest.importorskip("silero_vad.utils_vad")
    given: Any = utils.OnnxWrapper(str(model), force_onnx_cpu=True).audio_forward(torch.from_numpy(samples)[None], rate)
    return np.asarray(given.numpy()[0])


@pytest.mark.parametrize(("name", "rate"), [("silero-vad", 16000), ("silero-vad-phone", 8000)])
def test_every_window_is_heard_as_silero_hears_it(cli: Cli, tmp_path: Path, name: str, rate: int) -> None:
    manifest, inbox = deployed(name, tmp_path)
    heard = {f"{n}.wav": write_recording(inbox / f"{n}.wav", rate, rate * n + 100, n) for n in range(1, 4)}
    rows = applied(cli, manifest)
    package = importlib.util.find_spec("silero_vad")
    assert package is not None
    assert package.origin is not None
    model = Path(package.origin).parent / "data/silero_vad.onnx"
    for file, samples in heard.items():
        ours, expected = of_file(rows, file), heard_by_silero(model, samples, rate)
        assert [row["start"] for row in ours] == [rate * 32 // 1000 * n for n in range(len(expected))]
        np.testing.assert_allclose([row["speech"] for row in ours], expected, atol=1e-6)
