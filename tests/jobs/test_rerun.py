"""Changed files run again: after a kill or power loss at every step, and in any sequence, every row is there once."""

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.carriers import CARRIERS, Carrier
from support.effort import effort
from support.fakes import FakeRuntime, double
from support.fuse import killed_at
from support.inbox import Inbox, failures_of
from support.power_loss import EVERY, Event, execute_there, quickly, recording

from ortdeploy.results.results import Status


def first_day(inbox: Inbox) -> None:
    """Two files that share a part, one of several parts, and one that is not changed."""
    inbox.put("a", [1, -2, 3])
    inbox.put("b", [11, 12, 13, 14, 15, 16])
    inbox.put("c", [21, 22])
    inbox.put("d", [31, 32])


def second_day(inbox: Inbox) -> None:
    """One as long as before, in two parts; one longer than before; one whose rows all fail; and a new one."""
    inbox.put("b", [-41, 42, 43, 44, 45, -46])
    inbox.put("a", [51, 52, 53, -54])
    inbox.put("d", [-61, -62])
    inbox.put("e", [71])


def third_day(inbox: Inbox) -> None:
    """What was to run again has changed once more."""
    inbox.put("b", [81, 82, 83, 84, -85, 86])
    inbox.put("a", [91, 92, 93])
    inbox.put("d", [101])


def recorded_days(inbox: Inbox) -> tuple[list[Event], int]:
    """Return what two days do to the disk, and where the second one begins."""
    with recording(inbox.at) as events:
        first_day(inbox)
        inbox.apply()
        begin = len(events)
        second_day(inbox)
        inbox.apply()
    inbox.check()
    return list(events), begin


def go_on(inbox: Inbox, carrier: Carrier, *, again: bool) -> None:
    """Carry away what is there, perhaps change files once more, do the rest, and look at what is left."""
    away = inbox.at / "away"
    carrier(inbox.out, away / "1")
    if again:
        third_day(inbox)
    with quickly():
        inbox.apply()
        inbox.check(away)
        carrier(inbox.out, away / "2")
        inbox.apply()


@pytest.fixture(name="days", scope="module", params=[False, True], ids=["in place", "removable"])
def make_days(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Inbox, list[Event], int]:
    inbox = Inbox(tmp_path_factory.mktemp("days"), removable=request.param).make()
    return (inbox, *recorded_days(inbox))


@pytest.mark.quick("in place-the same-9")
@pytest.mark.process
@pytest.mark.parametrize(
    ("again", "every"), [(False, 9), (False, EVERY), (True, EVERY)], ids=["the same-9", "the same", "changed again"]
)
def test_killed_at_every_step_every_row_is_there_once(
    days: tuple[Inbox, list[Event], int], tmp_path: Path, again: bool, every: int
) -> None:
    continued = partial(go_on, carrier=CARRIERS["nobody"], again=again)
    assert list(failures_of(*days, tmp_path, continued, kills=True, every=every)) == []


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["the same", "changed again"])
def test_after_power_loss_at_every_step_every_row_is_there_once(
    days: tuple[Inbox, list[Event], int], tmp_path: Path, again: bool
) -> None:
    continued = partial(go_on, carrier=CARRIERS["nobody"], again=again)
    assert list(failures_of(*days, tmp_path, continued, kills=False)) == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in CARRIERS if name != "nobody"])
def test_killed_and_carried_away_every_row_arrives(
    days: tuple[Inbox, list[Event], int], tmp_path: Path, name: str
) -> None:
    if days[0].removable:
        continued = partial(go_on, carrier=CARRIERS[name], again=False)
        assert list(failures_of(*days, tmp_path, continued, kills=True)) == []


VALUES = st.lists(st.integers(-3, 9).map(float), max_size=6)
NAMES = st.sampled_from("abcd")
STEP = st.one_of(
    st.tuples(st.just("put"), NAMES, VALUES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("kill"), st.integers(1, 40)),
    st.tuples(st.just("compact"), st.integers(1, 30), st.integers(2, 9)),
    st.tuples(st.just("carry"), st.sampled_from(sorted(CARRIERS))),
    st.tuples(st.just("retry"), st.integers(1, 30)),
    st.tuples(st.just("apply")),
)


@settings(
    max_examples=effort(6, 120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, max_size=12), removable=st.booleans(), keep=st.sampled_from([None, 0.0]))
