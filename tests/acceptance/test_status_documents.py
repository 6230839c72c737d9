"""What a device says of itself: a status document for each deployment, and the same as metrics."""

import json
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from conftest import MANIFEST, Cli
from msgspec import convert
from msgspec.structs import replace
from support.past_the_rules import apply_document, plan_document

from ortdeploy.cli.output import self_report
from ortdeploy.fleet import this_device
from ortdeploy.fleet.document import FORMAT_VERSION, Document, seconds_of
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.process.leaks import GROWTH
from ortdeploy.results.results import JobResult, Status
from ortdeploy.runtime.session import OrtSession
from ortdeploy.schemas import load_schema
from ortdeploy.state import looks

NEVER = "    pause: {below: {free_disk: 1000000GiB}}\n"


def said(folder: Path) -> dict[str, Any]:
    """The one document of a folder, which is as its schema and its record have it."""
    (path,) = (folder / ".ortdeploy/status").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(found, load_schema("status"))
    convert(found, Document)
    return found


def metrics(folder: Path) -> dict[str, float]:
    (path,) = folder.glob("*.prom")
    lines = (line.rpartition(" ") for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in {"last_look", "next_look"}}


def test_an_apply_says_what_runs_and_how_its_jobs_are(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTDEPLOY_DEVICE", "line-4")
    monkeypatch.setenv("ORTDEPLOY_LABELS", "site=12, line=paint")
    assert cli("apply", deployment / "m.yaml", "--every", "5min").code == 0
    found = said(deployment)
    assert (found["deployment"], found["state"], found["refusal"]) == ("demo", "current", None)
    assert (found["device"]["name"], found["device"]["labels"]) == ("line-4", {"site": "12", "line": "paint"})
    assert found["wanted"] == {"same": True, "state_reached": "current", "commit": None, "text_digest": None}
    (job,) = found["jobs"]
    assert (job["name"], job["status"], job["committed"], job["left"], job["waiting"]) == ("run", "done", 20, 0, 0)
    assert found["last_look"] < found["next_look"]
    assert found["versions"]["providers"] == {"CPUExecutionProvider": found["versions"]["onnxruntime"]}


def test_a_plan_without_its_manifest_is_told_too(deployment: Path) -> None:
    """As a plan that is carried out past the rules: it has neither a spec nor the text of its manifest."""
    applied = apply_document(plan_document(deployment), deployment)
    assert applied.code == 0, applied.err
    assert [(one["name"], one["committed"]) for one in said(deployment)["jobs"]] == [("run", 20)]


def test_it_says_that_a_job_runs_while_it_does(deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("ortdeploy.cli.applying.runner.note_gone_files", lambda *_: seen.append(said(deployment)))
    assert cli("apply", deployment / "m.yaml", "--every", "5min").code == 0
    (during,) = seen
    assert (during["state"], during["next_look"]) == ("running", None)
    assert (during["jobs"][0]["status"], during["jobs"][0]["left"], during["jobs"][0]["waiting"]) == ("running", 20, 1)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("jobs: [", "yaml-syntax"),
        ("version: 1\njobz: {}\n", "missing-key"),
        (b"\x80\x81", "not-utf8"),
        (None, "unreadable-manifest"),
    ],
)
def test_a_first_refusal_is_said_also_of_what_does_not_load(
    tmp_path: Path, cli: Cli, text: str | bytes | None, rule: str
) -> None:
    manifest = tmp_path / "m.yaml"
    if text is not None:
        manifest.write_bytes(text.encode() if isinstance(text, str) else text)
    assert cli("apply", manifest, "--metrics", tmp_path).code == 1
    found = said(tmp_path)
    assert (found["deployment"], found["state"], found["refusal"]["rule"]) == ("m", "refused", rule)
    assert (found["refusal"]["path"], found["refusal"]["line"]) == ("m.yaml", 1)
    assert found["wanted"]["same"] is False
    assert found["version"]["text_digest"] is None, "nothing has run"
    assert any(name.startswith("ortdeploy_deployment_refused{") for name, value in metrics(tmp_path).items() if value)


