"""One command is killed, another one is killed while it recovers what that left, and a third brings the output to its end.

Whatever the commands are, and wherever they die: every row of every file is there once or failed, and nothing hidden is.
The first dies before each of its events in turn, or before some that are drawn, the second before one that is drawn.
"""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.carriers import parts
from support.effort import effort
from support.fakes import FakeRuntime, double
from support.fuse import killed_at
from support.inbox import Inbox
from support.jobs import changed, retrying
from support.power_loss import STATE, execute_there, quickly

from ortdeploy.ledger.opening import read_ledger
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

URL = "memory://bucket/out"
ENDS = (Status.DONE, Status.NOTHING_TO_DO)


@dataclass
class Output(Inbox):
    """An inbox whose rows may be uploaded to `url`; `away` is where parts are carried."""

    url: str | None = None
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    def plan(self, max_failed: int | str = 999) -> Plan:
        plan = super().plan(max_failed)
        return plan if self.url is None else changed(plan, output={"upload": self.url})

    @property
    def away(self) -> Path:
        return self.at / "away"

    def rows(self, count: int) -> list[float]:
        """Return values that no other row has; every third one fails."""
        numbers = [next(self.numbers) for _ in range(count)]
        return [float(-number if number % 3 == 0 else number) for number in numbers]

    def go_on(self) -> None:
        """Apply; whether that is refused is for the next apply to say."""
        self.apply(ends=(*ENDS, Status.FAILED))

    def arrive(self) -> None:
        self.put(f"c{len(self.files)}", self.rows(3))
        self.go_on()

    def rerun(self) -> None:
        self.put("a", self.rows(len(self.files["a"])))
        self.go_on()

    def shorten(self) -> None:
        self.put("a", self.rows(max(len(self.files["a"]) - 2, 1)))
        self.go_on()

    def mend(self) -> None:
        """Retry, with a model that refuses nothing any more. The command refuses outputs that are not done."""
        execute_there(self.at, retrying(self.plan()), FakeRuntime(double), ends=(*ENDS, Status.FAILED))

    def join(self) -> None:
        self.compact(8)

    def forget(self) -> None:
        """Carry all parts away, and take a file away whose rows are done; they are forgotten."""
        done = [name for name in self.files if name != "a"]
        if self.record().status == "done" and done:
            parts(self.out, self.away / str(next(self.numbers)))
            self.remove(done[-1])
        self.go_on()


COMMANDS: Mapping[str, Callable[[Output], None]] = {
    "apply": Output.arrive, "rerun": Output.rerun, "shorten": Output.shorten, "retry": Output.mend,
    "compact": Output.join, "forget": Output.forget,
}  # fmt: skip
"""What brings an output on, and may be killed."""

PLACES: Mapping[str, tuple[str, ...]] = {
    "in place": ("apply", "rerun", "shorten", "retry", "compact"),
    "removable": ("apply", "rerun", "retry", "compact", "forget"),
    "on a store": ("apply", "rerun", "shorten", "retry"),
}
"""Kinds of outputs, and the commands that go with them."""


def begin(folder: Path, place: str) -> Output:
    """Make an output of three small parts, some rows of which have failed."""
    removable = place == "removable"
    output = Output(
        folder,
        removable=removable,
        keep=0.0 if removable else None,
        heals=True,
        url=URL if place == "on a store" else None,
    )
    output.make()
    for name, count in (("a", 5), ("b", 2)):
        output.put(name, output.rows(count))
        output.apply()
    return output


@dataclass
class Begun:
    """Outputs that were begun, each made once and copied; what is on a store is made anew."""

    folder: Path
    known: dict[str, Output] = field(default_factory=dict)

    def copied_to(self, folder: Path, place: str) -> Output:
        """Return an output of its own."""
        if place == "on a store":
            return begin(folder, place)
        if place not in self.known:
            self.known[place] = begin(self.folder / place, place)
        output = copy.deepcopy(self.known[place])
        shutil.copytree(output.at, folder)
        output.at = folder
        return output


