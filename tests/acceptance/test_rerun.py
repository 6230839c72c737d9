"""`on_change: rerun`: a changed file's rows run again, and nothing else is touched."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from support.carriers import CARRIERS, delivered, rows_of
from support.models import scale_model

from ortdeploy.cli.commands import status
from ortdeploy.planning.remembered import nothing_to_do

MANIFEST = """
version: 1
name: rerun
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path, row], on_change: rerun, on_empty: done}
    batch: {size: 2}
    output: {path: out, format: jsonl, rows_per_part: 4, OUTPUT}
    errors: {max_failed: 99, on_nan: fail}
"""

Write = Callable[..., Path]


@pytest.fixture
def manifest(deployment: Path) -> Write:
    """Write the manifest with what its output says."""
    (deployment / "inbox").mkdir()

    def write(output: str = "on_upgrade: refuse") -> Path:
        path = deployment / "m.yaml"
        path.write_text(MANIFEST.replace("OUTPUT", output), encoding="utf-8")
        return path

    return write


def put(folder: Path, name: str, *values: float) -> None:
    """Write a file with a row for each value, of a time that no other file has."""
    put.clock += 1_000_000_000  # type: ignore[attr-defined]
    path = folder / "inbox" / f"{name}.npy"
    np.save(path, np.array([[value] * 4 for value in values], dtype=np.float32).reshape(-1, 4))
    os.utime(path, ns=(put.clock, put.clock))  # type: ignore[attr-defined]


put.clock = 1_700_000_000_000_000_000  # type: ignore[attr-defined]


def apply(cli: Cli, manifest: Path) -> str:
    result = cli("apply", manifest)
    assert result.code == 0, result.words
    return result.words


def rows(*folders: Path) -> dict[int, tuple[str, float]]:
    """The file and the value of each row, as a reader has them."""
    return {number: (Path(row["path"]).stem, row["y"][0] / 2) for number, row in rows_of(delivered(*folders)).items()}


def states(folder: Path) -> Mapping[str, tuple[int, int, int]]:
    """Inode, time and size of each part."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(folder.glob("part-*"))
    }


def report(folder: Path) -> Any:
    return json.loads((folder / "out/_run.json").read_text())


