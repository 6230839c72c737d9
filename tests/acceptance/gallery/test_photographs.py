"""The gallery's detectors find what nudenet finds, on a photograph of an astronaut (NASA, public domain)."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from support.gallery import applied, deployed, of_file

CROPS = {"face": (100, 0, 400, 300), "nothing": (0, 300, 60, 360), "left": (60, 0, 300, 240)}
"""Squares. nudenet fills pictures up before it scales them, letterbox afterwards, so that others differ a little."""


@pytest.mark.parametrize(("name", "pixels", "points"), [("nudenet", 0.1, 1e-4), ("nudenet-half", 1, 0.01)])
def test_a_detector_finds_what_nudenet_finds(cli: Cli, tmp_path: Path, name: str, pixels: float, points: float) -> None:
    skimage = pytest.importorskip("skimage")
    manifest, inbox = deployed(name, tmp_path)
    whole = inbox / "astronaut.png"
    shutil.copy(Path(skimage.__file__).parent / "data/astronaut.png", whole)
    with Image.open(whole) as photograph:
        for crop, corners in CROPS.items():
            photograph.crop(corners).save(inbox / f"{crop}.png")
        photograph.crop((150, 20, 330, 260)).save(inbox / "tall.png")
    rows = applied(cli, manifest)
    detector = pytest.importorskip("nudenet").NudeDetector()
    assert of_file(rows, "face.png")
    for path in sorted(inbox.iterdir()):
        square = path.stem != "tall"
        found = of_file(rows, path.name)
        agree(found, detector.detect(str(path)), pixels if square else 2, points if square else 0.05)


def agree(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], pixels: float, points: float) -> None:
    """Compare what was found in one picture; nudenet cuts left, top, width and height to whole pixels."""
    assert [row["class"] for row in ours] == [one["class"] for one in theirs]
    np.testing.assert_allclose([row["score"] for row in ours], [one["score"] for one in theirs], atol=points)
    for row, one in zip(ours, theirs, strict=True):
        left, top, right, lower = row["box"]
        cut = np.subtract((left, top, right - left, lower - top), one["box"])
        assert (-pixels <= cut).all()
        assert (cut < 1 + pixels).all()