def die_twice(output: Output, first: str, second: str, at: int, draw: random.Random) -> bool:
    """Live such a life; return whether the first command was killed."""
    with killed_at(at) as fuse:
        COMMANDS[first](output)
    with killed_at(draw.randint(1, 16)) as again:
        COMMANDS[second](output)
    output.apply()
    output.apply()
    output.check(output.away)
    check_report(output)
    if output.url is not None:
        check_store(output)
    assert fuse.met, "no event was met"
    assert again.met or not fuse.blew, "what was left was not recovered, or that made no event"
    shutil.rmtree(output.at)
    return fuse.blew


def check_report(output: Output) -> None:
    """What is written of rows that failed and of parts is what the ledger knows."""
    record, report = output.record(), json.loads((output.out / "_run.json").read_text())
    with read_ledger(output.at / STATE) as ledger:
        assert ledger is not None
        assert (output.out / "_failed.jsonl").read_text().splitlines() == [*ledger.failures(record.output)]
    assert [part["file"] for part in report["parts"]] == [part.file for part in record.parts]
    assert report["rows"]["committed"] == record.committed


def check_store(output: Output) -> None:
    """The store has the parts that are here, and no others."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    there = {Path(name).name: system.cat_file(name) for name in system.find(URL)}
    here = {path.name: path.read_bytes() for path in output.out.glob("part-*")}
    assert {name: content for name, content in there.items() if name.startswith("part-")} == here
    for name in ("_run.json", "_failed.jsonl"):
        assert there[name] == (output.out / name).read_bytes()


@pytest.fixture(name="begun", scope="module")
def begin_once(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    return Begun(tmp_path_factory.mktemp("begun"))


@pytest.fixture(name="lives")
def clean_lives(tmp_path: Path, store: Any, begun: Begun) -> Callable[..., bool]:
    """Live lives, each with a store that is empty at first."""

    def live(place: str, first: str, second: str, at: int, seed: str) -> bool:
        store.store.clear()
        store.pseudo_dirs[:] = [""]
        try:
            with quickly():
                draw = random.Random(seed)  # noqa: S311  moments, not secrets
                return die_twice(begun.copied_to(tmp_path / "life", place), first, second, at, draw)
        except BaseException as error:
            error.add_note(f"{place}: {first} killed at {at}, then {second}; seed {seed}")
            raise

    return live


COMMANDS_IN_TURN = [*COMMANDS]
PAIRS = [(place, first) for place, commands in PLACES.items() for first in commands]


def test_a_report_that_a_kill_has_left_behind_on_a_store_is_sent(lives: Callable[..., bool]) -> None:
    """The second retry dies as it sends its report, which is all that is left to do."""
    assert lives("on a store", "retry", "retry", 3, "on a store retry retry 3")


@pytest.mark.parametrize(("command", "events"), [("retry", range(8, 13)), ("compact", range(6, 10))])
def test_a_report_that_a_kill_has_left_behind_is_written(
    begun: Begun, tmp_path: Path, command: str, events: range
) -> None:
    """Nothing else is left to do."""
    for event in events:
        output = begun.copied_to(tmp_path / str(event), "in place")
        with quickly():
            with killed_at(event) as fuse:
                COMMANDS[command](output)
            assert fuse.blew
            assert output.apply() is Status.NOTHING_TO_DO
        output.check()
        check_report(output)


@pytest.mark.parametrize(("place", "first"), PAIRS)
def test_a_recovery_that_is_killed_is_recovered_from(lives: Callable[..., bool], place: str, first: str) -> None:
    draw = random.Random(f"{place} {first}")  # noqa: S311  moments, not secrets
    for number in range(effort(2, 100)):
        lives(place, first, draw.choice(PLACES[place]), draw.randint(1, 14), f"{place} {first} {number}")


@pytest.mark.slow
@pytest.mark.parametrize("second", COMMANDS)
@pytest.mark.parametrize(("place", "first"), PAIRS)
def test_killed_at_every_event_and_again_everything_is_recovered(
    lives: Callable[..., bool], place: str, first: str, second: str
) -> None:
    if second not in PLACES[place]:
        pytest.skip("it does not go with such an output")
    step = effort(6, 1)
    at = 1 + (COMMANDS_IN_TURN.index(second) % step)
    while lives(place, first, second, at, f"{place} {first} {second} {at}"):
        at += step
    assert at > step, f"{first} met {at - step} events"
