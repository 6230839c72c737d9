"""`ortdeploy compact`: what it says, and what a manifest's jobs are like afterwards."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, read_rows
from support.jobs import Killed

from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.output_lock import hold_output

MANIFEST = """
version: 1
name: compact
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path]}
    output: {path: out, format: csv, rows_per_part: 100}
  other:
    model: double
    input: {path: inbox/*.npy}
    output: {path: other}
"""


def test_small_parts_become_one(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployment)
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    (deployment / "inbox").mkdir()
    assert cli("compact", manifest).out == (
        "run: out stays as it is: no part is committed\nother: other stays as it is: no part is committed\n"
    )
    for day in range(4):
        np.save(deployment / f"inbox/{day}.npy", np.full((3, 4), day, dtype=np.float32))
        assert cli("apply", manifest, "--job", "run").code == 0
    before = read_rows(deployment / "out")
    with hold_output(deployment / ".ortdeploy", "../out"):
        assert cli("compact", manifest, "--job", "run").code == 4
    assert cli("compact", manifest, "--job", "run").out == "run: 4 parts in out, now 1\n"
    found = cli("compact", manifest, "--job", "run", "--format", "json").json["jobs"]
    assert found == [{"job": "run", "output": "out", "before": 1, "after": 1, "why_not": None}]
    assert [path.name for path in (deployment / "out").glob("part-*")] == ["part-00000003.r1.csv"]
    assert read_rows(deployment / "out") == before
    report = json.loads((deployment / "out/_run.json").read_text())
    assert [(part["number"], part["rows"]) for part in report["parts"]] == [(3, 12)]
    assert cli("verify", manifest, "--job", "run").code == 0
    assert "nothing to do" in cli("apply", manifest, "--job", "run").words
    np.save(deployment / "inbox/4.npy", np.full((1, 4), 4, dtype=np.float32))
    assert cli("apply", manifest, "--job", "run").code == 0
    assert sorted(path.name for path in (deployment / "out").glob("part-*")) == [
        "part-00000003.r1.csv", "part-00000004.csv",
    ]  # fmt: skip
    (deployment / "out/part-00000004.csv").write_text("damaged")
    refused = cli("compact", manifest, "--job", "run")
    assert refused.code == 1
    assert "part-00000004.csv was committed and has 7 bytes instead of" in refused.words


def fill(cli: Cli, deployment: Path) -> Path:
    """Apply four days, of which each leaves a part."""
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    (deployment / "inbox").mkdir()
    for day in range(4):
        np.save(deployment / f"inbox/{day}.npy", np.full((3, 4), day, dtype=np.float32))
        assert cli("apply", manifest, "--job", "run").code == 0
    return manifest


def kill(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin_rewrite", "end_rewrite"])
def test_an_apply_with_nothing_to_do_completes_what_a_killed_one_has_begun(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    manifest = fill(cli, deployment)
    before = read_rows(deployment / "out")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, step, kill)
        with pytest.raises(Killed):
            cli("compact", manifest, "--job", "run")
    words = "apply completes what a command that was killed has begun there"
    assert words in cli("plan", manifest, "--job", "run").words
    with hold_output(deployment / ".ortdeploy", "../out"):
        assert words not in cli("plan", manifest, "--job", "run").words, "it is not killed, but live"
    done = cli("apply", manifest, "--job", "run")
    assert (done.code, "nothing to do" in done.words) == (0, True)
    assert '"event": "output.completed"' in done.err
    assert words not in cli("plan", manifest, "--job", "run").words
    assert not [path.name for path in (deployment / "out").glob(".*")]
    assert read_rows(deployment / "out") == before
    assert cli("verify", manifest, "--job", "run").code == 0
    report = json.loads((deployment / "out/_run.json").read_text())
    parts = [path.name for path in sorted((deployment / "out").glob("part-*"))]
    assert [part["file"] for part in report["parts"]] == parts
    assert len(parts) == (1 if step == "end_rewrite" else 4)


def test_an_apply_with_nothing_to_do_writes_the_report_that_a_killed_one_was_to_write(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fill(cli, deployment)
    with monkeypatch.context() as patch:
        patch.setattr("ortdeploy.parts.compaction.renew_report", kill)
        with pytest.raises(Killed):
            cli("compact", manifest, "--job", "run")
    done = cli("apply", manifest, "--job", "run")
    assert (done.code, "nothing to do" in done.words) == (0, True)
    assert not [path.name for path in (deployment / "out").glob(".*")]
    report = json.loads((deployment / "out/_run.json").read_text())
    assert [part["file"] for part in report["parts"]] == [path.name for path in (deployment / "out").glob("part-*")]


def test_a_disk_that_is_full_is_named(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    manifest = fill(cli, deployment)
    monkeypatch.setattr(Ledger, "begin_rewrite", full)
    done = cli("compact", manifest, "--job", "run")
    assert done.code == 1
    assert f"cannot be put together: {deployment / 'out'}: No space left on device; make room" in done.words


def test_what_cannot_be_completed_fails_the_job(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = fill(cli, deployment)
    with monkeypatch.context() as patch:
        patch.setattr("ortdeploy.parts.recovery.finish", kill)
        with pytest.raises(Killed):
            cli("compact", manifest, "--job", "run")
    (waiting,) = (deployment / "out").glob(".part-*.replaced")
    waiting.write_bytes(b"damaged")
    failed = cli("apply", manifest, "--job", "run")
    assert failed.code == 1
    assert f"{waiting.name}, which takes the place of" in failed.words
    assert "was not put there. Restore it from a copy" in failed.words


def test_the_parts_of_a_job_that_another_one_reads_stay(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deployment)
    manifest = fill(cli, deployment)
    text = MANIFEST.replace("{path: inbox/*.npy}\n    output: {path: other}", "READ").replace(
        "format: csv", "format: npz"
    )
    manifest.write_text(
        text.replace("READ", "{job: run, columns: {x: y}}\n    output: {path: other}"), encoding="utf-8"
    )
    said = cli("compact", manifest)
    assert "run: out stays as it is: job other reads its parts, and knows them by their names" in said.words
