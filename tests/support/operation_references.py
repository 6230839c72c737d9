"""Writes what other projects' own code makes of small inputs: python tests/support/operation_references.py NAME.

Each NAME needs its package, installed beside numpy; the arrays that are written to tests/data/operations/ are small,
and the tests of operations compare with them where the package is missing, as it usually is.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent.parent / "data/operations"

Arrays = dict[str, np.ndarray]


def ultralytics() -> Arrays:
    """Return raw YOLOv8 and YOLOv10 outputs, and what ultralytics' predictor makes of them."""
    import torch  # noqa: PLC0415
    from ultralytics.data.augment import LetterBox  # noqa: PLC0415
    from ultralytics.utils import ops  # noqa: PLC0415
    from ultralytics.utils.nms import non_max_suppression  # noqa: PLC0415

    raw, decided, image = yolo_inputs()
    found: Arrays = {"raw": raw, "decided": decided, "image": image}
    for name, settings in NMS_SETTINGS.items():
        kept = non_max_suppression(torch.tensor(raw), nc=3, **settings)
        found |= {f"{name}_{row}": one.numpy() for row, one in enumerate(kept)}
    kept = non_max_suppression(torch.tensor(decided), conf_thres=0.4, end2end=True)
    found |= {f"decided_{row}": one.numpy() for row, one in enumerate(kept)}
    boxes = torch.tensor(raw[0, :4].T.copy())
    corners = ops.xywh2xyxy(boxes)
    found["corners"] = corners.numpy()
    found["scaled"] = ops.scale_boxes((96, 128), corners.clone(), image.shape[:2]).numpy()
    found["letterboxed"] = LetterBox((96, 128), auto=False)(image=image)
    return found


def detection() -> Arrays:
    """Return turned boxes, masks and points, and what ultralytics makes of them."""
    import torch  # noqa: PLC0415
    from ultralytics.utils import ops  # noqa: PLC0415
    from ultralytics.utils.nms import non_max_suppression  # noqa: PLC0415

    random = np.random.default_rng(11)
    middles, sides = random.uniform(20, 70, (2, 2, 40)), random.uniform(4, 40, (2, 2, 40))
    turned = np.concatenate(
        [middles, sides, random.beta(1, 3, (2, 2, 40)), random.uniform(-0.7, 2.3, (2, 1, 40))], axis=1
    ).astype(np.float32)
    found: Arrays = {"turned": turned}
    for row, one in enumerate(non_max_suppression(torch.tensor(turned), 0.25, 0.3, nc=2, rotated=True)):
        found |= {f"kept_{row}": one.numpy(), f"corners_{row}": ops.xywhr2xyxyxyxy(one[:, [0, 1, 2, 3, -1]]).numpy()}
    protos, factors = random.normal(size=(4, 24, 32)).astype(np.float32), random.normal(size=(3, 4)).astype(np.float32)
    low = random.uniform(0, 30, (3, 2))
    boxes = np.concatenate([low, low + random.uniform(10, 40, (3, 2))], axis=1).astype(np.float32)
    found |= {"protos": protos, "factors": factors, "boxes": boxes}
    for height, width in MASK_SIZES:
        made = ops.process_mask_native(
            torch.tensor(protos), torch.tensor(factors), torch.tensor(boxes), (height, width)
        )
        found[f"masks_{height}_{width}"] = np.packbits(made.numpy().astype(bool))
    points = random.uniform(-5, 130, (2, 3, 3)).astype(np.float32)
    found |= {"points": points, "scaled": ops.scale_coords((96, 128), torch.tensor(points.copy()), (37, 61)).numpy()}
    return found


def sound() -> Arrays:
    """Return what librosa and transformers make of a recording: loudness in bands of mel, standardized samples."""
    import librosa  # noqa: PLC0415
    from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor  # noqa: PLC0415

    samples = recording()
    found: Arrays = {}
    whisper = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    found["whisper"] = whisper(samples, sampling_rate=16000, return_tensors="np", padding="do_not_pad").input_features[
        0
    ]
    given = {"y": samples, "sr": 16000, "n_fft": 512, "hop_length": 200, "n_mels": 24}
    found["slaney"] = librosa.feature.melspectrogram(**given)
    found["db"] = librosa.power_to_db(found["slaney"])
    found["htk"] = librosa.feature.melspectrogram(
        **given, htk=True, norm=None, fmin=50, fmax=7000, power=1, center=False
    )
    found["standardized"] = Wav2Vec2FeatureExtractor()(samples, sampling_rate=16000).input_values[0]
    return {name: np.asarray(one, np.float32) for name, one in found.items()}


def recording() -> np.ndarray:
    """Return float32 [4000]: a tone that rises, and noise."""
    time = np.arange(4000) / 16000
    noise = np.random.default_rng(9).normal(0, 0.02, 4000)
    return (0.4 * np.sin(2 * np.pi * (300 + 3000 * time) * time) + noise + 0.01).astype(np.float32)


MASK_SIZES = ((37, 61), (50, 40), (96, 128))


NMS_SETTINGS: Mapping[str, Mapping[str, float | bool | list[int]]] = {
    "best": {"conf_thres": 0.25, "iou_thres": 0.45},
    "all": {"conf_thres": 0.2, "iou_thres": 0.6, "multi_label": True},
    "agnostic": {"conf_thres": 0.25, "iou_thres": 0.45, "agnostic": True},
    "few": {"conf_thres": 0.1, "iou_thres": 0.7, "max_det": 5, "classes": [0, 2]},
}


