"""`ortdeploy diff`, and what `plan` says of a job whose last run was made from something else."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import MANIFEST, Cli
from support.models import scale_model


def changed(folder: Path, old: str, new: str) -> Path:
    """Write the manifest with another text in one place beside the one that is there."""
    path = folder / "changed.yaml"
    path.write_text(MANIFEST.replace(old, new))
    return path


def test_two_manifests(cli: Cli, deployment: Path) -> None:
    new = changed(deployment, "size: 8", "size: 4, last: drop")
    shown = cli("diff", deployment / "m.yaml", new)
    assert (shown.code, shown.out) == (0, 'jobs.run.batch.size: 8 -> 4\njobs.run.batch.last: nothing -> "drop"\n')
    assert cli("diff", deployment / "m.yaml", new, "--detailed-exitcode").code == 2
    same = cli("diff", new, new, "--detailed-exitcode")
    assert (same.code, same.out) == (0, "")


def test_values_of_the_command_line_lie_over_both_manifests(cli: Cli, deployment: Path) -> None:
    new = changed(deployment, "size: 8", "size: 4")
    assert cli("diff", deployment / "m.yaml", new, "--set", "jobs.run.batch.size=2").out == ""


def test_json_leaves_out_what_is_not_there(cli: Cli, deployment: Path) -> None:
    new = changed(deployment, "size: 8", "size: 8, last: drop")
    found = cli("diff", deployment / "m.yaml", new, "--format", "json").json
    assert found == {"format_version": 1, "differences": [{"path": "jobs.run.batch.last", "new": "drop"}]}


def test_two_saved_plans(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("plan", path, "--out", deployment / "a.json").code == 0
    path.write_text(MANIFEST.replace("size: 8", "size: 4"))
    assert cli("plan", path, "--out", deployment / "b.json").code == 0
    shown = cli("diff", deployment / "a.json", deployment / "b.json")
    assert shown.code == 0
    assert "plans[demo].steps[run-job double run].batching.size: 8 -> 4\n" in shown.out


def test_two_reports(cli: Cli, deployment: Path) -> None:
    path, report = deployment / "m.yaml", deployment / "outbox/run/_run.json"
    assert cli("apply", path).code == 0
    before = deployment / "before.json"
    before.write_bytes(report.read_bytes())
    np.save(deployment / "data.npy", np.ones((9, 4), np.float32))
    assert cli("apply", path, "--new-run").code == 0
    shown = cli("diff", before, report)
    lines = shown.out.splitlines()
    assert lines[:2] == [f"A: {before}", f"B: {report}"]
    assert lines[3].split() == ["rows", "committed", "20", "9", "-55.0%"]
    assert re.search(r"^session\.run p99 +\S+ [µmn]?s ", shown.out, re.MULTILINE), "with units"
    assert "buckets" not in shown.out
    assert not re.search("[0-9a-f]{64}", shown.out)
    assert re.search(r"^[0-9,]+ more differences in measurements, parts and provenance: -v shows them\.$", lines[-1])
    whole = cli("diff", before, report, "-v").out
    assert "rows.committed: 20 -> 9\n" in whole
    assert "session_run.buckets" in whole
    assert "samples" not in whole
    assert cli("diff", report, report).out == ""
    page = deployment / "page.html"
    assert cli("diff", before, report, "--report", page).out == shown.out
    assert "rows.committed" in page.read_text()
    assert f"command: ortdeploy apply {path} --new-run; profile: none" in page.read_text()
    assert f"{page}/x" in cli("diff", before, report, "--report", f"{page}/x").err
    damaged = {name: value for name, value in json.loads(report.read_text()).items() if name != "rows"}
    before.write_text(json.dumps(damaged))
    assert "CHANGE" not in cli("diff", before, report).out
    assert "rows.skipped: nothing -> 0\n" in cli("diff", before, report).out
    refused = cli("diff", before, report, "--report", page)
    assert (refused.code, "is not a report as a run leaves it" in refused.err) == (1, True)


def test_two_device_files(cli: Cli, deployment: Path) -> None:
    first, second = deployment / "first.yaml", deployment / "second.yaml"
    assert cli("device", "--name", "first", "-o", first).code == 0
    assert cli("device", "--name", "second", "-o", second).code == 0
    assert cli("diff", first, second).out == 'name: "first" -> "second"\n'


def test_a_manifest_and_its_last_run(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    never = cli("diff", path, "--detailed-exitcode")
    assert (never.code, never.out) == (2, "job run has not run yet\n")
    assert cli("apply", path).code == 0
    same = cli("diff", path, "--detailed-exitcode")
    assert same.code == 0
    assert same.out.endswith(": nothing has changed\n")
    assert "no row in" in cli("retry", path, "--job", "run", "--set", "jobs.run.report=html").out  # so it is not a run
    path.write_text(MANIFEST.replace("size: 8", "size: 4"))
    scale_model(deployment / "double.onnx", factor=3)
    shown = cli("diff", path, "--detailed-exitcode")
    assert shown.code == 2
    places = [line.partition(":")[0].strip() for line in shown.out.splitlines()[1:]]
    assert places == ["manifest.jobs.run.batch.size", "manifest", "model.sha256", "settings.batch"]
    assert "manifest.jobs.run.batch.size: 8 -> 4\n" in shown.out
    (job,) = cli("diff", path, "--format", "json").json["changes"]
    assert (job["job"], [one["path"] for one in job["differences"]]) == ("run", places)
    assert all(len(one["old"]) == len(one["new"]) == 64 for one in job["differences"][1:])
    kept = next((deployment / ".ortdeploy/manifests").iterdir())
    kept.write_text(kept.read_text().replace('{"', '{"of another ', 1))
    assert cli("diff", path).out == shown.out.replace("  manifest.jobs.run.batch.size: 8 -> 4\n", "")


def test_values_of_flags_are_compared_and_secrets_are_not_kept(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    text = MANIFEST.replace("models:", "on_end: {url: 'https://example.org/hooks/T0SECRET'}\nmodels:")
    path.write_text(text)
    assert cli("apply", path, "--set", "jobs.run.batch.size=16").code == 0
    path.write_text(text.replace("T0SECRET", "T1SECRET"))
    shown = cli("diff", path)
    assert "manifest.jobs.run.batch.size: 16 -> 8\n" in shown.out
    kept = b"".join(one.read_bytes() for one in (deployment / ".ortdeploy").rglob("*") if one.is_file())
    assert "SECRET" not in shown.out
    assert b"SECRET" not in kept


def test_plan_of_a_changed_job_says_the_same(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("apply", path).code == 0
    assert cli("plan", path, "--format", "json").json["changes"] == []
    path.write_text(MANIFEST.replace("size: 8", "size: 4"))
    said = cli("diff", path).out
    refused = cli("plan", path)
    assert refused.code == 1
    assert "finished-output" in refused.out
    assert said in refused.out
    starts_over = cli("plan", path, "--new-run")
    assert starts_over.code == 0
    assert said in starts_over.out
    assert (
        cli("plan", path, "--new-run", "--format", "json").json["changes"]
        == cli("diff", path, "--format", "json").json["changes"]
    )
    assert "since run" not in cli("plan", path, "--new-run", "--quiet").out


def test_an_input_file_that_changed_is_told(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("apply", path).code == 0
    before = (deployment / "data.npy").stat()
    np.save(deployment / "data.npy", np.ones((9, 4), np.float32))
    (job,) = cli("diff", path, "--format", "json").json["changes"]
    (found,) = job["differences"]
    assert (found["path"], found["old"]) == (
        "input[data.npy]",
        {"size": before.st_size, "mtime_ns": before.st_mtime_ns},
    )
    assert found["new"]["size"] == (deployment / "data.npy").stat().st_size


@pytest.mark.parametrize("job", ["other", "run"])
def test_what_another_deployment_has_left_is_no_last_run(cli: Cli, deployment: Path, job: str) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    other = changed(deployment, "run:" if job == "other" else "demo", "other:" if job == "other" else "demo2")
    was = "job run of demo"
    assert cli("diff", other).out == f"job {job} has not run yet; its output is what {was} has made\n"


def test_what_cannot_be_compared_is_refused(cli: Cli, deployment: Path) -> None:
    path, report = deployment / "m.yaml", deployment / "outbox/run/_run.json"
    assert cli("apply", path).code == 0
    broken, plan, old = deployment / "broken.yaml", deployment / "plan.json", deployment / "old.json"
    broken.write_text("version: 1\njobz: {}\n")
    plan.write_text('{"format_version": ')
    old.write_text(json.dumps({"format_version": 1, "kind": "bound"}))
    for files, code, said in [
        ((path, report), 64, f"{path} is a manifest and {report} is a report; diff compares files of one kind"),
        ((deployment, path), 64, f"{deployment} is a folder; diff compares files"),
        ((path, path, path), 64, "diff compares two files, or one manifest with its last run"),
        ((path, "--report", "page.html"), 64, "--report writes a page of two reports"),
        ((path, path, "--report", "page.html"), 64, f"--report writes a page of two reports, and {path} is a manifest"),
        ((report, report, "--set", "a=1"), 64, "--profile, --overlay and --set change manifests"),
        ((path, deployment / "none.yaml"), 1, "none.yaml cannot be read: No such file or directory"),
        ((path, broken), 1, "jobz"),
        ((broken,), 1, "jobz"),
        ((plan, path), 1, "is not a plan file"),
        ((old, path), 1, "format version 1"),
    ]:
        refused = cli("diff", *files)
        assert refused.code == code, said
        assert said in refused.words
        assert refused.out == ""
