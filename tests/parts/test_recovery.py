"""Whatever a killed command has left, any command that writes into the output finishes or deletes it first."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.fuse import killed_at
from support.jobs import changed, execute, failed, plan_for, retrying, rows, save
from support.ledgers import BAD, ROWS, begun, finished, plan_of, publishing

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.parts.compaction import CompactionTarget
from ortdeploy.results.results import Status

LITTER = (".part-00000000.jsonl.merged", ".part-00000000.jsonl.replaced", ".part-00000009.jsonl.4.begun", ".x.partial")


def compact(folder: Path, *, removable: bool = False, rows_per_part: int = 8) -> None:
    with open_ledger(folder / ".ortdeploy") as ledger:
        out = folder / "out"
        small = CompactionTarget(
            ledger=ledger, output=ledger.key(out), folder=out, shown="out", format="jsonl", rows_per_part=rows_per_part,
            removable=removable, exploded=False, has_row=True,
        )  # fmt: skip
        small.compact()


def apply(folder: Path) -> None:
    execute(folder, plan_of(folder), FakeRuntime(refuse_negative))


def retry(folder: Path) -> None:
    result = execute(folder, retrying(plan_for(folder, ROWS, max_failed=9)), FakeRuntime(double))
    assert result.status is not Status.FAILED, result.reason


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").glob(".*"))


@pytest.fixture(name="folder")
def with_input(tmp_path: Path) -> Path:
    save(tmp_path, [-1.0 - row if row in BAD else float(row) for row in range(ROWS)])
    return tmp_path


@pytest.mark.parametrize("command", [retry, compact])
def test_hidden_files_that_nothing_names_are_deleted(folder: Path, command: Callable[[Path], None]) -> None:
    finished(folder)
    for name in LITTER:
        (folder / "out" / name).write_text("litter")
    command(folder)
    assert hidden(folder) == []


@pytest.mark.parametrize("command", [compact, apply])
def test_kept_rows_stay_for_the_run_that_goes_on_with_them(folder: Path, command: Callable[[Path], None]) -> None:
    begun(folder)
    kept = hidden(folder)
    assert [name.endswith(".begun") for name in kept] == [True]
    for name in LITTER:
        (folder / "out" / name).write_text("litter")
    command(folder)
    assert hidden(folder) == ([] if command is apply else kept)
    apply(folder)
    assert [row for row, _ in rows(folder)] == [row for row in range(ROWS) if row not in BAD]


def test_any_command_commits_a_part_that_was_getting_its_name(folder: Path) -> None:
    publishing(folder)
    compact(folder, removable=True)
    (record,) = read_outputs(folder / ".ortdeploy")
    assert ([part.rows for part in record.parts], record.begun, hidden(folder)) == ([8], None, [])
    plan = changed(plan_for(folder, ROWS, max_failed=9), output={"removable": True})
    execute(folder, plan, FakeRuntime(refuse_negative))
    assert [row for row, _ in rows(folder)] == [row for row in range(ROWS) if row not in BAD]


def test_a_part_of_other_bytes_under_a_name_that_was_being_given_is_left(folder: Path) -> None:
    publishing(folder)
    (record,) = read_outputs(folder / ".ortdeploy")
    assert record.begun is not None
    (folder / "out" / str(record.begun.part.file)).unlink()
    place = folder / "out" / str(record.begun.name)
    place.write_text("another's")
    with pytest.raises((AssertionError, OrtdeployError), match=f"{place.name} is not what was written"):
        compact(folder, removable=True)
    assert place.read_text() == "another's"
    assert read_outputs(folder / ".ortdeploy") == (record,)
    place.unlink()  # it was carried away, then
    compact(folder, removable=True)
    (record,) = read_outputs(folder / ".ortdeploy")
    assert record.begun is None


def test_a_rewrite_is_undone_only_while_all_that_it_replaces_is_there(folder: Path) -> None:
    """A compact that was killed while it deleted the parts that it had joined, and whose new part is gone since."""
    finished(folder)
    number = sum(1 for _ in (folder / "out").glob("part-*"))
    for event in count(1):
        with killed_at(event) as fuse:
            compact(folder, rows_per_part=99)
        assert fuse.blew
        (record,) = read_outputs(folder / ".ortdeploy")
        placed = [one for rewrite in record.rewrites for one in (folder / "out").glob(rewrite.files[0].file)]
        if placed and len([*(folder / "out").glob("part-*")]) <= number:
            break
    placed[0].unlink()
    left = sorted((folder / "out").iterdir())
    for command in (retry, compact):
        with pytest.raises(
            (AssertionError, OrtdeployError), match=f"{placed[0].name} is neither what was committed nor"
        ):
            command(folder)
        assert sorted((folder / "out").iterdir()) == left


def test_a_compact_renews_the_report_that_a_killed_retry_has_not_written(folder: Path) -> None:
    finished(folder)
    for event in count(1):
        with killed_at(event) as fuse:
            retry(folder)
        compact(folder, rows_per_part=1)
        (record,) = read_outputs(folder / ".ortdeploy")
        assert len(failed(folder)) == record.failed
        if not fuse.blew:
            break
    assert record.failed == 0
