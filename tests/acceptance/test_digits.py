"""The demonstration: real scans, a trained network, and plain onnxruntime for comparison."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from conftest import REPOSITORY, Cli
from PIL import Image

EXAMPLES = REPOSITORY / "deployments"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, so that nothing is written into the repository."""
    ignore = shutil.ignore_patterns("outbox", ".ortdeploy", "__pycache__")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "deployments", ignore=ignore))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_example_validates_and_plans(cli: Cli, examples: Path, path: Path) -> None:
    assert cli("validate", examples / path.name).code == 0
    result = cli("plan", examples / path.name)
    assert result.code == 0, result.out


def read_result(folder: Path) -> list[dict[str, str]]:
    text = "".join(path.read_text() for path in sorted(folder.glob("part-*.csv")))
    return list(csv.DictReader(io.StringIO(text)))


def plain_probabilities(folder: Path, rows: list[dict[str, str]]) -> np.ndarray:
    """The same pictures through onnxruntime by hand, in the same batches."""
    session = onnxruntime.InferenceSession(str(folder / "models/digits.onnx"), providers=["CPUExecutionProvider"])
    pictures = np.stack([np.asarray(Image.open(folder / row["path"]))[None] for row in rows])
    images = pictures.astype(np.float32) * np.float32(0.00416666666)
    scores = np.concatenate(
        [session.run(["scores"], {"image": images[i : i + 64]})[0] for i in range(0, len(images), 64)]
    )
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def test_the_digits_are_read_right_and_bit_for_bit_as_by_hand(cli: Cli, examples: Path) -> None:
    result = cli("apply", examples / "digits.yaml")
    assert result.code == 0, result.out
    rows = read_result(examples / "outbox/digits")
    assert len(rows) == 360
    with (EXAMPLES / "digits/labels.csv").open() as file:
        labels = {row["path"]: row["label"] for row in csv.DictReader(file)}
    right = sum(labels[row["path"]] == row["digit"] for row in rows)
    assert right / len(rows) >= 0.97
    probabilities = plain_probabilities(examples, rows)
    assert [int(row["digit"]) for row in rows] == probabilities.argmax(axis=1).tolist()
    assert [np.float32(row["probability"]) for row in rows] == probabilities.max(axis=1).tolist()


def test_model_and_pictures_are_small_and_named_with_their_licence() -> None:
    made = {"outbox", ".ortdeploy", "embedder.onnx", "__pycache__"}  # by runs, and by a script from published weights
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and not made & set(path.parts)]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert "CC BY 4.0" in (EXAMPLES / "README.md").read_text()


def test_several_callers_of_one_session_read_the_same_digits(cli: Cli, examples: Path) -> None:
    sessions = "models.digits.sessions=[{name: cpu, providers: [CPU], callers: 2}]"
    manifest = (examples / "digits.yaml").read_text().replace("    providers: [CPU]\n", "")
    (examples / "digits.yaml").write_text(manifest)
    result = cli("apply", examples / "digits.yaml", "--set", sessions, "--set", "jobs.read.batch.size=8")
    assert result.code == 0, result.out + result.err
    report = json.loads((examples / "outbox/digits/_run.json").read_text())
    assert [one["instance"] for one in report["sessions"]] == [0, 1]
    assert sum(one["rows"] for one in report["sessions"]) == 360
    rows = read_result(examples / "outbox/digits")
    probabilities = plain_probabilities(examples, rows)
    assert [int(row["digit"]) for row in rows] == probabilities.argmax(axis=1).tolist()


@pytest.mark.slow
def test_threads_auto_measures_once_and_reads_the_same_digits(cli: Cli, examples: Path) -> None:
    auto = ["--set", "models.digits.threads=auto", "--set", "models.digits.session={}"]
    planned = cli("plan", examples / "digits.yaml", *auto)
    assert "the best of these is measured" in planned.out or len(os.sched_getaffinity(0)) == 1, planned.out
    assert cli("apply", examples / "digits.yaml", *auto).code == 0
    report = json.loads((examples / "outbox/digits/_run.json").read_text())
    assert report["rows"]["committed"] == 360
    if len(os.sched_getaffinity(0)) > 1:
        assert report["layout"] in planned.out
