"""Loudness in bands of mel, held against librosa and Whisper's extractor; standardized rows against Wav2Vec2's."""

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.operation_references import FOLDER, recording

from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import PREPARE
from ortdeploy.transforms.log_mel import WhisperBands


@pytest.fixture(scope="module")
def known() -> Mapping[str, np.ndarray]:
    with np.load(FOLDER / "sound.npz") as arrays:
        return dict(arrays)


def bands(samples: np.ndarray, **options: Any) -> np.ndarray:
    tensor = TensorType(samples.dtype.name, (ROWS, len(samples)))
    (promised,) = PREPARE["log_mel"].infer(options, tensor)
    (made,) = PREPARE["log_mel"].build(options, tensor)(samples[None])
    assert promised.shape == (ROWS, *made.shape[1:])
    assert promised.dtype == made.dtype == "float32"
    return np.asarray(made[0])


LIKE_LIBROSA: dict[str, Any] = {"size": 512, "hop": 200, "log_mel": 24, "pad": "zeros"}


def test_bands_are_those_of_librosa(known: Mapping[str, np.ndarray]) -> None:
    largest = known["slaney"].max()
    np.testing.assert_allclose(
        bands(recording(), **LIKE_LIBROSA, **{"as": "power"}), known["slaney"], rtol=1e-4, atol=1e-6 * largest
    )
    np.testing.assert_allclose(bands(recording(), **LIKE_LIBROSA, **{"as": "db"}), known["db"], atol=2e-3)
    htk = {"scale": "htk", "norm": "none", "low": 50, "high": 7000, "power": 1, "pad": "none", "as": "power"}
    np.testing.assert_allclose(bands(recording(), **{**LIKE_LIBROSA, **htk}), known["htk"], rtol=1e-4, atol=1e-5)


def test_bands_are_those_of_whisper(known: Mapping[str, np.ndarray]) -> None:
    made = bands(recording(), log_mel=80, **{"as": "whisper"})
    assert made.shape == known["whisper"].shape == (80, 25)
    np.testing.assert_allclose(made, known["whisper"], atol=1e-4)


@settings(max_examples=effort(3, 100), deadline=None)
@given(st.integers(16_000, 400_000), st.integers(0, 2500), st.integers(1, 3000))
def test_bands_of_whisper_are_the_same_some_at_a_time(samples: int, begin: int, count: int) -> None:
    """The loudest frame, at the end, counts for the silence before it."""
    sound = (np.random.default_rng(samples).normal(size=samples) * np.linspace(0, 1, samples) ** 4).astype(np.float32)
    whole, some = bands(sound, log_mel=80, **{"as": "whisper"}), WhisperBands(sound, 80)
    assert some.frames == whole.shape[1]
    begin = min(begin, some.frames - 1)
    np.testing.assert_allclose(some.of(begin, begin + count), whole[:, begin : begin + count], rtol=0, atol=1e-6)


def test_bands_of_a_long_recording_take_the_memory_of_some_seconds() -> None:
    sound = np.ones(300 * 16_000, np.float32)
    tracemalloc.start()
    try:
        WhisperBands(sound, 80).of(0, 3000)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@settings(max_examples=effort(15, 200))
@given(
    st.integers(1, 700),
    st.integers(2, 64),
    st.integers(1, 40),
    st.sampled_from(["reflect", "zeros", "none"]),
    st.sampled_from(["power", "ln", "log10", "db", "whisper"]),
)
def test_frames_are_as_many_as_promised(samples: int, size: int, hop: int, pad: str, what: str) -> None:
    sound: np.ndarray = np.random.default_rng(samples).normal(size=samples).astype(np.float32)
    made = bands(sound, log_mel=5, size=size, hop=hop, pad=pad, **{"as": what})
    assert np.isfinite(made).all()
    if what == "ln" and pad == "none" and made.shape[1]:
        frame = sound[:size] * np.hanning(size + 1)[:-1]
        assert bands(frame.astype(np.float32), log_mel=5, size=size, pad="none", **{"as": "ln"}).shape == (5, 1)


def test_bands_end_at_half_the_rate() -> None:
    with pytest.raises(InapplicableError, match="they end at 4000 Hz at most"):
        bands(recording(), log_mel=8, rate=8000, high=5000)


def test_rows_are_standardized_as_by_wav2vec2(known: Mapping[str, np.ndarray]) -> None:
    samples = recording()
    tensor = TensorType("float32", (ROWS, None))
    (made,) = PREPARE["standardize"].build({}, tensor)(np.stack([samples, samples * 3]))
    np.testing.assert_allclose(made[0], known["standardized"], atol=1e-4)
    np.testing.assert_allclose(made[1], known["standardized"], atol=1e-3)
    with pytest.raises(ValueError, match="all values of the row are the same"):
        PREPARE["standardize"].build({"epsilon": 0}, tensor)(np.ones((1, 4), np.float32))
    with pytest.raises(ValueError, match="all values of the row are the same"):
        PREPARE["standardize"].build({"epsilon": 0}, TensorType("float64", (ROWS, None)))(np.full((1, 3), 0.1))
