"""Jobs that read other jobs, and dead letters of another machine, from the command line."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from support.models import gather_model, scale_model

MANIFEST = """\
version: 1
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  second:
    model: double
    input: {job: first, columns: {x: COLUMN}, key: [KEYS]}
    output: {path: out/second, format: jsonl}
  first:
    model: double
    input: {path: data*.npy, key: [path, row]}
    output: {path: out/first, rows_per_part: 32, OUTPUT}
"""


def write(
    folder: Path, *, column: str = "y", keys: str = "path, row_of_first", output: str = "format: parquet"
) -> None:
    text = MANIFEST.replace("COLUMN", column).replace("KEYS", keys).replace("OUTPUT", output)
    (folder / "m.yaml").write_text(text, encoding="utf-8")


@pytest.mark.quick(0, 4)
@pytest.mark.parametrize(
    ("output", "column", "keys"),
    [
        ("format: parquet", "y", "path, row_of_first"),
        ("format: arrow", "y", "path, row_of_first"),
        ("format: jsonl", "y", "path, row_of_first"),
        ("format: npz", "y", "path, row_of_first"),
        ("format: csv", "y*", "path, row_of_first"),
        ("format: npy", "y", "row"),
    ],
)
def test_every_format_is_read_as_it_was_declared(
    cli: Cli, deployment: Path, output: str, column: str, keys: str
) -> None:
    write(deployment, column=column, keys=keys, output=output)
    if "npy" in output:
        text = (deployment / "m.yaml").read_text().replace("key: [path, row]}", "columns: {x: array}}")
        (deployment / "m.yaml").write_text(text)
    planned = cli("plan", deployment / "m.yaml")
    assert planned.code == 0, planned
    assert "run job second: an unknown number of rows of what job first commits" in planned.words
    before = _inputs(cli, deployment)
    assert cli("apply", deployment / "m.yaml").code == 0
    found = read_rows(deployment / "out/second")
    assert [row["y"] for row in found] == (np.load(deployment / "data.npy") * 4).tolist()
    if "npy" not in output:
        assert [(row["path"], int(row["row_of_first"])) for row in found] == [("data.npy", row) for row in range(20)]
    assert "job second: nothing to do" in cli("apply", deployment / "m.yaml").words
    np.save(deployment / "data2.npy", np.ones((3, 4), np.float32))
    assert _inputs(cli, deployment) == before, "what it reads is as it was declared"
    assert cli("apply", deployment / "m.yaml").code == 0
    assert len(read_rows(deployment / "out/second")) == 23


def _inputs(cli: Cli, folder: Path) -> Any:
    plan = json.loads(cli("plan", folder / "m.yaml", "--format", "json").out)
    (step,) = (step for step in plan["steps"] if step.get("job") == "second")
    return step["inputs"], step["input"]["upstream"]["names"]


@pytest.mark.slow
def test_lines_of_items_are_rows(cli: Cli, deployment: Path) -> None:
    write(deployment, column="y", keys="row_of_first, item", output="format: parquet, explode: y")
    scale_model(deployment / "one.onnx", width=1, factor=3)
    text = (deployment / "m.yaml").read_text().replace("key: [path, row]", "key: [path]")
    text = text.replace("models: {", "models: {one: {path: one.onnx, providers: [CPU]}, ")
    (deployment / "m.yaml").write_text(text.replace("  second:\n    model: double", "  second:\n    model: one"))
    assert cli("apply", deployment / "m.yaml").code == 0
    found = read_rows(deployment / "out/second")
    assert [(row["row_of_first"], row["item"]) for row in found] == [
        (row, item) for row in range(20) for item in range(4)
    ]
    assert [row["y"][0] for row in found] == (np.load(deployment / "data.npy").ravel() * 6).tolist()


def test_status_says_what_readers_need(cli: Cli, deployment: Path) -> None:
    write(deployment, output="removable: true")
    assert cli("apply", deployment / "m.yaml", "--job", "first").code == 0
    assert "first: second still needs 1 file: part-00000000.jsonl" in cli("status", deployment / "m.yaml").words
    assert "carried away" not in cli("status", deployment / "m.yaml").words
    assert cli("apply", deployment / "m.yaml").code == 0
    shown = cli("status", deployment / "m.yaml").words
    assert "first: 1 file may be carried away, every reader has them: part-00000000.jsonl" in shown
    (first,) = json.loads(cli("status", deployment / "m.yaml", "--format", "json", "--job", "first").out)["jobs"]
    assert first["read"] == [{"file": "part-00000000.jsonl", "needed_by": []}]
    (deployment / "out/first/part-00000000.jsonl").unlink()
    assert "carried away" not in cli("status", deployment / "m.yaml").words
    assert cli("apply", deployment / "m.yaml").code == 0


def test_status_shows_the_jobs_that_are_asked_for(cli: Cli, deployment: Path) -> None:
    write(deployment)
    assert "second" not in cli("status", deployment / "m.yaml", "--exclude", "s*").out
    assert "first" not in cli("status", deployment / "m.yaml", "--job", "sec*").out
    assert cli("status", deployment / "m.yaml", "--job", "third").code == 64


def test_a_saved_plan_of_both_runs_and_is_nothing_to_do_after_that(cli: Cli, deployment: Path) -> None:
    write(deployment)
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    assert cli("apply", plan).code == 0
    assert len(read_rows(deployment / "out/second")) == 20
    again = cli("apply", plan)
    assert again.code == 0, again
    assert "job second: nothing to do" in again.words


def test_a_glob_over_another_output_points_to_the_job(cli: Cli, deployment: Path) -> None:
    write(deployment)
    text = (deployment / "m.yaml").read_text().replace("{job: first,", "{path: out/first/*.parquet,")
    (deployment / "m.yaml").write_text(text)
    assert "Write input: {job: first} to read the rows that it commits" in cli("validate", deployment / "m.yaml").words


@pytest.mark.slow
def test_try_shows_the_rows_of_both(cli: Cli, deployment: Path) -> None:
    write(deployment)
    tried = cli("try", deployment / "m.yaml", "--rows", 2)
    assert tried.code == 0, tried
    assert "row_of_first" in tried.out
    assert not (deployment / "out").exists()


LETTERS = """\
version: 1
models: {table: {path: table.onnx, providers: [CPU]}}
jobs:
  run:
    model: table
    input: {path: inbox/*.jsonl, key: [path, name]}
    output: {path: out, format: jsonl}
    errors: {max_failed: 100%}
  other:
    model: table
    input: {path: inbox/*.jsonl, key: [name]}
    output: {path: other, format: jsonl}
    errors: {max_failed: 100%}
"""


def machine(folder: Path, rows: Mapping[str, list[dict[str, Any]]]) -> Path:
    (folder / "inbox").mkdir(parents=True)
    gather_model(folder / "table.onnx", computed=True)
    (folder / "m.yaml").write_text(LETTERS)
    for name, lines in rows.items():
        (folder / "inbox" / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_dead_letters_of_another_machine_run_here(cli: Cli, tmp_path: Path) -> None:
    rows = [{"index": index, "name": f"n{index}", "path": f"camera/{index}"} for index in (1, 70, 2, 80)]
    there = machine(tmp_path / "there", {"a.jsonl": rows})
    assert cli("apply", there / "m.yaml", "--job", "run").code == 0
    letters = [json.loads(line) for line in (there / "out/_failed.jsonl").read_text().splitlines()]
    assert [(one["path"], one["row"], one["row_in_file"]) for one in letters] == [
        ("inbox/a.jsonl", 1, 1), ("inbox/a.jsonl", 3, 3),
    ]  # fmt: skip
    assert letters[0]["key"] == {"path": "camera/70", "name": "n70"}, "what the row calls its path is a key"
    assert cli("retry", there / "m.yaml", "--job", "run").code == 0
    here = tmp_path / "here"
    shutil.copytree(there, here, ignore=shutil.ignore_patterns("out", ".ortdeploy"))
    asked = (here / "m.yaml", "--from", there / "out/_failed.jsonl")
    assert cli("retry", *asked, "--job", "*").code == 64
    done = cli("retry", *asked, "--job", "*", "--exclude", "other")
    assert done.code == 0, done
    assert [(one["row"], one["row_in_file"]) for one in map(json.loads, (here / "out/_failed.jsonl").read_text().splitlines())] == [
        (0, 1), (1, 3),
    ]  # fmt: skip
    assert "nothing to do" in cli("apply", here / "m.yaml", "--job", "run").words
    (tmp_path / "empty.jsonl").write_text("")
    nothing = cli("retry", here / "m.yaml", "--job", "run", "--from", tmp_path / "empty.jsonl")
    assert "nothing to do, no row of the file is to be run here" in nothing.words
    assert cli("retry", here / "m.yaml", "--job", "run", "--from", tmp_path / "none.jsonl").code == 1


def test_tune_says_that_it_runs_jobs_that_read_files(cli: Cli, deployment: Path) -> None:
    write(deployment)
    refused = cli("tune", deployment / "m.yaml", "--job", "second")
    assert refused.code == 64
    assert 'job "second" reads the rows of job "first"' in refused.words


@pytest.mark.quick("True")
@pytest.mark.parametrize("removable", [False, True])
def test_rows_of_a_changed_file_run_in_both_jobs_and_no_others(cli: Cli, deployment: Path, removable: bool) -> None:
    output = "rows_per_part: 4, format: jsonl"
    write(deployment, output="format: jsonl, removable: true" if removable else "format: jsonl")
    text = (deployment / "m.yaml").read_text().replace("key: [path, row]}", "key: [path, row], on_change: rerun}")
    text = text.replace("rows_per_part: 32", "rows_per_part: 4").replace("second, format: jsonl", f"second, {output}")
    text = text.replace("    output:", "    batch: {size: 2}\n    output:")
    (deployment / "m.yaml").write_text(text)
    (deployment / "data.npy").unlink()
    for number in range(3):
        np.save(deployment / f"data{number}.npy", np.full((4, 4), number, np.float32))
    assert cli("apply", deployment / "m.yaml").code == 0
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(deployment.glob("out/*/part-*"))}
    np.save(deployment / "data1.npy", np.full((4, 4), 7, np.float32))
    os.utime(deployment / "data1.npy", ns=(1, 1))
    if removable:
        (deployment / "out/first/part-00000001.jsonl").unlink()
        del before[deployment / "out/first/part-00000001.jsonl"]
    assert cli("apply", deployment / "m.yaml").code == 0
    stays = {path for path in before if path.name != "part-00000001.jsonl" or path.parent.name == "first"}
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in stays} == {
        path: before[path] for path in stays
    }
    assert (deployment / "out/first/part-00000001.r1.jsonl").exists()
    found = [(row["path"], row["row_of_first"], row["y"][0]) for row in read_rows(deployment / "out/second")]
    assert found == [
        *(("data0.npy", row, 0.0) for row in range(4)),
        *(("data2.npy", row, 8.0) for row in range(8, 12)),
        *(("data1.npy", row, 28.0) for row in range(4, 8)),
    ]
    assert "nothing to do" in cli("apply", deployment / "m.yaml").words
    assert cli("verify", deployment / "m.yaml").code == 0
