"""An unfinished run whose input files change or go: the next one goes on, and every row is committed once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.fuse import killed_at
from support.inbox import Inbox
from support.power_loss import quickly

from ortdeploy.files.atomic import TEMPORARY
from ortdeploy.results.results import Status

ANY_END = (Status.DONE, Status.NOTHING_TO_DO, Status.FAILED)


@pytest.fixture(name="inbox")
def make_inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path, on_change="refuse").make()


def lines(inbox: Inbox) -> list[tuple[int, float]]:
    """Return the number and value of each committed row, in order."""
    files = sorted(path for path in inbox.out.glob("part-*") if not path.name.endswith(TEMPORARY))
    found = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["row"], line["y"][0] / 2) for line in found]


def test_a_plan_that_was_overtaken_by_a_run_of_other_files_runs_nothing(inbox: Inbox) -> None:
    """The other run has committed rows of a file that this plan leaves out, after it was made."""
    inbox.put("a", [1, 2, 3, 4])
    inbox.put("b", [-1])
    inbox.put("c", [5, 6])
    inbox.apply([Status.FAILED], inbox.plan(max_failed=0))
    inbox.remove("b")
    late = inbox.plan()
    inbox.put("b", [11, 12, 13, 14])
    inbox.put("c", [-5, 6])
    inbox.apply([Status.FAILED], inbox.plan(max_failed=0))
    before = lines(inbox)
    assert before[4:] == [(4, 11), (5, 12), (6, 13), (7, 14)]
    inbox.remove("b")
    inbox.put("c", [5, 6])
    inbox.apply([Status.FAILED], changed_files(late, inbox))
    assert lines(inbox) == before
    inbox.apply()
    assert lines(inbox) == [*before, (8, 5), (9, 6)]


def test_kept_rows_of_a_file_that_another_run_has_read_since_the_plan_run_again(inbox: Inbox) -> None:
    inbox.put("a", [1, 2, 3, 4])
    inbox.put("b", [-1])
    inbox.put("c", [5, 6, -7])
    inbox.apply([Status.FAILED], inbox.plan(max_failed=0))
    inbox.remove("b")
    inbox.put("c", [8, 9])
    late = inbox.plan()
    inbox.put("b", [11, 12])
    inbox.put("c", [-5, 6])
    inbox.apply([Status.FAILED], inbox.plan(max_failed=0))
    inbox.remove("b")
    inbox.put("c", [8, 9])
    inbox.apply(plan=changed_files(late, inbox))
    assert lines(inbox) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8), (5, 9)]


def test_that_a_file_has_no_rows_is_noted_also_if_the_run_before_ended_within_another_one(inbox: Inbox) -> None:
    inbox.put("a", [1, 2])
    inbox.put("b", [3, 4, -5])
    inbox.put("c", [])
    inbox.apply([Status.FAILED], inbox.plan(max_failed=0))
    inbox.remove("a")
    inbox.apply()
    inbox.check()


def changed_files(plan: Any, inbox: Inbox) -> Any:
    """Return a plan with the times that its files have now, as if they had been put back as they were."""
    (job,) = (step for step in plan.steps if hasattr(step, "job"))
    now = {one.path: one for one in inbox.states()}
    files = [now[path] for path, *_ in job.input.files]
    steps = [replace(one, input=replace(one.input, files=files)) if one is job else one for one in plan.steps]
    return replace(plan, steps=tuple(steps))


NAMES = st.sampled_from("abcd")
VALUES = st.lists(st.integers(-1, 9).map(float), max_size=6)
STEP = st.one_of(
    st.tuples(st.just("put"), NAMES, VALUES),
    st.tuples(st.just("take"), NAMES),
    st.tuples(st.just("touch"), NAMES),
    st.tuples(st.just("kill"), st.integers(1, 40)),
    st.tuples(st.just("fail")),
    st.tuples(st.just("apply")),
)


@settings(
    max_examples=effort(10, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(STEP, max_size=14), removable=st.booleans(), on_change=st.sampled_from(["refuse", "rerun", "append"])
)
def test_in_any_sequence_every_row_is_committed_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], removable: bool, on_change: str
) -> None:
    inbox = Inbox(tmp_path_factory.mktemp("days"), removable=removable, on_change=on_change).make()
    held: dict[tuple[str, int, int], list[float]] = {}

    def change(what: str, *more: Any) -> None:
        if what == "put":
            inbox.put(*more)
        elif more[0] in inbox.files:
            (inbox.remove if what == "take" else inbox.touch)(*more)
        held.update({(one.path, one.size, one.mtime_ns): inbox.files[Path(one.path).stem] for one in inbox.states()})

    def bring_back() -> None:
        """Put the files back whose change or removal is refused, as the ledger has them."""
        for path in inbox.look().changed:
            (known,) = (one.state for one in inbox.known() if one.state.path == path)
            name, values = Path(path).stem, held[tuple(known)]
            inbox.put(name, values)
            os.utime(inbox.at / "work" / path, ns=(known.mtime_ns, known.mtime_ns))
            inbox.removed.discard(name)

    with quickly():
        change("put", "z", [1, 2])
        for what, *more in steps:
            if what in {"put", "take", "touch"}:
                change(what, *more)
                continue
            bring_back()
            if what == "kill":
                with killed_at(*more):
                    inbox.apply()
            else:
                inbox.apply(ANY_END, inbox.plan(max_failed=0 if what == "fail" else 999))
        bring_back()
        inbox.apply()
        inbox.out.mkdir(exist_ok=True)
        inbox.check()
