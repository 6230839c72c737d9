"""Ledgers in the states in which runs leave them: unfinished, within a part, finished, and in the middle of a step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.parts import begun_part, recovery
from ortdeploy.plan.steps import Plan, RunJob
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.jobs import (
    Killed,
    changed,
    changed_job,
    execute,
    plan_for,
    retrying,
)

ROWS = 30
BAD = (1, 13, 20)


def plan_of(folder: Path, *, retry: bool = False) -> Plan:
    """Return a plan as it is made from what the ledger says: files that are done are not read again."""
    plan = plan_for(folder, ROWS, max_failed=9)
    (step,) = (one for one in plan.steps if isinstance(one, RunJob))
    with open_ledger(folder / ".ortdeploy") as ledger:
        record, inputs = ledger.output("../out"), ledger.inputs("../out")
    done = {one.state for one in inputs if one.done}
    first_row = record.first_row if record else 0
    files = tuple(one for one in step.input.files if one not in done)
    of_files = ROWS if files else 0
    step = changed_job(step, input={"first_row": first_row, "files": files, "rows": first_row + of_files})
    made = replace(plan, steps=(*plan.steps[:-1], step))
    return retrying(made) if retry else made


def unfinished(folder: Path) -> None:
    """Two parts of four."""
    seen = Counter()

    def stop() -> bool:
        return bool(seen.seen) and seen.seen[-1][0] >= 16

    plan = plan_for(folder, ROWS, max_failed=9)
    execute(folder, plan, FakeRuntime(refuse_negative), observer=seen, stop=stop)


def begun(folder: Path) -> None:
    """One batch of the first part, with a row that failed."""

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if feeds["x"].max() > 3:  # the last row of the first batch
            raise ProviderFailedError("the device is gone")
        return refuse_negative(feeds)

    execute(folder, plan_for(folder, ROWS, max_failed=9), FakeRuntime(run))


def finished(folder: Path) -> None:
    execute(folder, plan_for(folder, ROWS, max_failed=9), FakeRuntime(refuse_negative))


def merging(folder: Path) -> None:
    """A retry that was killed between the ledger and the rename."""
    finished(folder)

    def die(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "finish", die)
        with pytest.raises(Killed):
            execute(folder, retrying(plan_for(folder, ROWS, max_failed=9)), FakeRuntime(double))


def publishing(folder: Path) -> None:
    """A part that may be carried away, and whose run was killed when it was to get its name."""

    def die(*_: Any) -> None:
        raise Killed

    plan = changed(plan_for(folder, ROWS, max_failed=9), output={"removable": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begun_part, "give_name", die)
        with pytest.raises(Killed):
            execute(folder, plan, FakeRuntime(refuse_negative))


def revised(folder: Path) -> None:
    """Rows that were written after their parts, which may have been carried away."""
    plan = changed(plan_for(folder, ROWS, max_failed=9), output={"removable": True})
    execute(folder, plan, FakeRuntime(refuse_negative))
    execute(folder, retrying(plan), FakeRuntime(double))
