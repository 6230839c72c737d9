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
    inbox.put("a", [*range(40)])
    assert end(inbox, "25%") is Status.DONE
    inbox.put("b", [1, -1, -1, 1])
    assert end(inbox, "25%") is Status.FAILED
    inbox.put("b", [1, 1, -1, 1])
    assert end(inbox, "25%") is Status.DONE
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


@pytest.mark.parametrize("max_failed", [1, "25%"])
def test_rows_of_changed_files_have_a_budget_of_their_own(inbox: Inbox, max_failed: int | str) -> None:
    inbox.put("a", [1, -1, 1, 1])
    inbox.put("b", [1, 1, 1, 1])
    assert end(inbox, max_failed) is Status.DONE
    inbox.put("b", [1, -1, -1, 1])
    inbox.put("c", [*range(40)])
    assert end(inbox, max_failed) is Status.FAILED
    inbox.put("b", [1, 1, -1, 1])
    assert end(inbox, max_failed) is Status.DONE
    inbox.check()
