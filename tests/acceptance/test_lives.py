"""Random lives of one output, without a manifest: whatever is done to it, every row of every file is there once.

What is done: files arrive, change, are touched and go; plans are saved for shards, whose processes are killed and run
again; one machine applies, applies again as a watch does, retries and puts parts together, and is killed; its ledger is
backed up, lost and brought back. Another job reads the rows. ORTDEPLOY_LIVES says how many lives, ORTDEPLOY_LIVES_SEED
which one is the first.
"""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.fakes import double, refuse_negative
from support.fuse import killed_at
from support.inbox import Inbox
from support.power_loss import STATE
from support.shards import Killed, die_after, die_before, instead
from support.worlds import ENDED, World

from ortdeploy.ledger.backup import back_up, bring_back
from ortdeploy.results.results import Status

LIVES = int(os.environ.get("ORTDEPLOY_LIVES", "30"))
FIRST = int(os.environ.get("ORTDEPLOY_LIVES_SEED", "0"))

_MOMENTS = ("begin", "staging", "stage", "decide", "publish", "close", "tidy", "settle")


class Life:
    """One output, and what may be done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311  moments, not secrets
        self.inbox = Inbox(folder, heals=True).make()
        self.world = World(self.inbox, self.draw, has_reader=self.draw.random() < 0.4)
        self.done: list[str] = []

    def step(self) -> None:
        """Do something."""
        steps: dict[str, tuple[int, Callable[[], Any]]] = {
            "arrive": (6, self.world.arrive),
            "change": (2, self.change),
            "touch": (1, self.touch),
            "remove": (1, self.remove),
            "save": (4, self.world.save_plan),
            "shard": (8, self.shard),
            "finish": (4, self.finish),
            "apply": (5, self.apply),
            "retry": (2, self.retry),
            "compact": (2, self.compact),
            "read on": (3, self.read_on),
            "restore": (1, self.lose_and_restore),
            "rebuild": (1, self.lose_and_rebuild),
        }
        (name,) = self.draw.choices(list(steps), [weight for weight, _ in steps.values()])
        self.done.append(name)
        steps[name][1]()

    @property
    def is_free(self) -> bool:
        """Whether nobody has promised a plan that files stay as they are."""
        return not self.world.open()

    def change(self) -> None:
        """Give a file other rows, as many as before or not."""
        if self.is_free and self.inbox.files:
            name = self.draw.choice(sorted(self.inbox.files))
            rows = self.draw.choice([len(self.inbox.files[name]), self.draw.randint(0, 6)])
            self.inbox.put(name, [self.world.value() for _ in range(rows)])

    def touch(self) -> None:
        if self.is_free and self.inbox.files:
            self.inbox.touch(self.draw.choice(sorted(self.inbox.files)))

    def remove(self) -> None:
        """Take a file away."""
        if self.is_free and len(self.inbox.files) > 1:
            self.inbox.remove(self.draw.choice(sorted(self.inbox.files)))

    def killed(self, do: Callable[[], Any]) -> Any:
        """Do something, and kill it at one of its steps, or not."""
        if self.draw.random() < 0.6:
            return do()
        with suppress(Killed), killed_at(self.draw.randint(1, 30)):
            return do()
        return None

    def shard(self) -> None:
        count = self.draw.randint(1, 3)
        method, die = self.draw.choice(_MOMENTS), self.draw.choice([die_before, die_after])
        for index in self.draw.sample(range(count), self.draw.randint(1, count)):
            if self.draw.random() < 0.7:
                self.world.shard(index, count)
            else:
                with pytest.MonkeyPatch.context() as patch, suppress(Killed), instead(patch, method, die):
                    self.world.shard(index, count)

    def finish(self) -> None:
        self.killed(self.world.finish)

    def apply(self) -> None:
        """Apply once, or as a watch does until nothing is left."""
        self.world.model = self.draw.choice([refuse_negative, refuse_negative, double])
        self.killed(self.world.apply)
        if self.draw.random() < 0.3:
            self.world.apply()
            self.world.apply()

    def retry(self) -> None:
        if self.is_free and self.world.is_known:
            self.world.model = self.draw.choice([refuse_negative, double])
            self.killed(self.world.retry)

    def compact(self) -> None:
        if self.is_free and not (self.inbox.out / "_parts").exists() and self.world.is_known:
            if self.world.has_reader:
                return  # as the command says
            self.killed(lambda: self.inbox.compact(self.draw.choice([4, 8])))

    def lose_and_restore(self) -> None:
        """Bring a copy of the ledger back, of now or of a step before."""
        state, copy = self.inbox.at / STATE, self.inbox.at / "copy.zip"
        if not (state / "state.db").exists():
            return
        copy.unlink(missing_ok=True)
        back_up(state, copy)
        lost = state.with_name("lost")
        shutil.rmtree(lost, ignore_errors=True)
        state.rename(lost)
        bring_back(copy, state)

    def lose_and_rebuild(self) -> None:
        """Lose the ledger of an output that shards have made, and make it again, or bring it back."""
        state = self.inbox.at / STATE
        if not self.is_free or not self.world.plans or not (state / "state.db").exists() or self.world.has_reader:
            return  # that of the reader's output would be lost too, and nothing beside its parts says what is in them
        lost = state.with_name("lost")
        shutil.rmtree(lost, ignore_errors=True)
        state.rename(lost)
        made = self.world.finish()
        if made is None or made.status is not Status.DONE:
            shutil.rmtree(state, ignore_errors=True)
            lost.rename(state)

    def read_on(self) -> None:
        """Run the job that reads the rows, if there is one."""
        if self.world.has_reader and self.world.is_known:
            self.killed(self.world.read_on)

    def end(self) -> None:
        """Bring it to its end, and compare all rows."""
        self.world.model = refuse_negative
        self.world.settle()
        self.inbox.check()
        if self.world.has_reader:
            for _ in range(2):
                assert self.world.read_on().status in ENDED
            self.world.check_reader()


def live(folder: Path, seed: int) -> None:
    """Live the life of a seed."""
    life = Life(folder / str(seed), seed)
    try:
        life.world.arrive()
        for _ in range(life.draw.randint(6, 18)):
            life.step()
            if life.draw.random() < 0.1:
                life.end()
        life.end()
    except BaseException as error:
        error.add_note(f"ORTDEPLOY_LIVES_SEED={seed}: {' '.join(life.done)}")
        raise
    shutil.rmtree(folder / str(seed))


@pytest.mark.slow
def test_every_row_is_there_once_whatever_is_done_to_an_output(tmp_path: Path) -> None:
    for seed in range(FIRST, FIRST + LIVES):
        live(tmp_path, seed)
