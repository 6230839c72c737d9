"""Random cases of steps, held against the libraries that users know them from; those that are not installed are skipped.

What continuous integration installs is Pillow, libsoxr and tokenizers. The others are compared where somebody has them.
"""

from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.effort import effort
from support.operation_references import picture

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

CASES = effort(8, 300)


def done(name: str, options: dict[str, Any], **values: Array) -> list[Array]:
    """Return the results of a step for one row, and see that it gives what it promised."""
    layout = {3: "NHWC"} if name in {"resize", "center_crop", "letterbox"} else {}
    types = {key: TensorType(one.dtype.name, (ROWS, *one.shape), layout.get(one.ndim)) for key, one in values.items()}
    promised = OPERATIONS[name].infer(options, types)
    made = [
        np.asarray(one[0]) for one in OPERATIONS[name].build(options, types)({k: v[None] for k, v in values.items()})
    ]
    for one, found in zip(promised, made, strict=True):
        known = [
            (size, there)
            for size, there in zip((one.shape or ())[1:], found.shape, strict=False)
            if isinstance(size, int)
        ]
        assert all(size == there for size, there in known), (one, found.shape)
    return made


def sizes(seed: int, count: int, most: int = 120) -> list[int]:
    return [int(size) for size in np.random.default_rng(seed).integers(2, most, count)]


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos", "area"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pictures_are_resized_as_by_opencv(method: str, dtype: str) -> None:
    cv2 = pytest.importorskip("cv2")
    number = {"nearest": 0, "bilinear": 1, "bicubic": 2, "area": 3, "lanczos": 4}[method]
    for seed in range(CASES):
        height, width, high, wide = sizes(seed, 4)
        image = picture(height, width, 1 + 2 * (seed % 2)).astype(dtype)
        (made,) = done("resize", {"resize": [high, wide], "sampling": "opencv", "method": method}, x=image)
        wanted = cv2.resize(image, (wide, high), interpolation=number).reshape(made.shape).astype(np.float64)
        exact = dtype == "uint8" and method in {"nearest", "bilinear"}
        np.testing.assert_allclose(made, wanted, atol=0 if exact else 1 if dtype == "uint8" else 2e-3)


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_pictures_are_resized_and_cropped_as_by_torchvision(method: str) -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    for seed in range(CASES):
        height, width, shortest, more, high, wide = sizes(seed, 6)
        longest = {"longest": shortest + more} if seed % 2 else {}
        image = picture(height, width)
        (made,) = done("resize", {"resize": {"shortest": shortest, **longest}, "method": method}, x=image)
        how = functional.InterpolationMode(method)
        wanted = functional.resize(Image.fromarray(image), shortest, how, max_size=longest.get("longest"))
        np.testing.assert_array_equal(made, np.asarray(wanted))
        crop = [min(high, made.shape[0]), min(wide, made.shape[1])]
        (made,) = done("center_crop", {"center_crop": crop, "like": "torchvision"}, x=made)
        np.testing.assert_array_equal(made, np.asarray(functional.center_crop(wanted, crop)))


def test_pictures_are_fitted_as_by_ultralytics() -> None:
    augment = pytest.importorskip("ultralytics.data.augment")
    for seed in range(CASES):
        height, width, high, wide = sizes(seed, 4, 300)
        image = picture(height, width)
        made, _ = done("letterbox", {"size": [high, wide], "sampling": "opencv"}, image=image)
        np.testing.assert_array_equal(made, augment.LetterBox((high, wide), auto=False)(image=image))


def test_boxes_are_suppressed_as_by_torchvision() -> None:
    ops, torch = pytest.importorskip("torchvision.ops"), pytest.importorskip("torch")
    for seed in range(CASES):
        random = np.random.default_rng(seed)
        low = random.uniform(0, 60, (1 + seed, 2))
        boxes = np.concatenate([low, low + random.uniform(0, 40, low.shape)], axis=1).astype(np.float32)
        scores = random.uniform(0, 1, (len(low), 3)).astype(np.float32)
        iou, least = random.uniform(0.05, 0.9, 2).tolist()
        _, _, classes, places = done("nms", {"iou": iou, "score": least, "max": 9999}, boxes=boxes, scores=scores)[:4]
        place, of = np.nonzero(scores >= least)
        kept = ops.batched_nms(*map(torch.tensor, (boxes[place], scores[place, of], of)), iou).numpy()
        assert list(zip(places, classes, strict=True)) == list(zip(place[kept], of[kept], strict=True))


