"""How many rows may fail of those that an apply runs, whatever earlier ones have run."""

from pathlib import Path

import pytest
from support.inbox import Inbox

from ortdeploy.results.results import Status


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path).make()


def end(inbox: Inbox, max_failed: int | str) -> Status:
    return inbox.apply([Status.DONE, Status.FAILED], inbox.plan(max_failed))


def test_good_rows_of_earlier_applies_allow_no_bad_ones(inbox: Inbox) -> None:
    inbox.put("a", [*range(200)])
    assert end(inbox, "50%") is Status.DONE
    inbox.put("b", [-1] * 16)
    inbox.put("c", [-1] * 5)
    assert end(inbox, "50%") is Status.FAILED
    inbox.put("c", [1])
    assert end(inbox, "50%") is Status.DONE
    inbox.check()


def test_one_bad_row_among_few_is_held_against_a_share_of_those_before_too(inbox: Inbox) -> None:
    inbox.put("a", [*range(30)])
    assert end(inbox, "10%") is Status.DONE
    inbox.put("b", [1])
    assert end(inbox, "10%") is Status.DONE
    for name in "bcd":
        inbox.put(name, [-1])
        assert end(inbox, "10%") is Status.DONE
    inbox.put("e", [-1])
    assert end(inbox, "10%") is Status.FAILED
    inbox.put("e", [1])
    assert end(inbox, "10%") is Status.DONE
    inbox.check()


@pytest.mark.parametrize("max_failed", [2, "50%"])
def test_bad_rows_of_earlier_applies_are_forgiven(inbox: Inbox, max_failed: int | str) -> None:
    inbox.put("a", [1, -1, -1, 1])
    assert end(inbox, max_failed) is Status.DONE
    inbox.put("b", [-1, 1, 1, -1])
    assert end(inbox, max_failed) is Status.DONE
    inbox.check()


def test_bad_rows_of_a_run_that_they_ended_count_until_their_file_is_mended(inbox: Inbox) -> None:
    inbox.put("a", [1, -1, 1, 1])
    inbox.put("b", [1, -1, -1, 1])
    assert end(inbox, 2) is Status.FAILED
    inbox.put("c", [-1, 1, 1, 1])
    assert end(inbox, 2) is Status.FAILED
    inbox.put("b", [1, 1, 1, 1])
    assert end(inbox, 2) is Status.DONE
    inbox.check()


@pytest.mark.parametrize(("max_failed", "most"), [(1, 1), ("25%", 4)])
def test_rows_of_changed_files_have_a_budget_of_their_own(inbox: Inbox, max_failed: int | str, most: int) -> None:
    inbox.put("a", [1, -1, 1, 1])
    inbox.put("b", [1] * 8)
    assert end(inbox, max_failed) is Status.DONE
    inbox.put("b", [-1] * (most + 1) + [1] * (7 - most))
    inbox.put("c", [*range(40)])
    assert end(inbox, max_failed) is Status.FAILED
    inbox.put("b", [-1] * most + [1] * (8 - most))
    assert end(inbox, max_failed) is Status.DONE
    inbox.check()
