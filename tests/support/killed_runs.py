"""Runs a job in processes that are killed (SIGKILL) at random moments, many times a minute: `python -m support.killed_runs`.

Each process is forked from one that has imported everything, so that most moments fall into the run itself. There is no
ONNX Runtime in it, whose threads a fork would lose: a function stands for the model, everything else is real.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ortdeploy.ledger.opening import read_outputs
from ortdeploy.plan.steps import Plan
from support.carriers import CARRIERS, delivered, rows_of
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import READ, changed, execute, plan_for, retrying, save, written_as

ROWS = 400
CARRIED = "carried"
"""JSON lines, of which somebody carries parts or the whole folder away after each kill."""


def values() -> list[float]:
    """Every eleventh row fails at first."""
    return [-1.0 - row if row % 11 == 0 else float(row) for row in range(ROWS)]


def prepare(folder: Path, kind: str) -> Plan:
    """Make the folder, and the plan of its job."""
    folder.mkdir()
    save(folder, values())
    plan = plan_for(folder, ROWS, size=5, rows_per_part=25, max_failed=ROWS)
    return changed(plan, output={"removable": True}) if kind == CARRIED else written_as(plan, kind)


def phases(plan: Plan) -> Iterator[tuple[Plan, FakeRuntime]]:
    """Yield what is done: the job, then its failed rows once more."""
    yield plan, FakeRuntime(refuse_negative)
    yield retrying(plan), FakeRuntime(double)


def left(folder: Path) -> dict[str, bytes]:
    """Return what the run has left, but for the report, which has times in it."""
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir()) if path.name != "_run.json"}


def run_in_child(folder: Path, plan: Plan, runtime: FakeRuntime) -> int:
    """Run a phase in a process of its own; return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  the child's own
            execute(folder, plan, runtime)
            code = 0
        finally:
            os._exit(code)
    return child


def kill_until_done(
    folder: Path, plan: Plan, runtime: FakeRuntime, kind: str, moments: random.Random, most: float
) -> int:
    """Start a phase again and again and kill it, until one gets to its end; return the number of kills."""
    kills = 0
    while True:
        child = run_in_child(folder, plan, runtime)
        time.sleep(moments.uniform(0, most))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0, "the run itself failed"
            return kills
        kills += 1
        if kind == CARRIED:
            carrier = CARRIERS[moments.choice(sorted(CARRIERS))]
            carrier(folder / "out", folder / "away" / f"{len(list(folder.glob('away/*')))}")
        else:
            check(folder, kind)


def check_delivered(folder: Path) -> None:
    """Every row has arrived, as it is, under names of which none was given twice."""
    found = rows_of(delivered(folder / "away", folder / "out"))
    assert {number: row["y"][0] for number, row in found.items()} == {row: 2 * one for row, one in enumerate(values())}


def check(folder: Path, kind: str) -> None:
    """Whatever has its final name is whole; whatever the ledger names is there, with as many rows as it says."""
    for path in (folder / "out").glob("part-*") if (folder / "out").exists() else ():
        READ[kind](path)
    for record in read_outputs(folder / ".ortdeploy"):
        for part in record.parts:
            assert part.rows == part.committed + part.failed + part.skipped
            assert part.file is None or (folder / "out" / part.file).exists()


def main(folder: Path, kind: str, kills: int, seed: int) -> None:
    """Kill so many times; each time that a job gets to its end, compare it with an undisturbed one and begin another."""
    plan = prepare(folder / "whole", kind)
    begin = time.perf_counter()
    for phase in phases(plan):
        execute(folder / "whole", *phase)
    most = (time.perf_counter() - begin) / 2
    expected = left(folder / "whole")
    moments = random.Random(seed)  # noqa: S311  moments, not secrets
    done = jobs = 0
    while done < kills:
        killed = folder / f"killed-{jobs}"
        plan = prepare(killed, kind)
        for phase in phases(plan):
            done += kill_until_done(killed, *phase, kind, moments, most)
        if kind == CARRIED:
            check_delivered(killed)
        found = expected if kind == CARRIED else left(killed)
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        assert not wrong, f"job {jobs} is not what an undisturbed run leaves: {wrong}"
        shutil.rmtree(killed)
        jobs += 1
    sys.stdout.write(f"{done} kills, {jobs} jobs\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
