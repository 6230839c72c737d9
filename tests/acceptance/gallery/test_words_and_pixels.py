"""The gallery's models of words and pixels, whose weights are scikit-learn's, give what these classifiers give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from support.gallery import applied, deployed

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that fit


def made() -> Any:
    """Return the functions that fit the gallery's models."""
    import make_models  # noqa: PLC0415  when deployed() has found its packages

    return make_models


def test_pixels_show_what_scikit_learn_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("stain", tmp_path)
    (row,) = applied(cli, manifest)
    with Image.open(tmp_path / "outbox/stain" / row["classes"]) as picture:
        found = np.asarray(picture)
    model, held = made().fitted_stain()
    scores = model.decision_function(made().patches(held))
    best, second = np.sort(scores, axis=1)[:, :-3:-1].T
    clear = best - second > 1e-3
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(found.ravel()[clear], scores.argmax(axis=1)[clear])
    assert set(np.unique(found)) == {0, 1, 2}


def test_parts_and_machines_are_named_as_by_scikit_learn(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("parts", tmp_path)
    rows = applied(cli, manifest)
    tokenizer, model, held = made().fitted_parts()
    assert len(rows) == len(held)
    for row, note in zip(rows, held, strict=True):
        expected = grouped(tokenizer.encode(note), model, tokenizer.get_vocab_size())
        assert [(one["label"], one["start"], one["end"]) for one in row["spans"]] == [one[:3] for one in expected]
        assert [one["score"] for one in row["spans"]] == pytest.approx([one[3] for one in expected], abs=1e-4)
    named = {(span["label"], span["text"]) for row in rows for span in row["spans"]}
    assert ("PART", "drive shaft") in named


def grouped(encoded: Any, model: Any, size: int) -> list[tuple[str, int, int, float]]:
    """Return label, beginning, end and mean probability of each group of tags that go on, as transformers groups."""
    sure = model.predict_proba(made().around(encoded.ids, size))
    spans: list[tuple[str, int, int, list[float]]] = []
    before = "O"
    for place, (left, right) in zip(sure, encoded.offsets, strict=True):
        tag = made().TAGS[place.argmax()]
        if tag.startswith("I-") and before.endswith(tag[2:]):
            label, start, _, scores = spans.pop()
            spans.append((label, start, right, [*scores, place.max()]))
        elif tag != "O":
            spans.append((tag[2:], left, right, [place.max()]))
        before = tag
    return [(label, start, end, float(np.mean(scores))) for label, start, end, scores in spans]
