"""Rows of committed parts are replaced in place where nobody else may have the files, and beside them elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import changed, execute, plan_for, retrying, rows, save
from support.ledgers import BAD, ROWS, finished, revised

from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.ledger.records import Part
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.replaced_rows import NewRows, PartRewriter
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.steps import RunJob


@pytest.fixture(name="folder")
def with_input(tmp_path: Path) -> Path:
    save(tmp_path, [-1.0 - row if row in BAD else float(row) for row in range(ROWS)])
    return tmp_path


def replace_rows(folder: Path, number: int, new: Callable[[Path], NewRows], *, others: bool = False) -> Part:
    """Replace rows of a part, made by the deployment that made it, or by another one; return the part as it is then."""
    step = next(one for one in plan_for(folder, ROWS, max_failed=9).steps if isinstance(one, RunJob))
    with open_ledger(folder / ".ortdeploy") as ledger:
        name = ledger.key(folder / "out")
        record = ledger.output(name)
        assert record is not None
        part = record.parts[number]
        made_by = (
            MadeBy(name="other", profile=None, identity={"other": "1"}, layout=None)
            if others
            else ledger.made_by(part.deployment)
        )
        assert made_by is not None
        output = OpenOutput(name=name, folder=folder / "out", ledger=ledger, upload=None)
        rewriter = PartRewriter(output, step, made_by=made_by, roots=(), part_digits=record.part_digits)
        failed = ledger.failed_rows(name).get(number, {})
        rewriter.replace(part, failed, new(folder / "new.jsonl"))
        found = ledger.output(name)
        assert found is not None
        return found.parts[number]


def one_row(row: int, value: float, **settings: Any) -> Callable[[Path], NewRows]:
    def new(path: Path) -> NewRows:
        path.write_text(f'{{"row": {row}, "y": [{value}]}}\n')
        return NewRows(spans=((row, 1),), path=path, rows=(row,), **settings)

    return new


def test_the_other_rows_of_a_part_stay_as_they_are(folder: Path) -> None:
    finished(folder)
    before = rows(folder)
    names = sorted(path.name for path in (folder / "out").glob("part-*"))
    part = replace_rows(folder, 1, one_row(10, 77.0))
    assert rows(folder) == [(row, 77.0 if row == 10 else value) for row, value in before]
    assert sorted(path.name for path in (folder / "out").glob("part-*")) == names
    assert (part.committed, part.failed, part.revisions) == (7, 1, ())


def test_rows_that_are_withdrawn_leave_their_part(folder: Path) -> None:
    finished(folder)
    before = rows(folder)
    part = replace_rows(folder, 1, lambda _: NewRows(spans=((8, 2),), withdrawn=True))
    assert rows(folder) == [one for one in before if one[0] not in {8, 9}]
    assert (part.committed, part.failed, part.withdrawn) == (5, 1, ((8, 2),))


def test_a_part_of_which_all_rows_leave_has_no_file(folder: Path) -> None:
    finished(folder)
    file = read_outputs(folder / ".ortdeploy")[0].parts[1].file
    part = replace_rows(folder, 1, lambda _: NewRows(spans=((8, 8),), withdrawn=True))
    assert (part.file, part.bytes, part.sha256, part.mtime_ns) == (None, 0, None, None)
    assert not (folder / "out" / str(file)).exists()


def test_rows_of_another_deployment_get_a_file_beside_and_the_old_ones_leave(folder: Path) -> None:
    finished(folder)
    before = rows(folder)
    part = replace_rows(folder, 1, one_row(10, 77.0), others=True)
    (beside,) = part.revisions
    assert beside.rows == (10,)
    assert (folder / "out" / beside.file).read_text() == '{"row": 10, "y": [77.0]}\n'
    own = (folder / "out" / str(part.file)).read_text()
    assert '"row": 10' not in own
    assert '"row": 9' in own
    assert sorted(rows(folder)) == [(row, 77.0 if row == 10 else value) for row, value in before]


def test_rows_that_ran_again_replace_those_in_the_files_beside_a_part(folder: Path) -> None:
    """A retry has put rows beside the part, which could have been carried away then and cannot any more."""
    revised(folder)
    (later,) = read_outputs(folder / ".ortdeploy")[0].parts[1].revisions
    part = replace_rows(folder, 1, one_row(13, 77.0))
    assert not (folder / "out" / later.file).exists()
    assert part.revisions == ()
    assert '{"row": 13, "y": [77.0]}' in (folder / "out" / str(part.file)).read_text()


def test_rows_without_a_result_so_far_do_not_go_into_a_file_that_may_hold_old_rows(folder: Path) -> None:
    revised(folder)
    part = replace_rows(folder, 1, one_row(13, 77.0, adds=True))
    assert [one.rows for one in part.revisions] == [(13,), (13,)]
    assert '"row": 13' not in (folder / "out" / str(part.file)).read_text()


def test_a_retry_puts_new_rows_between_the_others(folder: Path) -> None:
    finished(folder)
    execute(folder, retrying(plan_for(folder, ROWS, max_failed=9)), FakeRuntime(double))
    assert [row for row, _ in rows(folder)] == list(range(ROWS))


def test_a_retry_in_an_output_that_may_be_carried_away_touches_no_file(folder: Path) -> None:
    plan = changed(plan_for(folder, ROWS, max_failed=9), output={"removable": True})
    execute(folder, plan, FakeRuntime(refuse_negative))
    before = {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")}
    execute(folder, retrying(plan), FakeRuntime(double))
    after = {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")}
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 3
