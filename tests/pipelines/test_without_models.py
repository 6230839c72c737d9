"""Pipelines of steps alone: no model runs, over files or over the rows of another job."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli

MANIFEST = """\
version: 1
pipelines:
  judge:
    steps:
      - {op: GreaterOrEqual, in: {A: $score, B: 0.5}, out: alarm}
      - {op: LabelEncoder, domain: ai.onnx.ml, opset: 4, in: {X: $device}, attributes: {keys_strings: [pump1], values_floats: [0.3], default_float: 0.6}, out: limit}
    outputs: {alarm: $alarm, score: $score, limit: $limit}
  tell:
    steps:
      - {op: Where, in: {condition: $alarm, X: ALARM, Y: ok}, out: told}
    outputs: {told: $told}
  count:
    steps:
      - {do: threshold, in: {x: $score, at: 0.6}, out: high}
    outputs: {high: $high}
jobs:
  first: {pipeline: judge, input: {path: d.csv, key: [device]}, output: {path: out/first, format: parquet}}
  second: {pipeline: tell, input: {job: first, key: [device]}, output: {path: out/second, format: csv}}
  third: {pipeline: count, input: {job: first, key: [device]}, output: {path: out/third, format: jsonl}}
"""


def test_steps_alone_run_over_files_and_over_rows_of_a_job(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "d.csv").write_text("device,score\npump1,0.7\npump2,0.25\n")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    assert (tmp_path / "out/second/part-00000000.csv").read_text() == "device,told\npump1,ALARM\npump2,ok\n"
    third = (tmp_path / "out/third/part-00000000.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in third] == [
        {"device": "pump1", "high": True},
        {"device": "pump2", "high": False},
    ]
    again = cli("apply", tmp_path / "m.yaml")
    assert "nothing to do" in again.out


def test_a_row_that_operations_alone_cannot_take_fails_and_is_retried(tmp_path: Path, cli: Cli) -> None:
    text = MANIFEST[: MANIFEST.index("  judge:")] + MANIFEST[MANIFEST.index("  count:") : MANIFEST.index("jobs:")]
    job = "jobs: {r: {pipeline: count, input: {path: d.csv}, output: {path: out}, errors: {max_failed: 1}}}\n"
    (tmp_path / "d.csv").write_text("score\n0.7\nhigh\n")
    (tmp_path / "m.yaml").write_text(text + job)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert (tmp_path / "out/part-00000000.jsonl").read_text() == '{"high": true}\n'
    assert "high" in (tmp_path / "out/_failed.jsonl").read_text()


def test_what_may_be_a_column_of_text_is_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "d.csv").write_text("device\na\nb\n")
    (tmp_path / "m.yaml").write_text(
        "version: 1\npipelines: {p: {steps: [{op: Equal, in: {A: $device, B: b}, out: n}], outputs: {n: $n}}}\n"
        "jobs: {r: {pipeline: p, input: {path: d.csv}, output: {path: out}}}\n"
    )
    said = cli("plan", tmp_path / "m.yaml")
    assert said.code == 1
    advice = "prepare: {device: [{cast: string}]}"
    assert f"If $device is text, say so: {advice}." in " ".join(said.out.split())
    (tmp_path / "m.yaml").write_text((tmp_path / "m.yaml").read_text().replace("output:", f"{advice}, output:"))
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert (tmp_path / "out/part-00000000.jsonl").read_text() == '{"n": false}\n{"n": true}\n'


def test_neighbours_are_found_in_a_file_that_belongs_to_the_deployment(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "m.yaml").write_text(
        "version: 1\npipelines: {p: {steps: [{do: neighbours, in: {x: $x, of: c.npz, top: 2}, out: [names, near]}], "
        "outputs: {names: $names, near: $near}}}\njobs: {r: {pipeline: p, input: {path: x.npz}, output: {path: out}}}\n"
    )
    np.savez(tmp_path / "x.npz", x=np.eye(3, dtype=np.float32))
    assert "There is no file c.npz" in cli("plan", tmp_path / "m.yaml").out
    np.savez(tmp_path / "c.npz", names=np.array(["a"]))
    assert "no array called vectors" in " ".join(cli("plan", tmp_path / "m.yaml").out.split())
    vectors = np.array([[1, 0, 0], [0, 1, 1]], np.float32)
    np.savez(tmp_path / "c.npz", names=np.array(["a", "b"]), vectors=vectors)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert [row["names"][0] for row in rows] == ["a", "b", "b"]
    np.savez(tmp_path / "c.npz", names=np.array(["a", "c"]), vectors=vectors)
    assert "finished-output" in cli("plan", tmp_path / "m.yaml").out
