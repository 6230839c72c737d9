"""Working at the same time or in turn: the quicker way is found, found again when things change, and changes no row."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, Cli
from support.logs import capture_logs

from ortdeploy.running import block_sizes, overlap
from ortdeploy.running.overlap import Overlap

ROUND = 2 * (overlap.SETTLING + overlap.MEASURED)
BLOCKS = overlap.FIRST_BLOCKS + overlap.ROUNDS * ROUND


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("ortdeploy.running.overlap.time.perf_counter", lambda: now[0])
    return now


def is_in_turn(overlap_: Overlap) -> bool:
    with overlap_.section():
        return overlap_.section() is overlap_.section()  # a lock, and not something new each time


def go(overlap_: Overlap, clock: list[float], blocks: int, *, at_once: float, in_turn: float) -> None:
    """Let blocks of ten rows pass, which take so many seconds."""
    for _ in range(blocks):
        clock[0] += in_turn if is_in_turn(overlap_) else at_once
        overlap_.finished(10)


@pytest.mark.parametrize(("at_once", "in_turn", "chosen"), [(1.2, 1.0, True), (1.02, 1.0, False), (1.0, 1.2, False)])
def test_the_way_that_is_clearly_quicker_is_kept(
    clock: list[float], at_once: float, in_turn: float, chosen: bool
) -> None:
    found = Overlap(undecided=True)
    with capture_logs() as events:
        go(found, clock, BLOCKS, at_once=at_once, in_turn=in_turn)
    assert is_in_turn(found) == chosen
    (event,) = events
    assert (event["event"], event["in_turn"]) == ("threads.compared", chosen)
    assert event["rows_per_second"] == [round(10 / at_once, 1), round(10 / in_turn, 1)]


@pytest.mark.parametrize(("at_once", "rounds"), [(1.2, 1), (0.8, 1), (1.1, overlap.ROUNDS)])
def test_a_plain_difference_is_measured_once(clock: list[float], at_once: float, rounds: int) -> None:
    found = Overlap(undecided=True)
    with capture_logs() as events:
        go(found, clock, overlap.FIRST_BLOCKS + rounds * ROUND - 1, at_once=at_once, in_turn=1.0)
        assert not events
        go(found, clock, 1, at_once=at_once, in_turn=1.0)
    assert len(events) == 1


def test_short_blocks_are_measured_for_a_while(clock: list[float]) -> None:
    found = Overlap(undecided=True)
    go(found, clock, overlap.FIRST_BLOCKS, at_once=0.02, in_turn=0.01)
    begin = clock[0]
    with capture_logs() as events:
        while not events:
            go(found, clock, 1, at_once=0.02, in_turn=0.01)
    assert 2 * overlap.MEASURED_SECONDS < clock[0] - begin < 2 * overlap.MEASURED_SECONDS + 0.1


def test_most_blocks_go_the_better_way_and_both_are_measured_again(clock: list[float]) -> None:
    found, ways = Overlap(undecided=True), []
    for _ in range(3000):
        ways.append(is_in_turn(found))
        go(found, clock, 1, at_once=1.0, in_turn=1.5)
    assert 0 < ways.count(True) < 0.05 * len(ways)
    go(found, clock, 30_000, at_once=1.5, in_turn=1.0)
    assert is_in_turn(found)


def test_without_doubt_all_work_at_the_same_time(clock: list[float]) -> None:
    found = Overlap(undecided=False)
    go(found, clock, BLOCKS, at_once=2.0, in_turn=1.0)
    with found.section(), found.section():
        assert not is_in_turn(found)


def test_a_pipeline_gives_the_same_rows_either_way(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MEASURED_SECONDS", 0.0)  # blocks alone are counted
    monkeypatch.setattr(block_sizes, "MOST_BATCHES", 1)  # and do not grow where a machine is quick
    for name in ("pages.yaml", "models/detector.onnx", "models/digits.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "deployments" / name, tmp_path / name)
    (tmp_path / "pages").mkdir()
    pages = sorted((REPOSITORY / "deployments/pages").glob("*.png"))
    for number in range(4 * 2 * BLOCKS):
        shutil.copy(pages[number % len(pages)], tmp_path / f"pages/{number:04}.png")
    (tmp_path / "pages/0100.png").write_text("no picture")
    with (tmp_path / "pages.yaml").open("a") as file:
        file.write("    errors: {max_failed: 1}\n")
    done = cli("apply", tmp_path / "pages.yaml", "-v", "--log-format", "json")
    assert done.code == 0, done.out + done.err
    assert "threads.compared" in done.err
    parts = sorted((tmp_path / "outbox/pages").glob("part-*"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    by_page: dict[int, list[Any]] = {}
    for row in rows:
        by_page.setdefault(int(Path(row["path"]).stem) % len(pages), []).append((row["boxes"], row["digits"]))
    assert len(rows) == 4 * 2 * BLOCKS - 1
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert all(found.count(found[0]) == len(found) for found in by_page.values())
    assert np.unique([len(boxes) for found in by_page.values() for boxes, _ in found]).size > 1
