"""Lives of an output on a store: two machines begin it at once, files arrive, and processes die before any request.

Whatever happens in whatever order: one of the machines comes to the end, and every row of every file is there once.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support import s3
from support.effort import effort
from support.fakes import refuse_negative
from support.inbox import Inbox
from support.store_worlds import StoreWorld
from support.turns import Process, steps, take_turns

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.object_store import Upload
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.jobs import resume
from ortdeploy.ledger import output_lock
from ortdeploy.ledger.ledger import Ledger

REQUESTS = ("pipe_file", "cat_file", "put_file", "cp_file", "rm_file", "info", "ls", "find")


def otherwise(feeds: Any) -> Any:
    """What the second machine makes of rows: its parts have other bytes."""
    made = refuse_negative(feeds)["y"].copy()
    made[:, 1] += 1
    return {"y": made}


class Machines:
    """Two machines with the same input files, whose output is at one URL. The parts of each are told apart."""

    def __init__(self, folder: Path, url: str, draw: random.Random) -> None:
        self.draw = draw
        first = StoreWorld(Inbox(folder / "one").make(), draw, url=url)
        second = StoreWorld(Inbox(folder / "two").make(), draw, url=url, plans=first.plans, model=otherwise)
        second.runs = count(1000)  # no two runs have one name
        self.worlds = (first, second)

    def arrive(self) -> None:
        """Put a file, on both machines."""
        first, second = self.worlds
        before = set(first.inbox.files)
        first.arrive()
        for name in first.inbox.files.keys() - before:
            second.inbox.put(name, first.inbox.files[name])

    def settle(self) -> None:
        """Bring everything to its end on some machine. Raises AssertionError if there is none, or it is wrong."""
        ends = [world.end() for world in self.worlds]
        assert None in ends, ends
        for world, why in zip(self.worlds, ends, strict=True):
            if why is None:
                world.check()


def live(folder: Path, url: str, draw: random.Random, calm: Callable[[], None] = lambda: None) -> None:
    """Live one life of an output, to its end. `calm` is called before that: from then on, the store answers."""
    machines = Machines(folder, url, draw)
    machines.arrive()
    machines.arrive()
    if draw.random() < 0.5:  # a first plan
        first, _ = machines.worlds
        for do in (first.save_plan, partial(first.shard, 0, 1), first.finish, machines.arrive):
            patiently(do)
    if draw.random() < 0.4:
        take_turns([process_of(world, draw, "apply") for world in machines.worlds], draw)
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.5:
            machines.arrive()
        for world in machines.worlds:
            if draw.random() < 0.6:
                patiently(world.save_plan)
        processes = [process_of(draw.choice(machines.worlds), draw) for _ in range(draw.randint(2, 4))]
        take_turns(processes, draw)
    calm()
    machines.settle()


def process_of(world: StoreWorld, draw: random.Random, kind: str | None = None) -> Process:
    """Return a process that does something on a machine, and perhaps is killed."""
    shards = draw.randint(1, 3)
    kinds: dict[str, Callable[[], Any]] = {
        "apply": world.apply,
        "shard": lambda: world.shard(draw.randrange(shards), shards),
        "finish": world.finish,
        "save": world.save_plan,
    }
    kind = kind or draw.choices(list(kinds), [4, 4, 2, 1])[0]
    killed_at = draw.choice([None, None, draw.randint(1, 30), draw.randint(10, 90)])
    return Process(kind, partial(patiently, kinds[kind]), killed_at)


def patiently(do: Callable[[], Any]) -> Any:
    """Do something that may find the output locked, or the store away."""
    try:
        return do()
    except OrtdeployError as error:
        return error


def lives(
    folder: Path, requests: Sequence[tuple[Any, str]], seeds: Sequence[int], live_one: Callable[[Path, int], None]
) -> None:
    """Live a life for each seed; processes take turns before each of the requests."""
    ledger = ((Ledger, name) for name in ("begin", "commit_part", "end", "cut_off", "forget_begun"))
    with pytest.MonkeyPatch.context() as patch, steps(*requests, *ledger, (resume, "write_marker")):
        patch.setattr(output_lock, "PATIENCE", 0.0)
        patch.setattr(SharedStore, "at_once", 1)  # so that a process is one thread
        patch.setattr("ortdeploy.retries.FIRST_WAIT", 0.0)
        for seed in seeds:
            try:
                live_one(folder / str(seed), seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


def drawn(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  moments, not secrets


def test_every_row_is_there_once_whatever_two_machines_do_on_a_store_at_the_same_time(
    tmp_path: Path, store: Any
) -> None:
    requests = [(type(store), name) for name in REQUESTS]
    live_one = lambda at, seed: live(at, f"memory://bucket/{seed}", drawn(seed))  # noqa: E731  one line
    lives(tmp_path, requests, range(effort(4, 80)), live_one)


_FAULTS = (s3.BUSY, s3.BROKEN, s3.CUT_BEFORE, s3.CUT_AFTER, s3.CUT_WITHIN)


@pytest.mark.slow
@pytest.mark.process
def test_every_row_is_there_once_whatever_befalls_requests_of_two_machines(tmp_path: Path, bucket: s3.Store) -> None:
    """The store's package sends most of these requests again by itself."""

    def live_one(at: Path, seed: int) -> None:
        fate = drawn(-1 - seed)
        bucket.faults = lambda _request: fate.choice(_FAULTS) if fate.random() < 0.03 else None
        live(at, bucket.url(str(seed)), drawn(seed), calm)

    def calm() -> None:
        bucket.faults = lambda _request: None

    requests = [(SharedStore, "_do"), (Upload, "_put"), (Upload, "_asked")]
    lives(tmp_path, requests, range(effort(2, 6)), live_one)
