"""The gallery's readers of text say what RapidOCR says of the same pictures."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from support.gallery import LINES, applied, deployed, of_file, picture_of

SETTINGS = {"Global.use_cls": False, "Global.log_level": "error", "Rec.rec_batch_num": 1}


def rapidocr(**settings: Any) -> Any:
    """Return RapidOCR with the models that it ships; it downloads none."""
    package = pytest.importorskip("rapidocr")
    models = Path(package.__file__).parent / "models"
    return package.RapidOCR(params={**SETTINGS, "Global.model_root_dir": str(models), **settings})


def write_pages(inbox: Path) -> list[Path]:
    """Write a page of drawn lines, and the scan of a page that scikit-image ships."""
    page = Image.new("RGB", (800, 420), (245, 240, 230))
    for number, line in enumerate(LINES):
        page.paste(picture_of(line, 26 + 3 * number), (30 + 20 * number, 20 + 75 * number))
    page.save(inbox / "drawn.png")
    scans = Path(pytest.importorskip("skimage").__file__).parent / "data"
    shutil.copy(scans / "page.png", inbox)
    return sorted(inbox.iterdir())


def test_pages_are_read_as_rapidocr_reads_them(cli: Cli, tmp_path: Path) -> None:
    manifest, inbox = deployed("ocr", tmp_path)
    pages = write_pages(inbox)
    rows, engine = applied(cli, manifest), rapidocr()
    for page in pages:
        ours, theirs = of_file(rows, page.name), engine(str(page))
        assert [row["text"] for row in ours] == list(theirs.txts)
        np.testing.assert_allclose([row["corners"] for row in ours], theirs.boxes, atol=1)  # whole pixels, both
        np.testing.assert_allclose([row["sure"] for row in ours], theirs.scores, atol=0.03)
    assert [row["text"] for row in of_file(rows, "drawn.png")] == list(LINES)


def test_text_is_found_where_rapidocr_finds_it(cli: Cli, tmp_path: Path) -> None:
    manifest, inbox = deployed("text-places", tmp_path)
    pages = write_pages(inbox)
    rows, engine = applied(cli, manifest), rapidocr()
    for page in pages:
        ours, theirs = of_file(rows, page.name), engine(str(page), use_cls=False, use_rec=False)
        np.testing.assert_allclose([row["corners"] for row in ours], theirs.boxes, atol=1)
        # RapidOCR puts its boxes into the order of reading, but not their scores.
        np.testing.assert_allclose(sorted(row["score"] for row in ours), sorted(theirs.scores), atol=1e-3)


def test_lines_are_read_as_rapidocr_reads_them(cli: Cli, tmp_path: Path) -> None:
    manifest, inbox = deployed("text-lines", tmp_path)
    for number, line in enumerate(LINES):
        picture_of(line, 32 + 7 * number).save(inbox / f"{number}.png")
    rows, engine = applied(cli, manifest), rapidocr()
    assert [row["text"] for row in rows] == list(LINES)
    for row in rows:
        theirs = engine(str(tmp_path / row["path"]), use_det=False, use_cls=False)
        assert row["text"] == theirs.txts[0]
        assert float(row["score"]) == pytest.approx(theirs.scores[0], abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of the package that quantizes
@pytest.mark.parametrize(("name", "tolerance"), [("text-direction", 1e-3), ("text-direction-int8", 0.15)])
def test_lines_lie_as_rapidocr_says(cli: Cli, tmp_path: Path, name: str, tolerance: float) -> None:
    manifest, inbox = deployed(name, tmp_path)
    for number in range(3 * len(LINES)):
        line = picture_of(LINES[number % len(LINES)], 24 + 2 * number, upright=number % 2 == 0)
        line.save(inbox / f"{number:02}.png")
    rows, engine = applied(cli, manifest), rapidocr(**{"Global.use_cls": True})
    for row in rows:
        theirs = engine(str(tmp_path / row["path"]), use_det=False, use_rec=False)
        ((degrees, sure),) = theirs.cls_res
        assert row["degrees"] == degrees
        assert float(row["probability"]) == pytest.approx(float(sure), abs=tolerance)
    right = [row["degrees"] == ("0", "180")[number % 2] for number, row in enumerate(rows)]
    assert np.mean(right) > 0.9
