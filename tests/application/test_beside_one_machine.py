"""Shards of a first and a later plan beside runs on one machine, while files arrive and processes are killed.

Whatever happens in whatever order: every row of every file is there once, and no plan stays that nobody can close.
"""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.effort import effort
from support.inbox import Inbox
from support.shards import Killed, die_before, instead, killed_at_part
from support.turns import Process, steps, take_turns
from support.worlds import World

from ortdeploy.diagnostics import LockedError
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.jobs import begin_shared_plan, resume
from ortdeploy.ledger import output_lock
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.results.results import JobResult, Status


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
    ends: list[Callable[[], JobResult | None]] = [partial(world.shard, 0, 1), world.finish]
    for end in ends:
        ended = end()
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


def test_finish_marks_files_done_that_have_no_rows(world: World) -> None:
    put(world, "c", 0)
    world.save_plan()
    world.shard(0, 1)
    world.finish()
    assert not world.inbox.look().read
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


def test_what_a_killed_run_has_left_of_a_part_is_gone_if_no_row_of_it_gives_a_result(world: World) -> None:
    """The run has read a later file too, so its part had more rows than that of the plan."""
    world.inbox.put("c", [-1.0, -2.0])
    world.save_plan()
    put(world, "d", 3)
    with killed_at_part(2):
        world.apply()
    assert (world.inbox.out / "part-00000002.jsonl").exists()
    world.shard(0, 1)
    world.finish()
    assert not (world.inbox.out / "part-00000002.jsonl").exists()
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
            monkeypatch.setattr(begin_shared_plan.Beginning, "run", begin_and_die)
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


def test_a_plan_whose_withdrawal_was_cut_short_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run was at work on the output when the plan began, and is through."""
    put(world, "c", 4)
    world.save_plan()

    def withdraw_and_die(_: Any, log: CommitLog, file: str, *__: Any) -> None:
        monkeypatch.setattr(SharedFolder, "clear", die_before)
        log.withdraw(file)

    with instead(monkeypatch, "settle", withdraw_and_die), pytest.raises(Killed):
        world.shard(0, 1)
    monkeypatch.undo()
    assert world.open()
    again = world.shard(0, 1)
    assert again is not None
    assert again.status is Status.DONE, again.reason
    settled(world)


def begin_and_die(self: begin_shared_plan.Beginning, _settle: Any) -> None:
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
        (resume, "_has_open_plans"), (resume, "write_marker"), (begin_shared_plan.Beginning, "_look"),
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
    lives(tmp_path, range(effort(4, 250)))
