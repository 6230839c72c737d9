"""Rows on their way through a job say where they came from."""

import numpy as np
import pytest

from ortdeploy.results.rows import FILE_PATH, Block, StageError
from ortdeploy.results.shares import WorkerShare


@pytest.mark.parametrize(
    ("columns", "places", "source"),
    [
        ({FILE_PATH: ["a.csv", "b.csv"]}, ["a.csv:2", "b.csv:3"], "b.csv:3"),
        ({FILE_PATH: ["a.png", "b.png"]}, (), "b.png"),
        ({"x": np.zeros((2, 4))}, (), "row 9"),
    ],
)
def test_a_row_is_named_by_its_line_its_file_or_its_number(
    columns: dict[str, list[str]], places: list[str], source: str
) -> None:
    block = Block(start=7, count=3, rows=[7, 9], columns=columns, failed=[], places=places)  # type: ignore[arg-type]
    assert block.source(1) == source


def test_a_failed_stage_says_whether_another_try_or_fewer_rows_may_pass() -> None:
    error = StageError("run", "out-of-memory", "memory ran out", no_memory=True)
    assert (error.stage, error.code, str(error)) == ("run", "out-of-memory", "memory ran out")
    assert (error.no_memory, error.transient) == (True, False)


def test_the_share_of_a_worker_has_the_mean_of_its_parts() -> None:
    assert WorkerShare(name="host/0", parts=4, rows=40, failed=0, seconds=6.0).seconds_a_part == 1.5