def test_a_refused_version_leaves_the_one_that_runs_and_its_jobs(deployment: Path, cli: Cli) -> None:
    manifest = deployment / "m.yaml"
    assert cli("apply", manifest).code == 0
    before = said(deployment)
    manifest.write_text(MANIFEST.replace("double.onnx", "secret-name.onnx"))
    for _ in range(2):
        assert cli("apply", manifest).code == 1
        found = said(deployment)
        assert (found["state"], found["version"], found["wanted"]["same"]) == ("refused", before["version"], False)
        assert found["wanted"]["text_digest"] not in {None, before["version"]["text_digest"]}
        assert (found["refusal"]["rule"], found["refusal"]["line"]) == ("unreadable-model", 4)
        assert found["jobs"] == before["jobs"]
        assert "secret-name" not in json.dumps(found)
    manifest.write_text(MANIFEST)
    assert cli("apply", manifest).code == 0
    assert lasting(said(deployment))["version"] == before["version"]
    assert said(deployment)["refusal"] is None


def test_a_refusal_keeps_the_time_since_when(deployment: Path, cli: Cli) -> None:
    (deployment / "double.onnx").unlink()
    cli("apply", deployment / "m.yaml")
    first = said(deployment)
    cli("apply", deployment / "m.yaml")
    assert said(deployment)["refusal"] == first["refusal"]
    assert said(deployment)["sequence"] == first["sequence"], "it says nothing new"
    assert said(deployment)["last_look"] > first["last_look"]


