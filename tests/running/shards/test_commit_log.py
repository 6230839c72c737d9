"""Two plans that begin at the same moment on one output: one of them makes its parts, and the other is refused."""

from pathlib import Path

import pytest

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.open_parts import open_plans
from ortdeploy.plan.part_table import PartTable
from ortdeploy.running.shards.commit_log import CommitLog

TABLE = PartTable(first_number=2, first_row=16, end=60, rows_per_part=8)
ONE, OTHER = "ab" * 32, "cd" * 32


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
