"""The gallery's identifier of files says what magika's model says."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, Cli
from support.gallery import applied, deployed


def test_files_are_of_the_type_that_magika_says(cli: Cli, tmp_path: Path) -> None:
    manifest, inbox = deployed("magika", tmp_path)
    for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "deployments/models").glob("*.onnx")]:
        (inbox / path.name).write_bytes(path.read_bytes())
    (inbox / "noise.bin").write_bytes(np.random.default_rng(3).integers(0, 256, 9000, np.uint8).tobytes())
    (inbox / "rows.json").write_text(json.dumps([{"id": number} for number in range(2000)]))
    (inbox / "short.txt").write_text("\n hello world, it is short \t\n")
    rows = applied(cli, manifest)
    magika = pytest.importorskip("magika").Magika()
    assert len(rows) == len([*inbox.iterdir()]) > 7
    for row in rows:
        says = magika.identify_path(tmp_path / row["path"]).prediction
        assert row["type"] == says.dl.label
        assert float(row["score"]) == pytest.approx(says.score, rel=1e-3)  # which is of one row, not of a batch
