"""Shards of a first and a later plan beside runs on one machine, while files arrive and processes are killed.

Whatever happens in whatever order: every row of every file is there once, and no plan stays that nobody can close.
"""

import itertools
import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.effort import effort
from support.fakes import Counter, FakeRuntime, refuse_negative
from support.inbox import Inbox
from support.jobs import changed
from support.power_loss import STATE
from support.shards import Killed, die_before, instead, killed_at_part
from support.turns import Process, steps, take_turns

from ortdeploy.diagnostics import LockedError
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.ledger import output_lock
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.open_parts import open_plans, tidy
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger, read_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.plan.part_table import Shard, bound_digest
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running import resume
from ortdeploy.running.executor import Execution
from ortdeploy.running.marker import write_marker
from ortdeploy.running.shards import begin
from ortdeploy.running.shards.commit_log import CommitLog
from ortdeploy.running.shards.finish import Finish

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

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.inbox.at / STATE

    @property
    def output(self) -> str:
        """What the ledger calls the output."""
        with read_ledger(self.state) as ledger:
            return "" if ledger is None else ledger.key(self.inbox.out)

    def arrive(self) -> None:
        """Put a file of some rows, whose values nothing else has."""
        signs = [self.draw.choice([1, 1, 1, 1, -1]) for _ in range(self.draw.choice([0, 1, 2, 3, 4, 4, 5, 9]))]
        number = next(self.numbers)
        self.inbox.put(f"f{number:03}", [float(sign * (1 + next(self.numbers))) for sign in signs])

    def some_arrive(self) -> None:
        """Put a file now and then."""
        for _ in range(self.draw.randint(1, 3)):
            process = threading.current_thread()
            if isinstance(process, Process):
                process.pause()
            self.arrive()

    def open(self) -> frozenset[str]:
        """The plans whose parts are not all in the ledger."""
        return open_plans(SharedFolder(self.inbox.out))

    def save_plan(self) -> None:
        """Save a plan for shards, unless one is open, as planning does."""
        if self.open() or not self.inbox.files:
            return
        plan = self.inbox.plan()
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
        plan = self.inbox.plan()
        process = threading.current_thread()
        if isinstance(process, Process):
            process.pause()
        with self._held(), open_ledger(self.state) as ledger:
            (result,) = self._run(plan, ledger)
        return result

    def _held(self) -> Any:
        with open_ledger(self.state) as ledger:
            key = ledger.key(self.inbox.out)
        return hold_output(self.state, key)

    def _run(self, plan: Plan, ledger: Ledger, **more: Any) -> tuple[JobResult, ...]:
        execution = Execution(
            plan=plan,
            run_id=f"r{next(self.runs)}",
            runtime=FakeRuntime(refuse_negative),
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
                tidy(SharedFolder(self.inbox.out))  # as the next command does
                return
        raise AssertionError(f"it comes to no end: {applied}")

    def check(self) -> None:
        """Raise AssertionError unless each row of each file is committed once, or failed."""
        values = sorted(value for values in self.inbox.files.values() for value in values)
        lines = [line for part in self.inbox.out.glob("part-*") for line in part.read_text().splitlines()]
        found = sorted(json.loads(line)["y"][0] / 2 for line in lines)
        assert found == [value for value in values if value > 0]
        self.inbox.check()


@pytest.fixture(name="world")
def make_world(tmp_path: Path) -> World:
    """An inbox with two files of four rows, each a part, of which shards have made a first plan."""
    world = World(Inbox(tmp_path).make(), random.Random(1))  # noqa: S311  moments, not secrets
    for name in ("a", "b"):
        world.inbox.put(name, [float(1 + next(world.numbers)) for _ in range(4)])
    world.save_plan()
    world.shard(0, 1)
    world.finish()
    return world


def put(world: World, name: str, rows: int) -> None:
    world.inbox.put(name, [float(1 + next(world.numbers)) for _ in range(rows)])


def killed_as_it_begins(world: World) -> None:
    """Have a run on one machine note its files, and end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "write_marker", die_before)
        with pytest.raises(Killed):
            world.apply()


def settled(world: World) -> None:
    world.settle()
    world.check()


def test_finish_marks_no_file_done_that_arrived_after_its_plan(world: World) -> None:
    """A run on one machine has noted the file, and was killed before it read a row."""
    put(world, "c", 4)
    world.save_plan()
    put(world, "d", 3)
    killed_as_it_begins(world)
    for do in (lambda: world.shard(0, 1), world.finish):
        ended = do()
        assert ended is not None
        assert ended.status is Status.DONE, ended.reason
    assert not world.open()
    settled(world)


def test_finish_of_a_finished_plan_leaves_a_later_run_as_it_is(world: World) -> None:
    put(world, "c", 6)
    killed_as_it_begins(world)
    before = world.inbox.known()
    done = world.finish()
    assert done is not None
    assert (done.status, world.inbox.known()) == (Status.DONE, before)
    settled(world)


@pytest.mark.parametrize("rows", [4, 3], ids=["of other parts", "of a longer part"])
def test_a_plan_whose_rows_another_run_has_made_with_those_of_later_files_is_refused_and_stays_nowhere(
    world: World, rows: int
) -> None:
    put(world, "c", rows)
    world.save_plan()
    put(world, "d", 9)
    with killed_at_part(4):
        world.apply()
    refused = world.shard(0, 1)
    assert refused is not None
    assert refused.refused, refused.reason
    assert not world.open()
    settled(world)


@pytest.mark.parametrize("killed", [False, True], ids=["", "and is killed"])
def test_a_run_on_one_machine_that_begins_as_a_later_plan_does_is_found_by_the_plan(
    world: World, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """It begins after the plan has looked for a run, and before the plan is seen; the plan is withdrawn."""
    put(world, "c", 9)
    world.save_plan()
    beside: list[threading.Thread] = []
    is_begun, may_end = threading.Event(), threading.Event()

    def wait(*arguments: Any) -> None:
        write_marker(*arguments)
        is_begun.set()
        assert may_end.wait(60)

    def run_beside(original: Any, log: CommitLog) -> None:
        original(log)
        monkeypatch.setattr(resume, "_check_alone", lambda *_, **__: None)  # it has looked before the plan is seen
        monkeypatch.setattr(resume, "write_marker", wait)
        beside.append(threading.Thread(target=world.apply, daemon=True))
        beside[0].start()
        assert is_begun.wait(60)

    with instead(monkeypatch, "_check_others", run_beside), suppress(Killed):
        if killed:
            monkeypatch.setattr(begin.Beginning, "run", begin_and_die)
        ended = world.shard(0, 1)
        assert ended is not None
        assert "another run is at work on out" in (ended.reason or "")
    assert len(world.open()) == killed
    if killed:
        monkeypatch.undo()
        ended = world.shard(0, 1)
        assert ended is not None
        assert "another run is at work on out" in (ended.reason or "")
        assert not world.open()
    may_end.set()
    beside[0].join()
    settled(world)


def begin_and_die(self: begin.Beginning, _settle: Any) -> None:
    self.decisions.begin(known=True)
    raise Killed


def guarded(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except LockedError:
        return "locked"


def live(folder: Path, seed: int) -> None:
    """Live one life of an output, to its end."""
    draw = random.Random(seed)  # noqa: S311  moments, not secrets
    world = World(Inbox(folder).make(), draw)
    world.arrive()
    if draw.random() < 0.6:  # a first plan, or a first run
        if draw.random() < 0.5:
            world.save_plan()
            world.shard(0, 1)
            world.finish()
        else:
            world.apply()
        world.arrive()
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.8:
            world.arrive()
            world.save_plan()
        count = draw.randint(1, 3)
        kinds: dict[str, Callable[[], Any]] = {
            "apply": world.apply,
            "shard": lambda count=count: world.shard(draw.randrange(count), count),  # type: ignore[misc]
            "finish": world.finish,
            "save": world.save_plan,
            "arrive": world.some_arrive,
        }
        chosen = ["arrive", "apply", "shard", *draw.choices(list(kinds), [3, 4, 3, 1, 1], k=draw.randint(0, 2))]
        killed_at = [draw.choice([None, None, draw.randint(1, 12), draw.randint(8, 40)]) for _ in chosen]
        processes = [
            Process(kind, partial(guarded, kinds[kind]), moment) for kind, moment in zip(chosen, killed_at, strict=True)
        ]
        take_turns(processes[draw.choice([0, 0, 1]) :], draw)
    world.settle()
    world.check()


def lives(folder: Path, seeds: range) -> None:
    """Live a life for each seed."""
    methods: list[tuple[Any, str]] = [
        *((SharedFolder, name) for name in ("create", "make", "read", "publish", "delete", "clear", "look")),
        *((Ledger, name) for name in ("begin", "commit_part", "end", "cut_off", "forget_begun")),
        (resume, "_has_open_plans"), (resume, "write_marker"), (begin.Beginning, "_look"),
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, steps(*methods):
        patch.setattr(output_lock, "PATIENCE", 0.0)
        for seed in seeds:
            try:
                live(folder / str(seed), seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


def test_every_row_is_there_once_whatever_shards_and_one_machine_do_at_the_same_time(tmp_path: Path) -> None:
    lives(tmp_path, range(effort(4, 1500)))
