"""Failed rows whose files were repaired, replaced or taken away: what retry runs, and what apply makes of it afterwards."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli, read_rows
from pyarrow import parquet
from support.jobs import Killed
from support.models import scale_model

from ortdeploy.ledger.ledger import Ledger

MANIFEST = """
version: 1
name: repair
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: INPUT}
    batch: {size: 4}
    output: {path: out, rows_per_part: 4}
    errors: {max_failed: 99, on_nan: fail, ATTEMPTS}
"""
BAD, GOOD = "nan", "7"


def write(folder: Path, text: str, attempts: str = "retries: 0") -> Path:
    manifest = folder / "m.yaml"
    manifest.write_text(MANIFEST.replace("INPUT", text).replace("ATTEMPTS", attempts), encoding="utf-8")
    (folder / "inbox").mkdir(exist_ok=True)
    return manifest


def table(path: Path, cells: list[str], stamp: int) -> None:
    """Write a table of rows of four equal cells, in the format of the suffix."""
    values = [[float(cell)] * 4 for cell in cells]
    if path.suffix == ".csv":
        lines = [",".join([cell] * 4) for cell in cells]
        path.write_text("\n".join(["a,b,c,d", *lines]) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"x": row}) + "\n\n" for row in values))
    elif path.suffix == ".npy":
        np.save(path, np.array(values, dtype=np.float32))
    else:
        column = pa.array(values, pa.list_(pa.float32(), 4))
        parquet.write_table(pa.table({"x": column}), path)
    os.utime(path, ns=(stamp * 10**9, stamp * 10**9))


INPUTS = {
    "csv": "inbox/*.csv, columns: {x: [a, b, c, d]}, key: [path, row]",
    "jsonl": "inbox/*.jsonl, key: [path, row]",
    "npy": "inbox/*.npy, key: [path, row]",
    "parquet": "inbox/*.parquet, key: [path, row]",
}


def values(folder: Path) -> dict[int, float]:
    return {row["row"]: row["y"][0] / 2 for row in sorted(read_rows(folder / "out"), key=lambda row: row["row"])}


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/_failed.jsonl").read_text().splitlines()]


def repairs(folder: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(folder / ".ortdeploy/state.db")) as db:
        rows = db.execute("SELECT path, before, sha256 FROM repairs ORDER BY path").fetchall()
    return [(os.fsdecode(path), before, after) for path, before, after in rows]


@pytest.mark.quick("parquet")
@pytest.mark.parametrize("kind", INPUTS)
def test_a_repaired_file_gives_its_failed_rows_and_no_others(cli: Cli, deployment: Path, kind: str) -> None:
    manifest = write(deployment, INPUTS[kind])
    first, second = deployment / f"inbox/a.{kind}", deployment / f"inbox/b.{kind}"
    table(first, ["0", "1", "2"], 1)
    table(second, ["3", BAD, "5"], 2)
    before = sha256(second.read_bytes()).hexdigest()
    assert cli("apply", manifest).code == 0
    (letter,) = letters(deployment)
    told = {name: letter[name] for name in ("path", "row", "row_in_file", "sha256")}
    assert told == {"path": f"inbox/b.{kind}", "row": 4, "row_in_file": 1, "sha256": before}
    report = json.loads((deployment / "out/_run.json").read_text())
    assert (letter["run"], letter["plan"]) == (report["run"], report["plan"])
    table(second, ["33", GOOD, "55"], 3)
    first.unlink()
    assert cli("apply", manifest).code == 1  # a changed file
    result = cli("retry", manifest, "--job", "run")
    assert result.code == 0, result
    assert values(deployment) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 7, 5: 5}
    assert letters(deployment) == []
    assert repairs(deployment) == [(f"inbox/b.{kind}", before, sha256(second.read_bytes()).hexdigest())]
    assert "nothing to do" in cli("apply", manifest).words
    table(second, ["33", "8", "55"], 4)
    assert cli("apply", manifest).code == 1  # changed once more, for no failed row


@pytest.mark.slow
def test_rows_whose_file_is_gone_or_shorter_stay_failed(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, INPUTS["csv"])
    for number, name in enumerate("abc"):
        table(deployment / f"inbox/{name}.csv", ["1", "1", BAD], number)
    assert cli("apply", manifest).code == 0
    (deployment / "inbox/a.csv").unlink()
    table(deployment / "inbox/b.csv", ["1"], 9)
    table(deployment / "inbox/c.csv", ["1", "1", GOOD], 9)
    result = cli("retry", manifest, "--job", "run")
    assert result.code == 0, result
    assert values(deployment)[8] == 7
    assert [one["row"] for one in letters(deployment)] == [2, 5]
    assert "row.left" in result.err
    assert "the file has no such row any more" in result.err


def test_a_repaired_file_without_a_column_is_told(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, INPUTS["csv"])
    table(deployment / "inbox/a.csv", ["1", BAD], 1)
    table(deployment / "inbox/b.csv", ["1", "1"], 1)
    assert cli("apply", manifest).code == 0
    (deployment / "inbox/a.csv").write_text("a,b,c\n1,1,1\n2,2,2\n")
    (deployment / "inbox/b.csv").unlink()
    result = cli("retry", manifest, "--job", "run")
    assert "Traceback" not in result.err
    assert [one["row"] for one in letters(deployment)] == [1]


@pytest.mark.slow
def test_changed_content_that_counts_as_a_new_file_is_not_what_failed(cli: Cli, deployment: Path) -> None:
    """With `append`, row 1 of the old a.csv is not row 1 of the new one, which has numbers of its own."""
    manifest = write(deployment, INPUTS["csv"] + ", on_change: append")
    table(deployment / "inbox/a.csv", ["0", BAD], 1)
    table(deployment / "inbox/b.csv", ["2", BAD], 2)
    assert cli("apply", manifest).code == 0
    table(deployment / "inbox/a.csv", ["4", "5"], 3)
    assert cli("apply", manifest).code == 0
    assert values(deployment) == {0: 0, 2: 2, 4: 4, 5: 5}
    result = cli("retry", manifest, "--job", "run")
    assert result.code == 0, result
    assert "counts as a new file" in result.err
    assert values(deployment) == {0: 0, 2: 2, 4: 4, 5: 5}
    assert [one["row"] for one in letters(deployment)] == [1, 3]


@pytest.mark.slow
def test_failed_rows_behind_a_reused_name_are_their_own(cli: Cli, deployment: Path) -> None:
    """Rows are found by their file: when a name is used again, the numbers of the files before it do not move."""
    manifest = write(deployment, "inbox/*.npy, key: [path, row], on_change: append")
    table(deployment / "inbox/a.npy", ["0", "1"], 1)
    table(deployment / "inbox/b.npy", ["2", "3e38"], 2)
    assert cli("apply", manifest).code == 0
    table(deployment / "inbox/a.npy", ["4", "5"], 3)
    assert cli("apply", manifest).code == 0
    scale_model(deployment / "double.onnx", factor=0.5)
    text = manifest.read_text()
    manifest.write_text(text.replace("rows_per_part: 4", "rows_per_part: 4, on_upgrade: continue"))
    assert cli("retry", manifest, "--job", "run").code == 0
    found = {row["row"]: row["y"][0] for row in read_rows(deployment / "out")}
    assert found[3] == pytest.approx(1.5e38)
    assert found[4] == 8


def test_a_row_is_not_tried_without_end(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, INPUTS["csv"], "attempts: 2")
    table(deployment / "inbox/a.csv", ["0", BAD], 1)
    assert cli("apply", manifest).code == 0
    for tries in (2, 2):
        result = cli("retry", manifest, "--job", "run")
        assert result.code == 0, result
        assert [one["attempts"] for one in letters(deployment)] == [tries]
    assert "attempts: 2 are behind it" in result.err
    write(deployment, INPUTS["csv"], "attempts: 3")
    assert cli("retry", manifest, "--job", "run").code == 0
    assert [one["attempts"] for one in letters(deployment)] == [3]


@pytest.mark.slow
def test_attempts_begin_anew_when_the_file_changes(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, INPUTS["csv"], "attempts: 2")
    table(deployment / "inbox/a.csv", ["0", BAD], 1)
    assert cli("apply", manifest).code == 0
    for content, stamp, tries in (([BAD], 1, 2), ([BAD], 1, 2), (["inf"], 2, 1), (["inf"], 2, 2), (["inf"], 2, 2)):
        table(deployment / "inbox/a.csv", ["0", *content], stamp)
        assert cli("retry", manifest, "--job", "run").code == 0
        assert [one["attempts"] for one in letters(deployment)] == [tries]
    table(deployment / "inbox/a.csv", ["0", GOOD], 3)
    assert cli("retry", manifest, "--job", "run").code == 0
    assert letters(deployment) == []
    assert "nothing to do" in cli("apply", manifest).out


@pytest.mark.slow
def test_a_repaired_file_is_refused_with_the_way_to_retry_it(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, INPUTS["csv"])
    table(deployment / "inbox/a.csv", ["0", BAD], 1)
    table(deployment / "inbox/b.csv", ["1", "2"], 1)
    assert cli("apply", manifest).code == 0
    table(deployment / "inbox/a.csv", ["0", GOOD], 2)
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "Rows of inbox/a.csv had failed: if that was repaired, run ortdeploy retry with --job run," in " ".join(
        refused.out.split()
    )
    assert cli("retry", manifest, "--job", "run").code == 0
    assert "nothing to do" in cli("apply", manifest).out
    table(deployment / "inbox/b.csv", ["1", "3"], 2)
    assert "ortdeploy retry" not in cli("apply", manifest).out, "no row of it has failed"


@pytest.mark.slow
def test_a_repaired_picture_does_not_keep_an_unfinished_job_from_going_on(cli: Cli, tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415

    scale_model(tmp_path / "double.onnx", width=4)
    manifest = write(tmp_path, "inbox/*.png, format: image, columns: {x: pixels}, key: [path, row]")
    steps = "    prepare: {x: [{grayscale: true}, {cast: float32}, {flatten: true}]}\n    batch: {size: 1}"
    text = manifest.read_text().replace("    batch: {size: 4}", steps).replace("rows_per_part: 4", "rows_per_part: 1")
    manifest.write_text(text.replace("max_failed: 99", "max_failed: 1"))
    for number in range(7):
        Image.fromarray(np.full((2, 2), number, dtype=np.uint8)).save(tmp_path / f"inbox/{number}.png")
    for number in (1, 5):
        (tmp_path / f"inbox/{number}.png").write_bytes(b"half a picture")
    assert cli("apply", manifest).code == 1  # two failed rows are one too many; row 6 never ran
    Image.fromarray(np.full((2, 2), 1, dtype=np.uint8)).save(tmp_path / "inbox/1.png")
    result = cli("retry", manifest, "--job", "run")
    assert result.code == 0, result.words
    applied = cli("apply", manifest)
    assert applied.code == 0, applied
    assert values(tmp_path) == {row: row for row in range(7) if row != 5}
    shutil.copy(tmp_path / "inbox/4.png", tmp_path / "inbox/5.png")
    assert cli("retry", manifest, "--job", "run").code == 0
    assert values(tmp_path)[5] == 4
    assert "nothing to do" in cli("apply", manifest).words


@pytest.mark.slow
@pytest.mark.parametrize("removable", ["true", "false"])
def test_an_output_whose_only_rows_a_retry_has_given_goes_on(deployment: Path, cli: Cli, removable: str) -> None:
    """No part has a file of its own; killed within the retry, none has any."""
    manifest = write(deployment, INPUTS["npy"])
    text = manifest.read_text().replace("rows_per_part", f"removable: {removable}, rows_per_part")
    manifest.write_text(text.replace("INPUT, ", ""))
    table(deployment / "inbox/a.npy", [BAD, BAD], 1)
    assert cli("apply", manifest).code == 0
    assert read_rows(deployment / "out") == []
    table(deployment / "inbox/a.npy", [GOOD, GOOD], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "end_rewrite", kill)
        with pytest.raises(Killed):
            cli("retry", manifest, "--job", "run")
    completed = cli("apply", manifest)
    assert completed.code == 0, completed.words
    assert len(read_rows(deployment / "out")) == 2
    table(deployment / "inbox/b.npy", [GOOD], 3)
    assert cli("apply", manifest).code == 0
    assert len(read_rows(deployment / "out")) == 3
    assert cli("verify", manifest).code == 0


def kill(*_: object, **__: object) -> None:
    raise Killed
