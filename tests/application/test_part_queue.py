"""Who makes which part: nothing is forgotten, nothing that hangs or kills holds the others up for ever."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.application.part_queue import MOST_LOSSES, OVERDUE_SECONDS, LostPartError, PartQueue


def given_to(queue: PartQueue, worker: int, clock: float = 0.0) -> list[int]:
    """All that a worker gets now."""
    return list(iter(lambda: queue.give(worker, clock), None))


def test_a_worker_has_two_parts_at_a_time_and_they_come_in_order() -> None:
    queue = PartQueue(range(5))
    assert given_to(queue, 0) == [0, 1]
    assert given_to(queue, 1) == [2, 3]
    assert queue.decided(1, 2, 1.0)
    assert (given_to(queue, 1), queue.left) == ([4], 4)


def test_what_a_lost_worker_had_is_given_first() -> None:
    queue = PartQueue(range(6))
    given_to(queue, 0)
    given_to(queue, 1)
    queue.lost(0, "its node is gone")
    assert given_to(queue, 2) == [0, 1]


def test_only_the_part_that_was_made_counts_as_lost_and_the_third_time_names_it() -> None:
    queue = PartQueue([7, 8])
    for worker in range(MOST_LOSSES - 1):
        assert given_to(queue, worker) == [7, 8]
        queue.lost(worker, f"worker {worker} ended")
    given_to(queue, 9)
    with pytest.raises(
        LostPartError, match="part 7 took down its worker 3 times: worker 0 ended; worker 1 ended; third"
    ) as error:
        queue.lost(9, "third")
    assert error.value.part == 7


def test_a_worker_that_is_refused_takes_no_part_down() -> None:
    queue = PartQueue([7])
    for worker in range(2 * MOST_LOSSES):
        assert given_to(queue, worker) == [7]
        queue.lost(worker, None)
    assert given_to(queue, 99) == [7]


def test_a_part_that_fails_is_given_again_and_the_third_failure_ends_the_job() -> None:
    queue = PartQueue([0])
    for worker in range(MOST_LOSSES - 1):
        assert given_to(queue, worker) == [0]
        queue.failed(worker, 0, "the disk is full", 1.0)
    given_to(queue, 5)
    with pytest.raises(LostPartError, match="the disk is full"):
        queue.failed(5, 0, "the disk is full", 1.0)


def test_a_failure_of_a_part_that_another_worker_has_made_counts_nothing() -> None:
    queue = PartQueue([0, 1])
    for worker in (0, 1):
        given_to(queue, worker)
        queue.failed(worker, 0, "memory ran out", 1.0)
    held = {worker: given_to(queue, worker, 2.0 + worker * 2 * OVERDUE_SECONDS) for worker in (2, 3)}
    assert [0 in parts for parts in held.values()] == [True, True]
    assert queue.decided(2, 0, 3 * OVERDUE_SECONDS)
    queue.failed(3, 0, "memory ran out", 3 * OVERDUE_SECONDS)
    assert queue.left == 1


def test_a_lost_part_goes_to_another_worker_while_there_is_other_work() -> None:
    queue = PartQueue(range(5))
    given_to(queue, 0)
    queue.failed(0, 0, "the disk is full", 1.0)
    assert given_to(queue, 0) == [2]
    queue.decided(0, 1, 2.0)
    assert given_to(queue, 1) == [0, 3]
    queue.failed(1, 3, "the disk is full there too", 3.0)
    queue.lost(1, None)
    assert given_to(queue, 0, 3.0) == [3]
    queue.decided(0, 2, 4.0)
    queue.decided(0, 3, 5.0)
    assert given_to(queue, 0, 5.0) == [4]
    queue.decided(0, 4, 6.0)
    assert given_to(queue, 0, 6.0) == [0]  # nothing else is left


def test_an_idle_worker_takes_what_another_has_not_begun() -> None:
    queue = PartQueue([0, 1])
    assert given_to(queue, 0) == [0, 1]
    assert given_to(queue, 1) == [1]
    assert queue.decided(1, 1, 1.0)
    assert not queue.decided(0, 1, 2.0)
    assert queue.left == 1


def test_a_part_that_takes_too_long_is_given_to_who_is_idle_but_to_three_at_most() -> None:
    queue = PartQueue([0])
    given_to(queue, 0)
    assert given_to(queue, 1, OVERDUE_SECONDS) == []
    late = OVERDUE_SECONDS + 1
    assert queue.overdue(late) == [(0, 0, late)]
    assert [given_to(queue, worker, late) for worker in (1, 2, 3)] == [[0], [0], []]
    assert queue.decided(2, 0, late)
    assert (queue.left, queue.overdue(late)) == (0, [])


def test_what_is_late_follows_what_the_others_took() -> None:
    queue = PartQueue(range(10))
    for part in range(9):
        assert queue.give(0, 100.0 * part) == part
        queue.decided(0, part, 100.0 * (part + 1))
    assert queue.give(0, 1000.0) == 9
    assert queue.overdue(1300.0) == []
    assert queue.overdue(1401.0) == [(0, 9, 401.0)]


def test_an_answer_that_comes_twice_or_late_is_no_news() -> None:
    queue = PartQueue([0, 1])
    given_to(queue, 0)
    queue.lost(0, "away")
    assert queue.decided(0, 0, 1.0)  # it was only away, and had made it
    assert not queue.decided(0, 0, 2.0)
    assert given_to(queue, 1) == [1]


@settings(max_examples=effort(50, 500), deadline=None)
@given(
    st.integers(1, 12), st.lists(st.tuples(st.sampled_from(["made", "lost", "late"]), st.integers(0, 3)), max_size=60)
)
def test_whatever_happens_to_workers_every_part_is_made(count: int, events: Iterable[tuple[str, int]]) -> None:
    queue, held, made, clock = PartQueue(range(count)), {worker: list[int]() for worker in range(4)}, set(), 0.0
    for event, worker in events:
        clock += 1.0 if event != "late" else OVERDUE_SECONDS
        for one, parts in held.items():
            parts.extend(given_to(queue, one, clock))
        if event == "made" and held[worker]:
            made.add(held[worker][0])
            queue.decided(worker, held[worker].pop(0), clock)
        if event == "lost":
            queue.lost(worker, None)
            held[worker].clear()
    for worker in range(1, 4):
        queue.lost(worker, None)
    while queue.left:
        held[0] += given_to(queue, 0, clock)
        made.add(held[0][0])
        queue.decided(0, held[0].pop(0), clock)
    assert made == set(range(count))
