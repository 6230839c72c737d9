"""Power loss while versions come and go: from every state of the disk the old one runs or the new, never a mixture."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from support.bundle_worlds import MANIFEST, World
from support.effort import effort
from support.power_loss import Disk, Event, durable, failures_after, quickly, recording

from ortdeploy.files import names

SAID = {1: ["left", "right"], 2: ["rechts", "links"]}
"""What versions say of two rows; with the model of one and the labels of the other, it would be something else."""


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> World:
    """A checkout and a device without a policy, on which nothing has run and no row waits."""
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
    world = World(tmp_path, cli)
    world.write(MANIFEST.replace("key: [row]", "key: [row], on_empty: done"))
    return world


def bundles(world: World) -> tuple[Path, Path]:
    """Make two versions that differ in model and labels."""
    old = world.bundle(1)
    world.change_model(-1)
    (world.home / "labels.txt").write_text("links\nrechts\n")
    return old, world.bundle(2)


def recorded(world: World, *words: str | Path) -> tuple[list[Event], int]:
    """Return what has made the device's files and what a command does to them, and how many events are of before."""
    before = list(durable(world.device))
    with recording(world.device) as events:
        done = world.run(*words)
    assert done.code == 0, done.err
    assert not [one for one in events if one.kind.startswith("ledger")], "jobs have a power loss of their own"
    return [*before, *events], len(before)


def lose_power(world: World, bundle: Path, *words: str | Path) -> None:
    """Let a command change which version runs, and go on from states in which power loss leaves the disk meanwhile.

    One of the two versions runs, and no mixture, and the bundle can be taken then. At the end, the new one does.
    """
    before = world.version
    events, begin = recorded(world, *words)
    after = world.version
    assert before != after

    def go_on(left: Path, *may_run: int | None) -> None:
        world.device = left
        with quickly():
            version = world.version
            assert version in may_run
            if version is not None:
                for row in (0, 1):
                    np.save(left / f"inbox/b{row}.npy", np.eye(2, dtype=np.float32)[row : row + 1])
                assert (done := world.run("apply", "@demo")).code == 0, done.err
                assert world.words()[-2:] == SAID[version]
            done = world.run("apply", bundle)
            assert (done.code, world.version) == (0, int(bundle.stem[-1])), done.err

    folder = world.home.parent
    found = failures_after(
        events, folder, lambda left: go_on(left, before, after), kills=False, begin=begin, every=effort(40, 1)
    )
    assert [*found] == []
    disk = Disk()
    for event in events:
        disk.apply(event)
    disk.leave(folder / "end", *next(disk.states()))  # all is lost that is not durable
    go_on(folder / "end", after)


def test_a_first_version_runs_or_nothing_does(world: World) -> None:
    old, _ = bundles(world)
    lose_power(world, old, "apply", old)


def test_the_version_before_runs_or_the_next_one(world: World) -> None:
    old, new = bundles(world)
    assert world.run("apply", old).code == 0
    lose_power(world, new, "apply", new)


def test_a_rollback_goes_back_or_does_not(world: World) -> None:
    old, new = bundles(world)
    assert [world.run("apply", one).code for one in (old, new)] == [0, 0]
    lose_power(world, world.bundle(3), "rollback", "@demo")
