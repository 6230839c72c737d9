"""An output that shards and one machine make in turns, over an inbox of files: what can be done to it, and what must be."""

import itertools
import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.application.finish import Finish
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.open_plans import open_plans, tidy
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger, read_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.plan.part_table import Shard, bound_digest
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, UpstreamJob
from ortdeploy.results.results import JobResult, Status
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.inbox import Inbox
from support.jobs import changed, plan_for, retrying
from support.power_loss import STATE
from support.turns import Process

ENDED = (Status.DONE, Status.NOTHING_TO_DO)


@dataclass
class World:
    """An inbox whose output is made by shards and by one machine. `plans` are those that were saved, by digest."""

    inbox: Inbox
    draw: random.Random
    numbers: Any = field(default_factory=itertools.count)
    runs: Any = field(default_factory=itertools.count)
    plans: dict[str, Plan] = field(default_factory=dict)
    saved: Plan | None = None
    model: Any = refuse_negative
    has_reader: bool = False

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.inbox.at / STATE

    @property
    def place(self) -> SharedPlace:
        """Where the parts are."""
        return SharedFolder(self.inbox.out)

    @property
    def output(self) -> str:
        """What the ledger calls the output."""
        with read_ledger(self.state) as ledger:
            return "" if ledger is None else ledger.key(self.inbox.out)

    def arrive(self) -> None:
        """Put a file of some rows."""
        rows = self.draw.choice([0, 1, 2, 3, 4, 4, 5, 9])
        self.inbox.put(f"f{next(self.numbers):03}", [self.value() for _ in range(rows)])

    def value(self) -> float:
        """Return a value that nothing else has; some are negative, and fail."""
        return float(self.draw.choice([1, 1, 1, 1, -1]) * (1 + next(self.numbers)))

    def some_arrive(self) -> None:
        """Put a file now and then."""
        for _ in range(self.draw.randint(1, 3)):
            process = threading.current_thread()
            if isinstance(process, Process):
                process.pause()
            self.arrive()

    def open(self) -> frozenset[str]:
        """The plans whose parts are not all in the ledger."""
        return open_plans(self.place)

    @property
    def is_known(self) -> bool:
        """Whether the ledger knows the output."""
        with read_ledger(self.state) as ledger:
            return ledger is not None and ledger.output(self.output) is not None

    def save_plan(self) -> None:
        """Save a plan for shards, unless one is open, as planning does."""
        if self.open() or not self.inbox.files:
            return
        plan = self.plan()
        (step,) = run_jobs(plan)
        left = {one.path for one in step.input.files}
        rows = sum(len(values) for name, values in self.inbox.files.items() if f"inbox/{name}.npy" in left)
        whole = step.input.first_row + rows - step.input.rows_before
        self.saved = changed(plan, input={"rows": whole})
        self.plans[bound_digest(self.saved, run_jobs(self.saved)[0])] = self.saved

    def shard(self, index: int, count: int) -> JobResult | None:
        """Run a shard of the plan that was saved last."""
        plan = self.saved
        if plan is None:
            return None
        with copy_of_ledger(self.state) as ledger:
            (result,) = self._run(plan, ledger, shard=Shard(index=index, count=count))
        return result

    def finish(self) -> JobResult | None:
        """Finish the plan that was saved last."""
        plan = self.saved
        if plan is None:
            return None
        with self._held(), open_ledger(self.state) as ledger:
            (step,) = run_jobs(plan)
            return Finish(plan=plan, step=step, ledger=ledger, run_id=f"f{next(self.runs)}").run()

    def apply(self) -> JobResult | None:
        """Run what is left on one machine, unless a plan is open or nothing is left, as planning does."""
        if self.open():
            return None
        plan = self.plan()
        process = threading.current_thread()
        if isinstance(process, Process):
            process.pause()
        with self._held(), open_ledger(self.state) as ledger:
            (result,) = self._run(plan, ledger)
        return result

    def plan(self) -> Plan:
        """Return what is to be done now; if another job reads the rows, with its name."""
        return changed(self.inbox.plan(), output={"readers": {"next": "next"} if self.has_reader else {}})

    def read_on(self) -> JobResult:
        """Run the job that reads the rows of this one, as far as they are committed."""
        plan = changed(
            plan_for(self.inbox.at / "work", 1, size=2, rows_per_part=3),
            job="next",
            input={
                "format": "jsonl", "patterns": (), "files": (), "rows": None, "key": ("row",),
                "upstream": UpstreamJob(job="run", output="out"),
            },
            inputs=(replace(next(iter(run_jobs(self.inbox.plan()))).inputs[0], columns=("y",)),),
            output={"path": "next"},
        )  # fmt: skip
        with open_ledger(self.state) as ledger, hold_output(self.state, ledger.key(self.inbox.at / "work/next")):
            (result,) = self._run(plan, ledger, runtime=FakeRuntime(double))
        return result

    def check_reader(self) -> None:
        """Raise AssertionError unless the other job has read each committed row once."""
        record = self.inbox.record()
        with open_ledger(self.state) as ledger:
            failed = {json.loads(line)["row"]: "" for line in ledger.failures(record.output)}
        files = (self.inbox.at / "work/next").glob("part-*")
        read = sorted(json.loads(line)["y"][0] / 4 for file in files for line in file.read_text().splitlines())
        assert read == sorted(self.inbox.found(record, failed).values())

    def retry(self) -> JobResult | None:
        """Run failed rows once more."""
        plan = retrying(self.plan())
        with self._held(), open_ledger(self.state) as ledger:
            (result,) = self._run(plan, ledger)
        return result

    def _held(self) -> Any:
        with open_ledger(self.state) as ledger:
            key = ledger.key(self.inbox.out)
        return hold_output(self.state, key)

    def _run(
        self, plan: Plan, ledger: Ledger, runtime: FakeRuntime | None = None, **more: Any
    ) -> tuple[JobResult, ...]:
        execution = Execution(
            plan=plan,
            run_id=f"r{next(self.runs)}",
            runtime=runtime or FakeRuntime(self.model),
            ledger=ledger,
            observer=Counter(),
            stop=lambda: False,
            **more,
        )
        return execution.run()

    def settle(self) -> None:
        """Bring everything to its end, by what the messages advise. Raises AssertionError if that leads nowhere."""
        for _ in range(6):
            for digest in self.open():
                self.saved = self.plans[digest]
                made = self.shard(0, 1)
                assert made is not None
                if digest in self.open():
                    assert made.status in ENDED, made.reason
                    done = self.finish()
                    assert done is not None
                    assert done.status is Status.DONE, done.reason
            applied = self.apply()
            if applied is not None and applied.status in ENDED:
                tidy(self.place)  # as the next command does
                return
        raise AssertionError(f"it comes to no end: {applied}")

    def check(self) -> None:
        """Raise AssertionError unless each row of each file is committed once, or failed."""
        values = sorted(value for values in self.inbox.files.values() for value in values)
        lines = [line for part in self.inbox.out.glob("part-*") for line in part.read_text().splitlines()]
        found = sorted(json.loads(line)["y"][0] / 2 for line in lines)
        assert found == [value for value in values if value > 0]
        self.inbox.check()
