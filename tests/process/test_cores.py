"""The one rule for cores: those of the affinity mask, within the quota of every control group above this process."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.process import cores
from ortdeploy.process.child import Answer
from ortdeploy.sources import csv, row_counts
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_index import KeptIndexes


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A control group and the one above it, of a process that may run on 64 cores."""
    below, above = tmp_path / "a/b", tmp_path / "a"
    below.mkdir(parents=True)
    monkeypatch.setattr(cores, "group_folders", lambda _: (below, above, tmp_path / "gone"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    return below, above


def test_without_a_quota_all_cores_of_the_mask_are_usable(groups: tuple[Path, Path]) -> None:
    (groups[0] / "cpu.max").write_text("max 100000\n")
    assert (cores.cpu_quota(), cores.core_count(), cores.usable_cores()) == (None, 64, 64)


def test_the_smallest_quota_of_the_group_and_its_parents_counts(groups: tuple[Path, Path]) -> None:
    (groups[0] / "cpu.max").write_text("800000 100000\n")
    assert cores.usable_cores() == 8
    (groups[1] / "cpu.max").write_text("150000 100000\n")
    assert (cores.cpu_quota(), cores.core_count(), cores.usable_cores()) == (1.5, 64, 2)


def test_the_quota_of_version_1(groups: tuple[Path, Path]) -> None:
    (groups[0] / "cpu.cfs_quota_us").write_text("-1\n")
    (groups[0] / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.cpu_quota() is None
    (groups[0] / "cpu.cfs_quota_us").write_text("50000\n")
    assert (cores.cpu_quota(), cores.usable_cores()) == (0.5, 1)


def test_a_quota_above_the_mask_gives_no_more_cores() -> None:
    assert cores.within_quota(4, 6.0) == 4


def test_files_are_counted_in_one_process_for_each_usable_core(
    groups: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (groups[0] / "cpu.max").write_text("150000 100000\n")
    paths = [tmp_path / f"{number}.csv" for number in range(5)]
    for path in paths:
        path.write_text("a\n1\n")
    asked = []

    def ask(_module: str, request: dict[str, Any]) -> Answer:
        asked.append(len(request["files"]))
        messages = [{"file": file, "rows": 1} for file, *_ in request["files"]]
        return Answer(messages=messages, code=0, late=False, printed="")

    monkeypatch.setattr(row_counts, "ask", ask)
    monkeypatch.setattr(row_counts, "WORTH_A_PROCESS", 1)
    indexes = KeptIndexes(tmp_path / "state", str(tmp_path), "csv")
    read = partial(csv.read_rows, folder=str(tmp_path), wanted=Wanted(dtypes={}))
    assert row_counts.count_files([str(path) for path in paths], ["*.csv"], indexes, None, read) == 5
    assert sorted(asked) == [2, 3]
