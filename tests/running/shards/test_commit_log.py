"""Two plans that begin at the same moment on one output: one of them makes its parts, and the other is refused."""

from pathlib import Path
from typing import Any

import pytest
from support.shards import Killed, die_after, instead

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.open_parts import FOLDER, open_plans
from ortdeploy.plan.part_table import PartTable
from ortdeploy.running.shards.commit_log import CommitLog, tables_in

TABLE = PartTable(first_number=2, first_row=16, end=60, rows_per_part=8)
ONE, OTHER, THIRD = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SharedPlace:
    if request.param == "folder":
        return SharedFolder(tmp_path)
    request.getfixturevalue("store")
    return SharedStore("memory://bucket/out")


def log_of(place: SharedPlace, digest: str) -> CommitLog:
    return CommitLog(place, digest, TABLE, suffix=".jsonl", digits=8)


@pytest.mark.parametrize("quicker", [ONE, OTHER])
def test_of_two_plans_that_begin_at_the_same_moment_one_gets_the_output(
    place: SharedPlace, quicker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked for other plans, and found none, before either has made anything."""
    (slower,) = {ONE, OTHER} - {quicker}
    log = log_of(place, slower)
    look = log._check_others  # noqa: SLF001  the last look before anything is made

    def look_and_wait() -> None:
        look()
        log_of(place, quicker).begin(known=False)

    monkeypatch.setattr(log, "_check_others", look_and_wait)
    with pytest.raises(OrtdeployError, match=f"holds parts of another plan, {quicker[:12]}"):
        log.begin(known=False)
    assert open_plans(place) == {quicker}
    log_of(place, quicker).begin(known=False)
    with pytest.raises(OrtdeployError, match=quicker[:12]):
        log_of(place, slower).begin(known=False)


def begin_and_die(place: SharedPlace, digest: str, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    with monkeypatch.context() as patch, instead(patch, method, die_after), pytest.raises(Killed):
        log_of(place, digest).begin(known=False)


@pytest.mark.parametrize("method", ["_check_others", "_claim"])
def test_a_plan_whose_process_was_killed_as_it_began_blocks_no_other_one(
    place: SharedPlace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    begin_and_die(place, ONE, monkeypatch, method)
    assert open_plans(place) == frozenset()
    log_of(place, OTHER).begin(known=False)
    assert open_plans(place) == {OTHER}
    with pytest.raises(RefusedError, match=OTHER[:12] if method == "_check_others" else "was given up"):
        log_of(place, ONE).begin(known=False)
    log_of(place, OTHER).begin(known=False)
    assert [digest for digest, _ in tables_in(place)] == [OTHER]
    assert (log_of(place, ONE).is_begun(), log_of(place, OTHER).is_begun()) == (False, True)


@pytest.mark.parametrize("method", ["_check_others", "_claim"])
def test_a_plan_whose_process_was_killed_as_it_began_is_begun_again(
    place: SharedPlace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    begin_and_die(place, ONE, monkeypatch, method)
    log_of(place, ONE).begin(known=False)
    assert open_plans(place) == {ONE}
    with pytest.raises(RefusedError, match=ONE[:12]):
        log_of(place, OTHER).begin(known=False)


def test_a_third_plan_begins_if_two_were_killed(place: SharedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_and_die(place, ONE, monkeypatch, "_claim")
    begin_and_die(place, OTHER, monkeypatch, "_claim")
    log_of(place, THIRD).begin(known=False)
    assert open_plans(place) == {THIRD}
    for given_up in (ONE, OTHER):
        with pytest.raises(RefusedError, match="was given up"):
            log_of(place, given_up).begin(known=False)


@pytest.mark.parametrize("quicker", [ONE, OTHER])
def test_of_a_plan_that_slept_as_it_began_and_one_that_gives_it_up_one_gets_the_output(
    place: SharedPlace, quicker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other plan finds the claim and no parts; then either of them is the first to create `bound.json`."""
    begin_and_die(place, ONE, monkeypatch, "_claim")

    def wake_up(original: Any, log: CommitLog, *arguments: Any) -> Any:
        if quicker == ONE:
            log_of(place, ONE).begin(known=False)
        given_up = original(log, *arguments)
        if quicker == OTHER:
            with pytest.raises(RefusedError, match="was given up"):
                log_of(place, ONE).begin(known=False)
        return given_up

    with instead(monkeypatch, "_gives_up", wake_up):
        if quicker == OTHER:
            log_of(place, OTHER).begin(known=False)
        else:
            with pytest.raises(RefusedError, match=ONE[:12]):
                log_of(place, OTHER).begin(known=False)
    assert open_plans(place) == {quicker}


def test_a_claim_that_is_damaged_is_told(place: SharedPlace) -> None:
    place.make(FOLDER)
    place.create(f"{FOLDER}/from-2.json", b"../../etc")
    with pytest.raises(OrtdeployError, match=r"from-2\.json is damaged"):
        log_of(place, ONE).begin(known=False)