def test_what_a_golden_check_refuses_is_no_version_that_runs(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The apply says first that it runs, because the check comes after that."""
    assert cli("apply", deployment / "m.yaml").code == 0
    before = said(deployment)
    np.save(deployment / "data.npy", np.ones((4, 4), np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("outbox/run", "outbox/new"))
    refused = (
        JobResult(job="run", status=Status.FAILED, output="outbox/new", reason="golden check a of model b failed"),
    )
    monkeypatch.setattr("ortdeploy.cli.applying.runner.refused_by_gates", lambda *_: refused)
    seen = []
    for _ in range(2):
        assert cli("apply", deployment / "m.yaml").code == 1
        seen.append(said(deployment))
    first, second = seen
    assert (first["state"], first["version"], first["wanted"]["state_reached"]) == (
        "refused",
        before["version"],
        "planned",
    )
    assert (first["refusal"]["rule"], first["refusal"]["summary"]) == (None, "A golden check did not pass")
    assert second["version"] == first["version"]
    assert second["refusal"] == first["refusal"], "since the first one"


def test_a_pause_and_a_failure_are_said_with_what_waits(deployment: Path, cli: Cli) -> None:
    (deployment / "m.yaml").write_text(MANIFEST + NEVER)
    assert cli("apply", deployment / "m.yaml").code == 5
    found = said(deployment)
    assert (found["state"], found["jobs"][0]["status"], found["jobs"][0]["waiting"]) == ("paused", "paused", 1)
    assert found["jobs"][0]["oldest_waiting"] is not None
    np.save(deployment / "data.npy", np.full((20, 4), np.nan, np.float32))
    (deployment / "m.yaml").write_text(MANIFEST + "    errors: {on_nan: fail}\n")
    assert cli("apply", deployment / "m.yaml").code == 1
    assert (said(deployment)["state"], said(deployment)["jobs"][0]["status"]) == ("failed", "failed")


def test_an_apply_with_nothing_to_do_sets_only_the_time(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    command = ("apply", deployment / "m.yaml", "--metrics", deployment, "--every", "1h")
    for _ in range(2):
        assert cli(*command).code == 0
    before, of_metrics = said(deployment), metrics(deployment)
    with monkeypatch.context() as patch:
        patch.setattr("ortdeploy.cli.commands.apply._run", None)
        assert cli(*command).code == 0, "it is remembered"
        found = said(deployment)
        assert lasting(found) == lasting(before)
        assert found["last_look"] > before["last_look"]
        assert found["next_look"] > before["next_look"]
        differing = {name.partition("{")[0] for name, value in metrics(deployment).items() if of_metrics[name] != value}
        assert differing == {looks.LAST, looks.NEXT}
    (path,) = deployment.glob("*.prom")
    path.unlink()
    assert cli(*command).code == 0
    assert metrics(deployment), "they are written anew"


def test_what_a_retry_has_mended_is_said_by_the_next_apply(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    lenient = MANIFEST.replace("jobs:\n  run:\n", "jobs:\n  run:\n    errors: {on_nan: fail, max_failed: 5}\n")
    (deployment / "m.yaml").write_text(lenient)
    run = OrtSession.run

    def spoiled(*given: Any) -> Any:
        results = [np.array(one) for one in run(*given)]
        results[0][results[0][:, 3] == 6] = np.nan  # of the first row
        return results

    with monkeypatch.context() as patch:
        patch.setattr(OrtSession, "run", spoiled)
        assert cli("apply", deployment / "m.yaml").code == 0
    assert cli("apply", deployment / "m.yaml").code == 0
    assert said(deployment)["jobs"][0]["failed"] == 1
    assert cli("retry", deployment / "m.yaml", "--job", "run").code == 0
    assert said(deployment)["jobs"][0]["failed"] == 1
    assert cli("apply", deployment / "m.yaml").code == 0
    assert (said(deployment)["jobs"][0]["failed"], said(deployment)["jobs"][0]["committed"]) == (0, 20)


def test_what_was_remembered_says_nothing_over_a_later_refusal(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    for _ in range(2):
        assert cli("apply", deployment / "m.yaml").code == 0
    monkeypatch.setattr("ortdeploy.cli.applying.outcomes.note_refusal", lambda *_: None)
    assert cli("apply", deployment / "m.yaml", "--set", "models.double.path=gone.onnx").code == 1
    assert said(deployment)["state"] == "refused"
    assert cli("apply", deployment / "m.yaml").code == 0
    assert said(deployment)["state"] == "current"


def test_times_of_another_width_are_set_too(deployment: Path, cli: Cli) -> None:
    """Times are written over; a command line without --every has none for the next look."""
    assert cli("apply", deployment / "m.yaml", "--every", "1h").code == 0
    (path,) = (deployment / ".ortdeploy/status").glob("*.json")
    before = path.stat().st_ino
    assert looks.touch([str(path)], 60.0)
    assert path.stat().st_ino == before
    assert looks.touch([str(path)], None)
    assert said(deployment)["next_look"] is None
    assert looks.touch([str(path)], 3600.0)
    found = said(deployment)
    assert seconds_of(found["next_look"] or "") - seconds_of(found["last_look"]) == pytest.approx(3600)


def test_each_manifest_of_a_folder_has_its_document(deployment: Path, cli: Cli) -> None:
    text = (deployment / "m.yaml").read_text()
    (deployment / "n.yaml").write_text(text.replace("demo", "other").replace("outbox/run", "outbox/other"))
    (deployment / "o.yaml").write_text("version: 3\n")
    assert cli("apply", deployment).code == 1
    found = [json.loads(path.read_text()) for path in (deployment / ".ortdeploy/status").glob("*.json")]
    assert {one["deployment"]: one["state"] for one in found} == {"demo": "current", "other": "current", "o": "refused"}


def test_another_live_run_keeps_what_it_says(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    np.save(deployment / "data.npy", np.ones((4, 4), np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("outbox/run, ", "outbox/run, on_upgrade: rerun, "))
    with hold_output(deployment / ".ortdeploy", "../outbox/run"):
        assert cli("apply", deployment / "m.yaml", "--new-run").code == 4
        assert said(deployment)["state"] == "running", "as the one that holds the output"


def test_two_applies_in_one_state_directory_do_not_disturb_each_other(deployment: Path, cli: Cli) -> None:
    other = deployment / "n.yaml"
    other.write_text(MANIFEST.replace("demo", "other").replace("outbox/run", "outbox/other"))
    state = deployment / "state"
    for path in (deployment / "m.yaml", other):
        assert cli("apply", path, "--state-dir", state).code == 0
    paths = sorted((state / "status").glob("*.json"))
    assert {json.loads(path.read_text())["deployment"] for path in paths} == {"demo", "other"}
    threads = [
        threading.Thread(target=lambda path=path: [looks.touch([str(path)], 60.0) for _ in range(50)])
        for path in paths * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in paths:
        convert(json.loads(path.read_text()), Document)
    assert sorted((state / "status").iterdir()) == paths


def test_metrics_have_one_file_though_the_name_changes(deployment: Path, cli: Cli) -> None:
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text("version: 2\n")
    cli("apply", deployment / "m.yaml", "--metrics", deployment)
    (deployment / "m.yaml").write_text(text)
    cli("apply", deployment / "m.yaml", "--metrics", deployment)
    (path,) = deployment.glob("*.prom")
    assert path.name.startswith("ortdeploy-demo-")
    assert path.stat().st_mode & 0o777 == 0o644, "node_exporter is another user"


def test_what_cannot_be_written_keeps_no_apply_from_its_work(deployment: Path, cli: Cli) -> None:
    for _ in range(2):
        done = cli("apply", deployment / "m.yaml", "--metrics", deployment / "gone", "--log-format", "json")
        assert done.code == 0
        assert "status.not_written" in done.err


def test_memory_that_grew_is_told(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    assert said(deployment)["jobs"][0]["memory_growth"] == 0
    with closing(sqlite3.connect(deployment / ".ortdeploy/state.db")) as ledger, ledger:
        (text,) = ledger.execute("SELECT statistics FROM outputs").fetchone()
        statistics = {**json.loads(text), GROWTH: {"bytes_per_1000_rows": 2048}}
        ledger.execute("UPDATE outputs SET statistics = ?", [json.dumps(statistics)])
    assert cli("apply", deployment / "m.yaml", "--metrics", deployment).code == 0
    assert said(deployment)["jobs"][0]["memory_growth"] == 2048
    (metrics,) = deployment.glob("*.prom")
    assert 'job_memory_growth_bytes{deployment="demo",' in metrics.read_text()


def test_damaged_parts_are_counted(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (part,) = (deployment / "outbox/run").glob("part-*")
    part.write_bytes(b"")
    assert cli("apply", deployment / "m.yaml").code == 1
    assert said(deployment)["jobs"][0]["damaged_parts"] == 1


def test_the_commit_is_that_of_the_checkout(deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    git = deployment / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    for commit in ("a" * 40, "b" * 40):
        (git / "refs/heads/main").write_text(f"{commit}\n")
        for _ in range(2):  # the second has nothing to do
            assert cli("apply", deployment / "m.yaml").code == 0
            assert said(deployment)["version"]["commit"] == commit
    (git / "refs/heads/main").unlink()
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'c' * 40} refs/heads/main\n^{'d' * 40}\n")
    assert this_device.commit_of(deployment / "models") == "c" * 40
    (git / "HEAD").write_text("not a commit")
    assert this_device.commit_of(deployment) is None


def test_a_document_has_at_most_256_kib(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    known = convert(said(deployment), Document)
    many = tuple(replace(known.jobs[0], name=f"{number:04}{'x' * 50}") for number in range(2000))
    text = self_report._text(replace(known, jobs=many), 0.0, None)  # noqa: SLF001  a manifest of so many jobs is slow
    assert len(text) <= looks.MOST_BYTES
    found = convert(json.loads(text), Document)
    assert (found.jobs, found.jobs_left_out) == (many[: len(found.jobs)], 2000 - len(found.jobs))


def test_a_document_of_another_version_is_replaced(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (path,) = (deployment / ".ortdeploy/status").glob("*.json")
    for damage in (b"\xff", b"[1]", json.dumps({**said(deployment), "format_version": 2}).encode(), b'{"a": ' * 9000):
        path.write_bytes(damage)
        (deployment / "m.yaml").touch()
        assert cli("apply", deployment / "m.yaml").code == 0
        assert said(deployment)["state"] == "current"


def test_a_clock_says_whether_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = this_device.this_clock(0.0)
    assert found.now == "1970-01-01T00:00:00.000+00:00"
    monkeypatch.setattr("sys.platform", "win32")
    assert this_device.this_clock(0.0).synchronised is None


@pytest.mark.skipif(sys.platform != "linux", reason="adjtimex is Linux's")
@pytest.mark.parametrize(
    ("answer", "there", "right"), [(0, False, True), (5, True, False), (-1, True, True), (-1, False, None)]
)
def test_the_kernel_is_asked_first_and_then_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, *, there: bool, right: bool | None
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: answer))
    monkeypatch.setattr(this_device, "_SYNCHRONISED", tmp_path if there else tmp_path / "none")
    assert this_device.this_clock(0.0).synchronised is right


def test_schema_and_record_have_the_same_fields() -> None:
    schema = load_schema("status")
    assert list(schema["properties"]) == [*Document.__struct_fields__]
    for name in ("device", "version", "wanted", "profile", "versions", "clock"):
        record = next(one for one in Document.__annotations__.items() if one[0] == name)[1]
        assert list(schema["properties"][name]["properties"]) == [*record.__struct_fields__], name
    assert schema["properties"]["format_version"]["const"] == FORMAT_VERSION
