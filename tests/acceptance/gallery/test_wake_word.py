"""The gallery's wake word is heard in every window as openWakeWord's own features and the model hear it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from conftest import Cli
from support.gallery import applied, deployed, of_file, write_recording

pytestmark = pytest.mark.filterwarnings("ignore")  # of openwakeword


def heard_by_openwakeword(models: Path, samples: npt.NDArray[np.float32]) -> list[float]:
    """Return how probable the word is in each 25 embeddings that openwakeword makes of a recording."""
    utils = pytest.importorskip("openwakeword.utils")
    features = utils.AudioFeatures(
        melspec_model_path=str(models / "melspectrogram.onnx"),
        embedding_model_path=str(models / "embedding.onnx"),
        inference_framework="onnx",
    )
    embedded: Any = features.embed_clips((samples[None] * 32768).astype(np.int16))[0]
    word = onnxruntime.InferenceSession(models / "wake-word.onnx", providers=["CPUExecutionProvider"])
    (name,) = [one.name for one in word.get_inputs()]
    windows = [embedded[start : start + 25] for start in range(len(embedded) - 24)]
    return [float(np.asarray(word.run(None, {name: window.reshape(1, 25, 96)})[0]).item()) for window in windows]


def test_the_word_is_heard_as_openwakeword_hears_it(cli: Cli, tmp_path: Path) -> None:
    manifest, inbox = deployed("wake-word", tmp_path)
    heard = {f"{n}.wav": write_recording(inbox / f"{n}.wav", 16000, 48000 + 9000 * n, n) for n in range(1, 4)}
    rows = applied(cli, manifest)
    for file, samples in heard.items():
        ours, expected = of_file(rows, file), heard_by_openwakeword(tmp_path / "models", samples)
        assert [int(row["at"]) for row in ours] == list(range(len(expected)))
        assert len(expected) > 10
        np.testing.assert_allclose([float(row["score"]) for row in ours], expected, atol=1e-4)