@pytest.mark.filterwarnings("ignore:Empty filters")
def test_bands_of_any_settings_are_those_of_librosa() -> None:
    librosa = pytest.importorskip("librosa")
    for seed in range(CASES):
        random = np.random.default_rng(seed)
        sound = random.normal(size=int(random.integers(1500, 20000))).astype(np.float32)
        rate, size = int(random.choice([8000, 16000, 22050, 44100])), int(random.choice([256, 400, 1001]))
        hop, bands, low = int(random.integers(40, size)), int(random.integers(4, 128)), int(random.integers(0, 300))
        htk, power = bool(seed % 2), 1 + seed % 3 % 2
        norm, pad = ("none", "slaney")[seed % 4 // 2], ("reflect", "zeros", "none")[seed % 3]
        (made,) = done(
            "log_mel",
            {
                "log_mel": bands,
                "rate": rate,
                "size": size,
                "hop": hop,
                "scale": "htk" if htk else "slaney",
                "as": "power",
            }
            | {"norm": norm, "low": low, "high": rate / 2.5, "power": power, "pad": pad},
            x=sound,
        )
        wanted = librosa.feature.melspectrogram(
            y=sound, sr=rate, n_fft=size, hop_length=hop, n_mels=bands, htk=htk, norm=None if norm == "none" else norm,
            fmin=low, fmax=rate / 2.5, power=power, center=pad != "none",
            pad_mode="reflect" if pad == "reflect" else "constant",
        )  # fmt: skip
        np.testing.assert_allclose(made, wanted, atol=1e-5 * wanted.max())


def test_bands_and_rows_are_those_of_the_extractors_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for seed in range(min(CASES, 20)):
        random = np.random.default_rng(seed)
        sound = random.normal(0, 0.1, int(random.integers(2000, 480_000))).astype(np.float32)
        bands = (80, 128)[seed % 2]
        taken = {"sampling_rate": 16000, "return_tensors": "np"}
        whisper = transformers.WhisperFeatureExtractor(feature_size=bands)(sound, **taken).input_features[0]
        whole = np.pad(sound, (0, 480_000 - len(sound)))
        np.testing.assert_allclose(done("log_mel", {"log_mel": bands, "as": "whisper"}, x=whole)[0], whisper, atol=1e-3)
        wav2vec = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)(sound, **taken).input_values[0]
        np.testing.assert_allclose(done("standardize", {}, x=sound)[0], wav2vec, atol=1e-5)


def test_recordings_of_any_two_rates_are_resampled_as_by_librosa() -> None:
    """librosa calls libsoxr for its default, soxr_hq; the length is the one that librosa rounds up."""
    soxr = pytest.importorskip("soxr")
    for seed in range(CASES):
        random = np.random.default_rng(seed)
        sound = random.normal(0, 0.1, int(random.integers(2, 9000))).astype(np.float32)
        before, after = (
            int(rate) for rate in random.choice([8000, 11025, 16000, 22050, 44100, 48000], 2, replace=False)
        )
        (made,) = done("resample", {"resample": after, "from": before}, x=sound)
        wanted = soxr.resample(sound, before, after, quality="HQ")
        assert len(made) == -(-len(sound) * after // before)
        count = min(len(made), len(wanted))
        np.testing.assert_allclose(made[:count], wanted[:count], atol=1e-6)


def test_speech_is_where_silero_has_it() -> None:
    silero, torch = pytest.importorskip("silero_vad"), pytest.importorskip("torch")

    class Known(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, probabilities: Array) -> None:
            super().__init__()
            self.left = list(probabilities)

        def reset_states(self) -> None:
            """Keep what is left."""

        def forward(self, *_: object) -> Any:
            return torch.tensor([[self.left.pop(0)]])

    for seed in range(CASES):
        random = np.random.default_rng(seed)
        steps = np.repeat(random.uniform(0, 1, 20), 3).astype(np.float32)
        none = {"min_speech_duration_ms": 0, "min_silence_duration_ms": 0, "speech_pad_ms": 0}
        found = silero.get_speech_timestamps(torch.zeros(512 * len(steps)), Known(steps), threshold=0.5, **none)
        spans, _ = done("time_spans", {"step": 0.032, "begin": 0.5, "end": 0.35}, x=steps)
        wanted = [[one["start"] / 16000, one["end"] / 16000] for one in found]
        np.testing.assert_allclose(spans.reshape(-1, 2), np.reshape(wanted, (-1, 2)), atol=1e-9)
