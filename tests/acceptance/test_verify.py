"""`ortdeploy verify`: parts that are read again, of the jobs that are asked for."""

import os
from pathlib import Path

import pytest
from conftest import MANIFEST, Cli

from ortdeploy.planning.remembered import nothing_to_do

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8")
SECOND = SMALL.split("jobs:\n")[1].replace("run:", "second:").replace("outbox/run", "outbox/second")


def test_parts_are_read_again_and_the_exit_code_tells(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deployment)
    (deployment / "m.yaml").write_text(SMALL)
    never = cli("verify", deployment)
    assert (never.code, never.out) == (0, "run: no part is committed in outbox/run\n")
    assert cli("apply", deployment).code == 0
    sound = cli("verify", deployment)
    assert sound.code == 0
    assert sound.out.startswith("run: 3 of 3 parts in outbox/run are as they were written (")
    part = deployment / "outbox/run/part-00000001.jsonl"
    before = part.stat()
    part.write_bytes(part.read_bytes().replace(b"0", b"1", 1))
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cli("apply", deployment).code == 0  # goes by size and time, and has nothing to do
    damaged = cli("verify", deployment)
    assert damaged.code == 1
    first, second = damaged.out.splitlines()
    assert first == "outbox/run/part-00000001.jsonl holds other bytes than were written"
    assert second.startswith("run: 2 of 3 parts")
    assert cli("verify", deployment, "--quiet").out == f"{first}\n"


def test_json_tells_each_part(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    cli("apply", deployment)
    (deployment / "outbox/run/part-00000000.jsonl").unlink()
    found = cli("verify", deployment, "--format", "json")
    assert found.code == 1
    (job,) = found.json["jobs"]
    assert (job["job"], job["output"]) == ("run", "outbox/run")
    assert [(part["state"], part["damage"]) for part in job["parts"]] == [
        ("damaged", "is gone"),
        ("as-written", None),
        ("as-written", None),
    ]


@pytest.mark.slow
def test_only_the_jobs_that_are_asked_for_are_read(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL + SECOND)
    assert cli("apply", deployment).code == 0
    (deployment / "outbox/second/part-00000000.jsonl").unlink()
    assert cli("verify", deployment).code == 1
    assert cli("verify", deployment, "--job", "run").code == 0
    assert cli("verify", deployment, "--job", "s*").code == 1
    assert cli("verify", deployment, "--exclude", "second").code == 0
    wrong = cli("verify", deployment, "--job", "sekond")
    assert wrong.code == 64
    assert '--job: there is no job "sekond". Did you mean "second"?' in wrong.words


def test_a_manifest_that_is_refused_hides_no_damage(cli: Cli, deployment: Path) -> None:
    cli("apply", deployment / "m.yaml")
    (deployment / "broken.yaml").write_text("version: 1\njobz: {}\n")
    (deployment / "outbox/run/part-00000000.jsonl").unlink()
    found = cli("verify", deployment)
    assert found.code == 1
    assert "outbox/run/part-00000000.jsonl is gone" in found.out
    assert "jobz" in found.err


def test_status_names_parts_that_the_next_apply_refuses(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    (deployment / "m.yaml").write_text(SMALL)
    assert cli("apply", deployment).code == 0
    for _ in range(2):  # the second is remembered
        assert "not as committed" not in cli("status", deployment).out
    parts = sorted((deployment / "outbox/run").glob("part-*"))
    parts[0].unlink()
    parts[1].write_bytes(b"short")
    shown = cli("status", deployment, "-q").words
    assert "run: 2 parts not as committed, which the next apply refuses: part-00000000.jsonl is gone" in shown
    (job,) = cli("status", deployment, "--format", "json").json["jobs"]
    assert job["damaged"].keys() == {parts[0].name, parts[1].name}
    assert job["damaged"][parts[0].name] == "is gone"
    assert cli("apply", deployment).code == 1
    (deployment / "m.yaml").write_text(SMALL.replace("format: jsonl", "format: jsonl, removable: true"))
    assert f"{parts[0].name} is gone" not in cli("status", deployment).words, "it may have been carried away"
