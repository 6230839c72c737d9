"""A process of a plan that is stopped (SIGSTOP) while others do all of its work, and goes on when that is finished."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import MANIFEST, Cli
from support import s3
from support.forks import CAN_FORK, start_program
from support.kills import stopping, wait_until_stopped

from ortdeploy.parts.commit_log import CommitLog

pytestmark = [pytest.mark.process, pytest.mark.skipif(not CAN_FORK, reason="the process that is stopped is a fork")]

KEPT = {"_run.json", "_failed.jsonl", "_output.json", "bound.json", "closed.json", "from-0.json"}
PARTS = [f"part-{number:08d}.jsonl" for number in range(3)]


def states_of_folder(folder: Path) -> dict[str, Any]:
    """Each file of an output, with what tells it from another one of that name."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in KEPT)
    return {path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def states_on_store(bucket: s3.Store) -> dict[str, Any]:
    bucket.system.invalidate_cache()
    found = bucket.system.find(f"{bucket.bucket}/out", detail=True)
    return {
        name.removeprefix(f"{bucket.bucket}/out/"): (one["ETag"], one["LastModified"])
        for name, one in found.items()
        if name.rsplit("/", 1)[-1] not in KEPT
    }


@pytest.mark.quick("decide-folder")
@pytest.mark.parametrize("where", ["folder", "store"])
@pytest.mark.parametrize("method", ["decide", "publish"])
def test_a_process_that_is_stopped_until_all_is_finished_changes_nothing(
    cli: Cli, deployment: Path, request: pytest.FixtureRequest, where: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has made one part, and stops before the decision about the second, or before that gets its name."""
    text, output = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8"), deployment / "outbox/run"
    bucket: s3.Store | None = request.getfixturevalue("bucket") if where == "store" else None
    if bucket is not None:
        text = text.replace("outbox/run", f'"{bucket.url("out")}"')

    def states() -> dict[str, Any]:
        return states_of_folder(output) if bucket is None else states_on_store(bucket)

    (deployment / "m.yaml").write_text(text)
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, method, stopping(getattr(CommitLog, method), at=2))
        stopped = start_program(
            ["apply", plan, "--shard", "0/1"], cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        wait_until_stopped(stopped)
        assert [name for name in PARTS if name in states()] == PARTS[:1]
        assert cli("apply", plan, "--shard", "0/1").code == 0
        assert cli("finish", plan).code == 0
        before = states()
        assert sorted(before) == PARTS
    finally:
        stopped.send_signal(signal.SIGCONT)
        code = stopped.wait()
    assert code == 0
    assert states() == before
    assert cli("verify", deployment / "m.yaml").code == 0