@example(steps=[("put", "a", [0.0]), ("remove", "a"), ("compact", 1, 2)], removable=False, keep=None)
@example(steps=[("put", "a", [0.0]), ("remove", "a"), ("compact", 2, 2)], removable=False, keep=None)
def test_in_any_sequence_every_row_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], removable: bool, keep: float | None
) -> None:
    inbox = Inbox(tmp_path_factory.mktemp("days"), removable=removable, keep=keep).make()
    with quickly():
        inbox.put("z", [1, -2])
        inbox.apply()
        for number, (what, *more) in enumerate(steps):
            away = inbox.at / "away"
            if what == "put":
                inbox.put(*more)
            elif what == "remove" and more[0] in inbox.files:
                inbox.apply()
                inbox.remove(*more)
                inbox.apply()
            elif what == "kill":
                with killed_at(*more):
                    inbox.apply()
            elif what == "carry" and removable:
                CARRIERS[more[0]](inbox.out, away / f"{number}")
            elif what == "compact":
                with killed_at(more[0]):
                    inbox.compact(more[1])
            elif what == "apply":
                inbox.apply()
            elif what == "retry" and inbox.record().status == "done":
                with killed_at(*more):
                    inbox.retry()
        inbox.apply()
        inbox.out.mkdir(exist_ok=True)
        inbox.check(inbox.at / "away")


def with_a_begun_rewrite(folder: Path) -> tuple[Inbox, Path]:
    """Return an inbox whose apply was killed when the ledger knew a rewrite; and the file that waits for its name."""
    for event in itertools.count(1):
        inbox = Inbox(folder / str(event)).make()
        inbox.put("a", [1, 2, 3, 4, 5])
        inbox.apply()
        inbox.put("a", [11, 12, 13, 14, 15])
        with killed_at(event) as fuse:
            inbox.apply()
        assert fuse.blew, "no rewrite was begun"
        if inbox.record().rewrites:
            (waiting,) = inbox.out.glob(".part-*.replaced")
            return inbox, waiting
    raise AssertionError


def test_a_begun_rewrite_whose_file_is_gone_is_undone_and_its_rows_run_again(tmp_path: Path) -> None:
    inbox, waiting = with_a_begun_rewrite(tmp_path)
    waiting.unlink()
    inbox.apply()
    inbox.check()


@pytest.mark.parametrize("what", ["damaged", "placed and damaged"])
def test_what_a_begun_rewrite_is_made_of_is_not_guessed(tmp_path: Path, what: str) -> None:
    inbox, waiting = with_a_begun_rewrite(tmp_path)
    whole, part = waiting.read_bytes(), inbox.out / waiting.name.removeprefix(".").removesuffix(".replaced")
    before = part.read_bytes()
    waiting.unlink()
    if what == "damaged":
        waiting.write_bytes(b"damaged")
    elif what == "placed and damaged":
        part.write_bytes(whole[:-1])
    left = {path: path.read_bytes() for path in inbox.out.glob("*part-*")}
    for do in (inbox.apply, inbox.retry):
        with pytest.raises(AssertionError, match="Restore it from a copy"):
            do()
        assert {path: path.read_bytes() for path in inbox.out.glob("*part-*")} == left
    part.write_bytes(before)
    waiting.write_bytes(whole)
    inbox.apply()
    inbox.check()


@pytest.mark.parametrize("number", [1, 3])
def test_a_changed_file_that_changes_again_while_its_rows_run_replaces_nothing(tmp_path: Path, number: int) -> None:
    inbox = Inbox(tmp_path).make()
    inbox.put("a", [1, 2, 3, 4, 5, 6])
    inbox.apply()
    before = {path.name: path.read_bytes() for path in inbox.out.glob("part-*")}
    inbox.put("a", [11, 12, 13, 14, 15, 16])
    runs: list[int] = []

    def change(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        runs.append(len(feeds["x"]))
        if len(runs) == number:
            inbox.put("a", [21, 22, 23, 24, 25, 26])
        return double(feeds)

    assert execute_there(inbox.at, inbox.plan(), FakeRuntime(change), ends=[Status.FAILED]) is Status.FAILED
    now = {path.name: path.read_bytes() for path in inbox.out.glob("part-*")}
    assert [name for name in before if now[name] != before[name]] == ([] if number == 1 else ["part-00000000.jsonl"])
    inbox.apply()
    inbox.check()