def yolo_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return float32 [2, 4 + 3, 60], float32 [2, 20, 6] and uint8 [37, 61, 3]."""
    random = np.random.default_rng(7)
    raw = np.concatenate(
        [random.uniform(10, 90, (2, 2, 60)), random.uniform(15, 50, (2, 2, 60)), random.beta(1, 4, (2, 3, 60))], axis=1
    )
    middles, sides = random.uniform(10, 90, (2, 20, 2)), random.uniform(5, 20, (2, 20, 2))
    decided = np.concatenate(
        [middles - sides, middles + sides, random.uniform(0, 1, (2, 20, 1)), random.integers(0, 3, (2, 20, 1))], axis=2
    )
    return raw.astype(np.float32), decided.astype(np.float32), picture(37, 61)


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Return a picture with edges, slopes and noise, uint8 [height, width, channels]."""
    random = np.random.default_rng(height * width)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / (3 + one) + y / (5 - one)) for one in range(channels)]
    made = np.stack(waves, axis=2) + random.normal(0, 12, (height, width, channels))
    made[height // 3 : height // 2, width // 4 : width // 2] = 250
    return made.clip(0, 255).astype(np.uint8)


SIZES = ((7, 9), (40, 31), (13, 50), (30, 22), (60, 20), (5, 80))
"""What a picture of 26 x 44 pixels is resized to."""


def opencv() -> Arrays:
    """Return a picture, and what cv2.resize makes of it."""
    import cv2  # noqa: PLC0415

    image = picture(26, 44)
    found: Arrays = {"image": image}
    for method, number in (("nearest", 0), ("bilinear", 1), ("bicubic", 2), ("area", 3), ("lanczos", 4)):
        for height, width in SIZES:
            found[f"{method}_{height}_{width}"] = cv2.resize(image, (width, height), interpolation=number)
            floating = cv2.resize(image.astype(np.float32), (width, height), interpolation=number)
            found[f"{method}_{height}_{width}_float"] = floating.astype(np.float16)
    return found


def torchvision() -> Arrays:
    """Return heights and widths of pictures, and those that torchvision's Resize makes of them."""
    from PIL import Image  # noqa: PLC0415
    from torchvision.transforms import Resize  # noqa: PLC0415

    rows = []
    for height, width in np.random.default_rng(3).integers(20, 400, (60, 2)).tolist():
        shortest, longest = Resize(37), Resize(37, max_size=60)
        made = [one(Image.new("L", (width, height))) for one in (shortest, longest)]
        rows.append([height, width, *made[0].size[::-1], *made[1].size[::-1]])
    return {"sizes": np.array(rows)}


def rapidocr() -> Arrays:
    """Return maps of text with the boxes that RapidOCR finds, crops of a picture, and texts of probabilities."""
    from rapidocr.ch_ppocr_det.main import TextDetector  # noqa: PLC0415
    from rapidocr.ch_ppocr_det.utils import DBPostProcess  # noqa: PLC0415
    from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode  # noqa: PLC0415
    from rapidocr.utils.process_img import get_rotate_crop_image  # noqa: PLC0415

    found: Arrays = {"maps": np.stack([text_map(seed) for seed in range(6)])}
    for dilated in (True, False):
        find = DBPostProcess(thresh=0.3, box_thresh=0.5, unclip_ratio=1.6, use_dilation=dilated)
        for seed, heat in enumerate(found["maps"].astype(np.float32)):
            boxes, scores = find(heat[None, None], (240, 384))
            found[f"boxes_{dilated}_{seed}"] = TextDetector.sorted_boxes(boxes)
            found[f"scores_{dilated}_{seed}"] = np.sort(scores)
    image = picture(90, 120)
    found["image"], found["corners"] = image, CORNERS
    for place, corners in enumerate(CORNERS):
        found[f"crop_{place}"] = get_rotate_crop_image(image, corners.copy())
    random = np.random.default_rng(2)
    scores = np.exp(random.normal(0, 3, (8, 20, 7)))
    found["shares"] = (scores / scores.sum(axis=2, keepdims=True)).astype(np.float32)
    lines, _ = CTCLabelDecode(character=list("abcde"))(found["shares"])
    found["texts"], found["confidences"] = (np.array(column) for column in zip(*lines, strict=True))
    return found


CORNERS = np.array(
    [
        [[10, 12], [80, 4], [83, 30], [13, 38]],
        [[30, 10], [50, 12], [46, 80], [26, 78]],
        [[0, 60], [119, 60], [119, 89], [0, 89]],
        [[60, 20], [110, 25], [100, 60], [58, 50]],
    ],
    np.float32,
)
"""Corners of boxes in a picture of 90 x 120 pixels: slanted, running down, at the edges, and no rectangle."""


def text_map(seed: int) -> np.ndarray:
    """Return a map of slanted lines that fade at their edges, float16 [80, 128]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:80, :128]
    heat = np.zeros(x.shape)
    for row in range(4):
        angle = np.radians(random.uniform(-12, 12) if seed else 0)
        right, down = x - random.uniform(40, 90), y - 12 - 19 * row
        along = np.cos(angle) * right + np.sin(angle) * down
        across = np.cos(angle) * down - np.sin(angle) * right
        beside = np.maximum(np.abs(along) - random.uniform(12, 30), np.abs(across) - random.uniform(3, 5))
        heat = np.maximum(heat, random.uniform(0.5, 1) / (1 + np.exp(3 * beside)))
    return heat.astype(np.float16)


MAKERS: dict[str, Callable[[], Arrays]] = {
    "detection": detection,
    "opencv": opencv,
    "rapidocr": rapidocr,
    "sound": sound,
    "torchvision": torchvision,
    "ultralytics": ultralytics,
}


def main(name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    arrays = MAKERS[name]()
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1])