def test_a_changed_file_runs_its_own_rows_into_its_own_parts(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        put(deployment, name, *range(first, first + 4))
    apply(cli, path)
    before = states(deployment / "out")
    put(deployment, "b", 50, 51, 52, 53)
    assert "1 changed file" in cli("plan", path).words
    apply(cli, path)
    now = states(deployment / "out")
    assert [name for name in now if now[name] != before[name]] == ["part-00000001.jsonl"]
    assert rows(deployment / "out") == {
        **{row: ("a", row) for row in range(4)},
        **{4 + row: ("b", 50 + row) for row in range(4)},
        **{8 + row: ("c", 20 + row) for row in range(4)},
    }
    assert "nothing to do" in apply(cli, path)
    assert cli("verify", path).code == 0


@pytest.mark.slow
def test_a_part_of_several_files_keeps_the_rows_of_the_others(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    for number, name in enumerate("abcdef"):
        put(deployment, name, number)
    apply(cli, path)
    before = (deployment / "out/part-00000000.jsonl").read_bytes().splitlines()
    put(deployment, "b", 7)
    put(deployment, "d", 8)
    put(deployment, "g", 9)
    apply(cli, path)
    after = (deployment / "out/part-00000000.jsonl").read_bytes().splitlines()
    assert [after[row] for row in (0, 2)] == [before[row] for row in (0, 2)]
    assert [value for _, value in rows(deployment / "out").values()] == [0, 7, 2, 8, 4, 5, 9]
    assert report(deployment)["rows"] == {"input": 7, "committed": 7, "failed": 0, "skipped": 0}


@pytest.mark.slow
def test_another_number_of_rows_comes_after_all_others(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a", 0, 1, 2)
    put(deployment, "b", 10, 11, 12)
    apply(cli, path)
    put(deployment, "a", 5, 6)
    apply(cli, path)
    assert rows(deployment / "out") == {
        3: ("b", 10), 4: ("b", 11), 5: ("b", 12), 6: ("a", 5), 7: ("a", 6),
    }  # fmt: skip
    found = report(deployment)
    assert found["rows"] == {"input": 5, "committed": 5, "failed": 0, "skipped": 0}
    assert [part["withdrawn"] for part in found["parts"]] == [[[0, 3]], [], []]
    put(deployment, "a", 7, 8)
    put(deployment, "b")
    apply(cli, path)
    assert rows(deployment / "out") == {6: ("a", 7), 7: ("a", 8)}
    put(deployment, "b", 1)
    apply(cli, path)
    assert rows(deployment / "out") == {6: ("a", 7), 7: ("a", 8), 8: ("b", 1)}
    assert "nothing to do" in apply(cli, path)
    assert cli("verify", path).code == 0


@pytest.mark.slow
def test_failed_rows_of_the_old_content_leave_the_dead_letters(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a", 0, float("nan"), 2)
    put(deployment, "b", 10, float("nan"))
    apply(cli, path)
    letters = deployment / "out/_failed.jsonl"
    assert [json.loads(line)["row"] for line in letters.read_text().splitlines()] == [1, 4]
    put(deployment, "a", float("nan"), 1, 2)
    apply(cli, path)
    assert [json.loads(line)["row"] for line in letters.read_text().splitlines()] == [0, 4]
    assert sorted(rows(deployment / "out")) == [1, 2, 3]
    put(deployment, "b", float("nan"), float("nan"), 3)
    apply(cli, path)
    assert [json.loads(line)["row"] for line in letters.read_text().splitlines()] == [0, 5, 6]
    assert report(deployment)["rows"] == {"input": 6, "committed": 3, "failed": 3, "skipped": 0}
    put(deployment, "a", float("nan"), float("nan"), float("nan"))
    apply(cli, path)
    assert sorted(rows(deployment / "out")) == [7]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nobody", "parts", "the folder"])
def test_rows_of_parts_that_may_be_carried_away_are_written_beside_them(
    cli: Cli, deployment: Path, manifest: Write, name: str
) -> None:
    path = manifest("removable: true")
    out, away = deployment / "out", deployment / "away"
    put(deployment, "a", 0, 1, 2, 3, 4)
    put(deployment, "b", 10)
    apply(cli, path)
    CARRIERS[name](out, away / "1")
    put(deployment, "b", 11)
    apply(cli, path)
    CARRIERS[name](out, away / "2")
    put(deployment, "b", 12)
    apply(cli, path)
    assert sorted(delivered(out, away)) == [
        "part-00000000.jsonl", "part-00000001.jsonl", "part-00000001.r1.jsonl", "part-00000001.r2.jsonl",
    ]  # fmt: skip
    assert rows(out, away) == {**{row: ("a", row) for row in range(5)}, 5: ("b", 12)}
    put(deployment, "a", 7)
    apply(cli, path)
    assert report(deployment)["rows"]["committed"] == 2
    assert [part["withdrawn"] for part in report(deployment)["parts"]] == [[[0, 4]], [[4, 1]], []]
    assert rows(out, away)[6] == ("a", 7)
    assert "nothing to do" in apply(cli, path)
    assert cli("verify", path).code == 0


def test_no_part_mixes_two_deployments(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest("on_upgrade: continue")
    put(deployment, "a", 0, 1)
    put(deployment, "b", 10)
    apply(cli, path)
    scale_model(deployment / "double.onnx", factor=4.0)
    put(deployment, "b", 11)
    apply(cli, path)
    files = {name: content.decode() for name, content in delivered(deployment / "out").items()}
    assert list(files) == ["part-00000000.jsonl", "part-00000000.r1.jsonl"]
    assert rows(deployment / "out") == {0: ("a", 0), 1: ("a", 1), 2: ("b", 22)}
    assert [len(text.splitlines()) for text in files.values()] == [2, 1]
    put(deployment, "b", 12)
    apply(cli, path)
    assert rows(deployment / "out")[2] == ("b", 24)
    assert cli("verify", path).code == 0


def test_status_tells_which_rows_will_run_again(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a", 1, 2, 3)
    put(deployment, "b", 4)
    apply(cli, path)

    def again() -> int:
        return int(cli("status", path, "--format", "json").json["jobs"][0]["rerun"])

    assert again() == 0
    put(deployment, "a", 5, 6)
    put(deployment, "c", 7)
    assert again() == 3
    assert "run: 3 rows of changed files to run again" in cli("status", path).out
    (deployment / "inbox/b.npy").unlink()
    assert again() == 3
    apply(cli, path)
    assert again() == 0
    os.utime(deployment / "inbox/a.npy", ns=(1, 1))  # which changes no content
    assert "nothing to do" in apply(cli, path)
    assert again() == 0


def test_a_status_that_is_remembered_sees_files_change(
    cli: Cli, deployment: Path, manifest: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    path = manifest()
    put(deployment, "a", 1)
    apply(cli, path)
    assert "to run again" not in cli("status", path).out
    with monkeypatch.context() as patch:
        patch.setattr(status, "_show", None)
        assert "to run again" not in cli("status", path).out, "it is remembered"
    put(deployment, "a", 2)
    assert "run: 1 row of changed files to run again" in cli("status", path).out


@pytest.mark.quick("2378")
@pytest.mark.parametrize("year", [2378, 2340])
def test_times_that_take_more_than_64_bits_are_times_like_any(manifest: Write, cli: Cli, year: int) -> None:
    """File systems have times up to the year 2446 and later; a clock that is wrong, or a bad archive, sets them."""
    path = manifest()
    put(path.parent, "a", 1, 2)
    put(path.parent, "b", 3)
    late = (year - 1970) * 31_556_952_000_000_000
    os.utime(path.parent / "inbox/a.npy", ns=(late, late))
    if (path.parent / "inbox/a.npy").stat().st_mtime_ns < 2**63:
        pytest.skip("this file system has no such times")
    apply(cli, path)
    assert "nothing to do" in apply(cli, path)
    put(path.parent, "a", 7, 8)
    os.utime(path.parent / "inbox/a.npy", ns=(late, late + 1_000_000_000))
    assert "2 rows of changed files to run again" in cli("status", path).out
    assert cli("plan", path, "--out", path.parent / "plan.json").code == 0
    apply(cli, path.parent / "plan.json")
    assert {value for _, value in rows(path.parent / "out").values()} == {7.0, 8.0, 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["the ledger of finish", "a ledger that was lost"])
def test_of_an_output_of_shards_too_only_the_changed_files_run_again(
    cli: Cli, deployment: Path, manifest: Write, *, is_lost: bool
) -> None:
    path, plan = manifest(), deployment / "plan.json"
    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        put(deployment, name, *range(first, first + 3))
    assert cli("plan", path, "--out", plan).code == 0
    for index in (1, 0):
        assert cli("apply", plan, "--shard", f"{index}/2").code == 0
    assert cli("finish", plan).code == 0
    if is_lost:
        shutil.rmtree(deployment / ".ortdeploy")
        assert cli("finish", plan).code == 0
    os.utime(deployment / "inbox/a.npy", ns=(1, 1))
    assert "nothing to do" in apply(cli, path)
    put(deployment, "b", 50, 51, 52)
    put(deployment, "c", 60)
    apply(cli, path)
    assert rows(deployment / "out") == {
        **{row: ("a", row) for row in range(3)},
        **{3 + row: ("b", 50 + row) for row in range(3)},
        9: ("c", 60),
    }
    assert "nothing to do" in apply(cli, path)
    assert cli("verify", path).code == 0


@pytest.mark.slow
def test_shards_leave_changed_files_to_one_machine(cli: Cli, deployment: Path, manifest: Write) -> None:
    path, plan = manifest(), deployment / "plan.json"
    put(deployment, "a", 1)
    apply(cli, path)
    put(deployment, "a", 2)
    put(deployment, "b", 3)
    why = "inbox/a.npy has changed and its rows run again; apply once without --shard"
    assert why in (planned := cli("plan", path, "--out", plan)).words, planned.words
    refused = cli("apply", plan, "--shard", "0/1")
    assert (refused.code, why in refused.words) == (64, True), refused.words
    assert rows(deployment / "out") == {0: ("a", 1)}


def test_retry_says_that_apply_runs_the_rows_of_a_repaired_file(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a", 0, float("nan"), 2)
    apply(cli, path)
    put(deployment, "a", 0, 1, 2)
    retried = cli("retry", path, "--job", "run")
    assert retried.code == 0
    said = "inbox/a.npy: the file has changed, and apply runs all of its rows again. 1 failed row of it has not run."
    assert said in retried.words
    apply(cli, path)
    assert [value for _, value in rows(deployment / "out").values()] == [0, 1, 2]


def test_a_file_of_which_rows_were_taken_over_is_repaired_by_retry_alone(
    cli: Cli, deployment: Path, manifest: Write
) -> None:
    path = manifest()
    put(deployment, "a", 1, float("nan"))
    apply(cli, path)
    letters = shutil.copy(deployment / "out/_failed.jsonl", deployment / "letters.jsonl")
    shutil.rmtree(deployment / "out")
    shutil.rmtree(deployment / ".ortdeploy")  # as another machine, which has not read the file
    assert cli("retry", path, "--job", "run", "--from", letters).code == 0
    put(deployment, "a", 1, 5)
    refused = cli("plan", path)
    assert "run ortdeploy retry with --job run" in refused.words
    assert "on_change: rerun" not in refused.words
    assert cli("retry", path, "--job", "run").code == 0
    assert "nothing to do" in apply(cli, path)
    assert {value for _, value in rows(deployment / "out").values()} == {5.0}
