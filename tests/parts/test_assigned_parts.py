"""A driver gives parts one at a time, and hears of each when it is decided."""

from typing import Any

from ortdeploy.parts.assigned_parts import AssignedParts
from ortdeploy.parts.parallel_map import in_threads
from ortdeploy.plan.part_table import PartTable

TABLE = PartTable(first_number=2, first_row=16, end=60, rows_per_part=8)


def test_a_part_that_was_in_work_comes_again_and_a_decided_one_does_not() -> None:
    ready, answers, nothing = list[str](), list[Any](), None
    assigned = AssignedParts(
        "ray 3", iter([2, 5, 4]), on_ready=lambda: ready.append("ready"), answer=lambda *told: answers.append(told)
    )
    parts = assigned.parts(TABLE)
    assert next(parts).number == 2
    assert next(assigned.parts(TABLE)).number == 2, "another session took over"
    assert ready == ["ready"]
    assigned.decided(TABLE.part(2), nothing, made_here=True)  # type: ignore[arg-type]
    assert answers == [(TABLE.part(2), nothing, True)]
    left = assigned.parts(TABLE)
    assert [one.number for one in left] == [5, 4]
    assert (ready, str(assigned)) == (["ready", "ready"], "ray 3")


def test_many_things_are_asked_for_in_order_by_one_or_by_several() -> None:
    for at_once in (1, 4):
        assert list(in_threads(lambda one: one * 2, range(2500), at_once)) == list(range(0, 5000, 2))
