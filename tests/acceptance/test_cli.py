"""The program as a user calls it: commands, outputs, exit codes."""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import MANIFEST, REPOSITORY, Cli, read_rows, run_fork
from jsonschema import Draft202012Validator
from pyarrow import parquet
from support.forks import start_program
from support.models import lora_model, make_adapter, save_model, scale_model

from ortdeploy import durations
from ortdeploy.cli.command_line.arguments import COMMANDS, GROUPS, build_parser
from ortdeploy.cli.commands import explain, status
from ortdeploy.ledger.live_progress import Live
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.ledger.records import Part
from ortdeploy.manifest.pages import PAGES
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.planning import state_folder
from ortdeploy.planning.probing import data_places, probe
from ortdeploy.rules.catalogue import RULES
from ortdeploy.schemas import load_schema


def test_apply_plans_runs_and_then_has_nothing_to_do(cli: Cli, deployment: Path) -> None:
    first = cli("apply", deployment / "m.yaml")
    assert first.code == 0, first.err
    assert "Plan: 1 session to open, 1 job to run, 0 finished already." in first.out
    assert "job run: done" in first.out
    rows = read_rows(deployment / "outbox/run")
    assert [row["row"] for row in rows] == list(range(20))
    assert rows[3]["y"] == [24.0, 26.0, 28.0, 30.0]
    second = cli("apply", deployment / "m.yaml")
    assert second.code == 0
    assert "nothing to do" in second.out


def test_the_links_of_a_state_folder_are_looked_for_once_to_plan_and_once_before_it_is_used(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    monkeypatch.setattr(state_folder, "link_out", lambda folder, *_, **__: looked.append(folder))
    assert cli("plan", deployment / "m.yaml").code == 0
    assert looked == [deployment / ".ortdeploy"]
    looked.clear()
    assert cli("apply", deployment / "m.yaml").code == 0
    assert (
        looked == [deployment / ".ortdeploy"] * 6
    )  # to plan, for what is remembered and for what is said before and after, and to run


def test_nothing_is_written_by_validate_and_plan(cli: Cli, deployment: Path) -> None:
    before = sorted(deployment.rglob("*"))
    assert cli("validate", deployment).code == 0
    assert cli("plan", deployment).code == 0
    assert sorted(deployment.rglob("*")) == before


def test_plan_tells_changes_by_its_exit_code_when_asked(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("plan", path).code == 0
    assert cli("plan", path, "--detailed-exitcode").code == 2
    cli("apply", path)
    assert cli("plan", path, "--detailed-exitcode").code == 0


def test_a_manifest_above_the_current_folder_is_run_by_its_path(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployment / "in").mkdir()
    monkeypatch.chdir(deployment / "in")
    assert cli("apply", "../m.yaml").code == 0
    assert cli("plan", deployment / "m.yaml", "--detailed-exitcode").code == 0  # it is the same deployment


def test_json_of_validate_plan_apply_and_status(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("validate", path, "--format", "json").json == {"format_version": 1, "diagnostics": [], "steps": []}
    planned = cli("plan", path, "--format", "json").json
    assert [step["step"] for step in planned["steps"]] == ["open-session", "run-job"]
    applied = cli("apply", path, "--format", "json").json
    assert applied["jobs"][0] | {"seconds": 0} == {
        "job": "run", "status": "done", "output": "outbox/run", "committed": 20, "failed": 0, "skipped": 0, "kept": 0, "seconds": 0, "reason": None, "memory": [],
    }  # fmt: skip
    status = cli("status", path, "--format", "json").json
    assert status["jobs"][0]["committed"] == 20
    (deployment / "m.yaml").write_text(MANIFEST.replace("double.onnx", "triple.onnx"))
    (found,) = cli("plan", path, "--format", "json").json["diagnostics"]
    assert found | {"detail": ""} == {
        "rule": "unreadable-model", "severity": "error", "certainty": "proven-from-files", "summary": "Model file cannot be used",
        "detail": "", "path": str(path), "line": 4, "column": 18, "model": "double", "job": None,
    }  # fmt: skip


def test_status_before_and_after(cli: Cli, deployment: Path) -> None:
    assert "never run" in cli("status", deployment).out
    cli("apply", deployment / "m.yaml")
    assert "done" in cli("status", deployment).out


def test_a_saved_plan_runs_once(cli: Cli, deployment: Path) -> None:
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out
    assert len(read_rows(deployment / "outbox/run")) == 20
    again = cli("apply", plan)
    assert again.code == 0
    assert "nothing to do" in again.out


@pytest.mark.parametrize(
    "moved", ["manifest", "model", "inputs", "adapter", "ONNX Runtime version", "providers", "labels"]
)
def test_a_saved_plan_is_refused_when_a_fact_has_moved(
    cli: Cli, deployment: Path, moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora_model(deployment / "lora.onnx")
    (deployment / "names.txt").write_text("a\nb\nc\nd\n")
    adapter = deployment / "a.onnx_adapter"
    a, b = np.ones((4, 2), np.float32), np.ones((2, 4), np.float32)
    make_adapter(adapter, lora_A=a, lora_B=b)
    text = MANIFEST.replace("double.onnx", "lora.onnx").replace("    batch:", "    adapter: a\n    batch:")
    text += "    postprocess: [{argmax: y, as: i}, {labels: i, as: name, from: names.txt}]\nadapters: {a: {path: a.onnx_adapter, model: double}}\n"
    (deployment / "m.yaml").write_text(text)
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    match moved:
        case "manifest":
            (deployment / "m.yaml").write_text(text + "# a comment\n")
        case "model":
            scale_model(deployment / "lora.onnx")
        case "inputs":
            np.save(deployment / "data.npy", np.zeros((21, 4), np.float32))
        case "adapter":
            make_adapter(adapter, lora_A=2 * a, lora_B=b)
        case "labels":
            (deployment / "names.txt").write_text("b\n")
        case "ONNX Runtime version":
            monkeypatch.setattr("onnxruntime.__version__", "1.31.99")
        case "providers":
            monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "error[moved-fact]" in refused.out
    verb = "are" if moved in {"inputs", "providers", "labels"} else "is"
    assert f"The {moved} {verb} not what the plan was made from" in refused.out
    assert not (deployment / "outbox").exists()


def test_a_plan_of_a_manifest_that_is_gone_is_refused(cli: Cli, deployment: Path) -> None:
    plan = deployment / "plan.json"
    cli("plan", deployment / "m.yaml", "--out", plan)
    (deployment / "m.yaml").unlink()
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "The manifest is not what the plan was made from" in refused.out


@pytest.mark.parametrize(
    "content", ['{"format_version": 6, "plans": []}', '{"format_version": 2, "plans": 3}', '{"format_version"']
)
def test_a_broken_plan_file_is_a_diagnostic(cli: Cli, tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    refused = cli("apply", tmp_path / "plan.json")
    assert refused.code == 1
    assert "error[unreadable-plan]" in refused.out


def test_one_job_of_several(cli: Cli, deployment: Path) -> None:
    second = "  other:\n    model: double\n    input: {path: data.npy}\n    output: {path: outbox/other}\n"
    (deployment / "m.yaml").write_text(MANIFEST + second)
    assert cli("apply", deployment / "m.yaml", "--job", "other").code == 0
    assert (deployment / "outbox/other").exists()
    assert not (deployment / "outbox/run").exists()
    wrong = cli("apply", deployment / "m.yaml", "--job", "othr")
    assert wrong.code == 64
    assert 'Did you mean "other"?' in wrong.err


def test_one_job_of_a_saved_plan(cli: Cli, deployment: Path) -> None:
    second = "  other:\n    model: double\n    input: {path: data.npy}\n    output: {path: outbox/other}\n"
    (deployment / "m.yaml").write_text(MANIFEST + second)
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    assert cli("apply", plan, "--job", "othr").code == 64
    assert cli("apply", plan, "--job", "other").code == 0
    assert not (deployment / "outbox/run").exists()
    assert len(read_rows(deployment / "outbox/other")) == 20


def test_a_saved_plan_is_applied_from_anywhere(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployment)
    assert cli("plan", "m.yaml", "--out", "plan.json").code == 0
    monkeypatch.chdir("/")
    assert cli("apply", deployment / "plan.json").code == 0


def test_one_failing_job_does_not_lose_the_others(cli: Cli, deployment: Path) -> None:
    rows = np.ones((100, 4), np.float32)
    rows[80] = 0  # behind the first rows, which plan looks at
    np.save(deployment / "bad.npy", rows)
    limits = "    inputs: {x: {range: [0.5, 100]}}\n"
    text = MANIFEST.replace("  double: {path: double.onnx}\n", f"  double:\n    path: double.onnx\n{limits}").replace(
        "data.npy", "bad.npy"
    )
    second = "  other:\n    model: plain\n    input: {path: data.npy}\n    output: {path: outbox/other}\n"
    (deployment / "m.yaml").write_text(text.replace("jobs:", "  plain: {path: double.onnx}\njobs:") + second)
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "job run: failed" in result.out
    assert "must lie in 0.5 to 100" in result.out
    assert "job other: done" in result.out


def test_a_refused_manifest_does_not_stop_the_others_of_a_folder(cli: Cli, deployment: Path) -> None:
    (deployment / "broken.yaml").write_text("version: 1\nmodels: {m: {path: m.onnx}}\njob: {}\n")
    (deployment / "without.yaml").write_text("version: 1\nmodels: {m: {path: gone.onnx}}\n")
    planned = cli("plan", deployment)
    assert planned.code == 1
    assert "unknown-key" in planned.out
    assert "unreadable-model" in planned.out
    assert "run job run" in planned.out
    done = cli("apply", deployment, "--format", "json")
    assert done.code == 1
    assert [(job["job"], job["status"]) for job in done.json["jobs"]] == [("run", "done")]
    shown = cli("status", deployment)
    assert shown.code == 1
    assert "unknown-key" in shown.err
    assert "20" in shown.out
    assert cli("status", deployment / "broken.yaml").out == ""


def test_a_saved_plan_is_carried_out_as_a_whole(cli: Cli, deployment: Path) -> None:
    other = (deployment / "m.yaml").read_text().replace("outbox/run", "outbox/other").replace("demo", "other")
    (deployment / "other.yaml").write_text(other.replace("data.npy", "more.npy"))
    np.save(deployment / "more.npy", np.zeros((4, 4), np.float32))
    plan = deployment / "plan.json"
    assert cli("plan", deployment, "--out", plan).code == 0
    np.save(deployment / "more.npy", np.ones((4, 4), np.float32))
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "moved-fact" in refused.out
    assert not (deployment / "outbox").exists()


def test_a_folder_of_manifests(cli: Cli, deployment: Path) -> None:
    (deployment / "second.yml").write_text(MANIFEST.replace("outbox/run", "outbox/second"))
    result = cli("apply", deployment)
    assert result.code == 0
    assert len(read_rows(deployment / "outbox/second")) == 20
    (deployment / "third.yaml").write_text("version: 2\n")
    assert cli("validate", deployment).code == 1
    assert "Checked 3 manifests" in cli("validate", deployment).out
    assert cli("device", "-o", deployment / "device.yaml").code == 0
    assert "Checked 3 manifests and 1 device file: " in cli("validate", deployment).out
    assert cli("validate", deployment / "device.yaml").out == "Checked 1 device file: 0 errors, 0 warnings.\n"


def test_github_annotations_and_sarif(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("version: 1\nmodels: {m: {path: m.onnx, pth: x}}\n")
    result = cli("validate", path, "--format", "github")
    assert result.code == 1
    assert result.out == (
        f'::error file={path},line=2,col=28,title=Unknown key [unknown-key]::"pth" is not a key of models.m. '
        'Did you mean "path"?\n'
    )
    sarif = cli("validate", path, "--format", "sarif").json
    assert sarif["version"] == "2.1.0"
    (found,) = sarif["runs"][0]["results"]
    assert found["ruleId"] == "unknown-key"
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 28}


def test_profiles_sets_and_roots_reach_the_plan(
    cli: Cli, deployment: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    scale_model(elsewhere / "m.onnx", factor=3)
    path = deployment / "m.yaml"
    path.write_text(MANIFEST + f"profiles: {{lab: {{models: {{double: {{path: {elsewhere}/m.onnx}}}}}}}}\n")
    refused = cli("plan", path, "--profile", "lab")
    assert refused.code == 1
    assert "error[path-outside-tree]" in refused.out
    plan = deployment / "plan.json"
    arguments = ["--profile", "lab", "--allow-root", elsewhere, "--set", "jobs.run.batch.size=3", "--out", plan]
    assert cli("plan", path, "--set", "x-nothing=1", *arguments).code == 0
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "A plan file cannot allow a folder by itself" in " ".join(refused.out.split())
    assert cli("apply", plan, "--allow-root", elsewhere).code == 0
    assert read_rows(deployment / "outbox/run")[0]["y"] == [0.0, 3.0, 6.0, 9.0]


def test_a_state_directory_elsewhere(cli: Cli, deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    state = tmp_path_factory.mktemp("state")
    assert cli("apply", deployment / "m.yaml", "--state-dir", state).code == 0
    assert not (deployment / ".ortdeploy").exists()
    assert "finished" in cli("plan", deployment / "m.yaml", "--state-dir", state).out
    foreign = cli("plan", deployment / "m.yaml")
    assert foreign.code == 1
    assert "error[finished-output]" in foreign.out


def test_a_live_run_holds_the_state(cli: Cli, deployment: Path) -> None:
    with hold_output(deployment / ".ortdeploy", "../outbox/run"):
        result = cli("apply", deployment / "m.yaml")
    assert result.code == 4
    assert f"process {os.getpid()}" in result.err


def test_wrong_usage_is_64(cli: Cli, tmp_path: Path) -> None:
    for arguments in (
        ["nothing"],
        [],
        ["validate"],
        ["validate", "--format", "xml", "x"],
        ["apply", "x", "--set", "novalue"],
    ):
        result = cli(*arguments)
        assert result.code == 64, arguments
        assert "Traceback" not in result.err
    assert 'Did you mean "validate"?' in cli("valdate", tmp_path).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["apply", "m.yaml", "--new"], "ortdeploy apply has no flag --new. Did you mean"),
        (["plan", "m.yaml", "--detaild-exitcode"], 'Did you mean "--detailed-exitcode"?'),
        (["status", "m.yaml", "--new-run"], "usage: ortdeploy status"),
        (["adapter", "show", "x", "--jsn"], "usage: ortdeploy adapter show"),
        (["schema", "plan", "device"], '"device" is one argument too many'),
        (["plan", "m.yaml", "--device", "a.yaml", "b.yaml"], 'Quote a pattern: --device "devices/*.yaml"'),
        (["plan", "m.yaml", "--profile", "a", "--profile", "b"], "--profile is given twice"),
        (["tune", "m.yaml", "--job", "a", "--job=b"], "--job is given twice"),
    ],
)
def test_flags_are_whole_known_and_given_once(cli: Cli, arguments: list[str], said: str) -> None:
    refused = cli(*arguments)
    assert refused.code == 64
    assert said in refused.err
    command = " ".join(arguments[:2] if arguments[0] == "adapter" else arguments[:1])
    assert f"usage: ortdeploy {command} [FLAG ...] " in refused.err
    assert refused.err.endswith(f"\nortdeploy {command} --help lists its flags and what they mean.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan"], "ortdeploy plan needs PATH (a manifest, or a folder of them)"),
        (["tune", "m.yaml"], "ortdeploy tune needs --job NAME (the job whose settings are searched)"),
        (["diff"], "ortdeploy diff needs PATH (two files of one kind"),
        (["adapter"], "ortdeploy adapter needs ACTION"),
        (["adapter", "shw"], 'ACTION: there is no "shw". Did you mean "show"?'),
        (["plan", "m.yaml", "--format", "jsn"], '--format: there is no "jsn". Did you mean "json"?'),
        (["completion", "fish"], 'SHELL: there is no "fish". Known: bash, tcsh, zsh.'),
        (["plan", "m.yaml", "--out"], "--out needs a value"),
        (["plan", "m.yaml", "--quiet=3"], "-q/--quiet takes no value"),
        (["try", "m.yaml", "--rows", "0"], "--rows: '0' is not a number of rows, at least 1"),
        (["plan", "--nonsense"], "ortdeploy plan has no flag --nonsense. Known: --allow-root, "),
        (["plan", "--nonsense"], "--state-dir, --tag, --verbose.\n"),
        (["tune", "--jbo", "a"], 'ortdeploy tune has no flag --jbo. Did you mean "--job"?'),
        (["tune", "--limit=p99=1s", "-qv"], "ortdeploy tune needs PATH (a manifest) and --job NAME"),
        (["tune", "--", "--job"], "ortdeploy tune needs --job NAME"),
        (["--nonsense"], "ortdeploy has no flag --nonsense. Known: --help, --version."),
        (["tune", "m.yaml", "--job", "a", "--seconds", "x"], "--seconds: 'x' is not a number of seconds, up to 86400"),
        (["tune", "m.yaml", "--job", "a", "--seconds", "nan"], "--seconds: 'nan' is not a number of seconds"),
        (["tune", "m.yaml", "--job", "a", "--seconds", "0"], "--seconds: '0' is not a number of seconds"),
        (["adapter", "convert", "--adapter-version", "x"], "--adapter-version: 'x' is not a whole number"),
        (["plan", ""], "PATH is empty"),
        (["plan", "m.yaml", "--state-dir", ""], "--state-dir is empty"),
        (["explain", "nope"], 'there is no rule, provider or step "nope". ortdeploy explain lists all'),
        (["help"], "ortdeploy --help says what each command does."),
    ],
)
def test_wrong_usage_is_told_in_words_of_the_command(cli: Cli, arguments: list[str], said: str) -> None:
    refused = cli(*arguments)
    assert refused.code == 64
    assert re.match(r"ortdeploy(: (?!ortdeploy)| [a-z])", refused.err), "the program is named once"
    assert said in refused.err
    assert len(refused.err.splitlines()) <= 3


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each command, and of each action of those that have some."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for one in action.choices.values():
                yield from parsers(one)
            return
    yield parser


def test_every_command_takes_the_flags_of_all() -> None:
    for parser in parsers(build_parser()):
        flags = {flag for action in parser._actions for flag in action.option_strings}  # noqa: SLF001
        assert flags >= {"-q", "--quiet", "--color", "--no-color", "--help"}, parser.prog


@pytest.mark.parametrize("name", ["webgpu", "TensorRT", "unavailable-provider", "unusable-job-input", "resize", None])
def test_a_narrow_terminal_gets_broken_pages(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.setattr(explain, "terminal_width", lambda _: 60)
    lines = cli("explain", *([name] if name else [])).out.partition("\nSources:")[0].splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert any(len(line) > 50 for line in lines)
    assert name != "unusable-job-input" or sum(line.startswith("- ") for line in lines) == 3


@pytest.mark.parametrize(
    "arguments", [["explain", "CUDA"], ["explain"], ["schema", "plan"], ["completion", "bash"], ["device"]]
)
def test_what_is_asked_for_is_printed_quietly_too(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments, "-q", "--no-color").out == cli(*arguments).out != ""


def test_a_profile_may_come_from_the_environment(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plan = deployment / "m.yaml", deployment / "plan.json"
    path.write_text(path.read_text() + "profiles: {small: {jobs: {run: {batch: {size: 3}}}}}\n")
    assert cli("plan", path, "--out", plan).code == 0
    monkeypatch.setenv("ORTDEPLOY_PROFILE", "small")
    assert "batches of 3" in cli("plan", path).out
    assert cli("diff", path, path).code == 0  # is about the text
    monkeypatch.setenv("ORTDEPLOY_PROFILE", "smal")
    assert "undefined-profile" in cli("plan", path).out
    assert "batches of 3" in cli("plan", path, "--profile", "small").out
    assert "batches of 8" in cli("apply", plan).out  # a saved plan has its own
    assert cli("lock", path).code == 0


def test_quiet_commands_say_what_is_wrong_alone(cli: Cli, deployment: Path) -> None:
    path, before = deployment / "m.yaml", deployment / "before.yaml"
    before.write_text(path.read_text().replace("size: 8", "size: 4"))
    assert cli("apply", path).code == 0
    assert cli("lock", path).code == 0
    calls = [
        ["apply", path], ["plan", path], ["validate", path], ["status", path], ["verify", path], ["lock", path],
        ["lock", "--check", path], ["compact", path], ["cache", "prune", path], ["diff", path], ["diff", before, path],
        ["try", path],
    ]  # fmt: skip
    ended = [cli(*call, "-q") for call in calls]
    assert [(one.code, one.out, one.err) for one in ended] == [(0, "", "")] * len(calls)
    (part,) = (deployment / "outbox/run").glob("part-*")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert "part-00000000" in cli("verify", path, "-q").out
    path.write_text(path.read_text().replace("sha256: ", "sha256: 0"))
    assert cli("lock", "--check", path, "-q").code == 1


SECRET_URL = "https://user:hunter2secret@example.org/m.yaml?sig=hunter2secret"  # noqa: S105  nobody's


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", SECRET_URL],
        ["status", SECRET_URL],
        ["init", SECRET_URL],
        ["adapter", "show", SECRET_URL],
        ["apply", "m.yaml", "--state-dir", SECRET_URL],
        ["apply", "m.yaml", "--log-file", SECRET_URL],
        ["apply", "m.yaml", "--overlay", SECRET_URL],
        ["plan", "m.yaml", "--out", SECRET_URL],
        ["plan", "m.yaml", "--device", SECRET_URL],
        ["plan", "m.yaml", "--allow-root", "file:///"],
        ["device", "-o", SECRET_URL],
    ],
)
def test_a_url_in_place_of_a_local_path_is_refused_without_its_secrets(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """It was taken for folders: the state went into https:/user:… below the current one, and names were printed."""
    monkeypatch.chdir(deployment)
    before = sorted(deployment.rglob("*"))
    refused = cli(*arguments)
    assert refused.code == 64
    assert "takes a local path" in refused.err
    assert "hunter2secret" not in refused.out + refused.err
    assert sorted(deployment.rglob("*")) == before


def test_a_url_as_the_state_folder_of_the_environment_is_refused(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deployment)
    monkeypatch.setenv("ORTDEPLOY_STATE_DIR", "s3://bucket/state")
    refused = cli("apply", "m.yaml")
    assert (refused.code, "--state-dir takes a local path" in refused.err) == (64, True)
    assert not (deployment / "s3:").exists()
    monkeypatch.setenv("ORTDEPLOY_STATE_DIR", "./s3:state")
    assert cli("apply", "m.yaml").code == 0


def test_a_url_as_the_key_of_a_set_is_shown_without_its_secrets(cli: Cli, deployment: Path) -> None:
    refused = cli("plan", deployment, "--set", f"{SECRET_URL}=1")
    assert refused.code == 1
    assert "hunter2secret" not in refused.out + refused.err


def test_an_unknown_command_lists_all_of_them(cli: Cli) -> None:
    refused = cli("zzz")
    assert all(command in refused.err for command in COMMANDS)


def test_several_jobs_by_name_and_glob(cli: Cli, deployment: Path) -> None:
    jobs = "".join(
        f"  {name}:\n    model: double\n    input: {{path: data.npy}}\n    output: {{path: outbox/{name}}}\n"
        for name in ("day-1", "day-2", "night")
    )
    (deployment / "m.yaml").write_text(MANIFEST + jobs)

    def planned(*arguments: str) -> list[str]:
        steps = cli("plan", deployment / "m.yaml", "--format", "json", *arguments).json["steps"]
        return [step["job"] for step in steps if step["step"] == "run-job"]

    assert planned("--job", "run", "--job", "night") == ["run", "night"]
    assert planned("--job", "day-*") == ["day-1", "day-2"]
    assert planned("--exclude", "day-*") == ["run", "night"]
    assert planned("--job", "day-*", "--exclude", "day-1", "--exclude", "night") == ["day-2"]
    wrong = cli("plan", deployment / "m.yaml", "--exclude", "week-*")
    assert wrong.code == 64
    assert '--exclude: there is no job "week-*"' in wrong.err
    wrong = cli("apply", deployment / "m.yaml", "--job", "day-*", "--exclude", "day-?")
    assert wrong.code == 64
    assert "--exclude leaves no job" in wrong.err
    wrong = cli("plan", deployment / "m.yaml", "--job", "run", "--job", "week-*")
    assert wrong.code == 64
    assert 'there is no job "week-*"' in wrong.err
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--job", "day-*", "--job", "night", "--out", plan).code == 0
    assert cli("apply", plan, "--exclude", "night").code == 0
    assert sorted(path.name for path in (deployment / "outbox").iterdir()) == ["day-1", "day-2"]


def test_help_names_every_command_and_every_exit_code(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    assert all(command in result.out for command in COMMANDS)
    assert all(code in result.out for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "64", "129/130/143"))
    for command in COMMANDS:
        assert cli(command, "--help").code == 0


def test_help_shows_every_command_in_a_group_and_says_where_to_start(cli: Cli) -> None:
    shown = cli("--help").out
    grouped = [name for _, names in GROUPS for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(COMMANDS) <= set(grouped)
    assert [line for line in shown.splitlines() if line.startswith("Start with")] == [
        "Start with: ortdeploy init MODEL.onnx"
    ]
    groups = re.findall(r"^([a-z][a-z ]+):$", shown, re.MULTILINE)
    assert groups == [*(group for group, _ in GROUPS), "options", "exit codes"]
    assert shown.index("  init ") < shown.index("  apply ") < shown.index("  retry ") < shown.index("  compact ")


@pytest.mark.parametrize("columns", ["60", "80"])
def test_help_breaks_no_word(cli: Cli, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in [(), *((name,) for name in COMMANDS)]:
        monkeypatch.setenv("COLUMNS", "1000")
        words = set(cli(*command, "--help").out.split())
        monkeypatch.setenv("COLUMNS", columns)
        shown = cli(*command, "--help").out
        assert max(map(len, shown.splitlines())) <= int(columns)
        assert set(shown.split()) == words, command


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("ortdeploy 0.")


def test_a_bug_says_so_with_versions(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ortdeploy.cli.commands.validate.validate", broken)
    result = cli("validate", deployment)
    assert result.code == 3
    assert "this is a bug of ortdeploy" in result.err
    assert "onnxruntime: " in result.err


def test_schema_prints_what_the_repository_has(cli: Cli) -> None:
    assert cli("schema", "report").json == json.loads((REPOSITORY / "schemas/report.schema.json").read_text())
    assert cli("schema").json["title"] == "ortdeploy deployment"
    assert cli("schema", "nothing").code == 64


def test_explain_rules_stage_pages_and_providers(cli: Cli) -> None:
    assert "How to fix" in cli("explain", "unavailable-provider").out
    assert "silently keep the last one" in cli("explain", "duplicate-key").out
    assert "CUDAExecutionProvider" in cli("explain", "CUDA").out
    webgpu = cli("explain", "webgpu").out
    assert "It comes with onnxruntime-webgpu or, as a plugin, with onnxruntime-ep-webgpu.\n" in webgpu
    assert "It comes as a plugin beside onnxruntime, with onnxruntime-qnn.\n" in cli("explain", "QNN").out
    assert webgpu.count("webgpu_provider_options.h") == 1, "each source stands once, at the end"
    assert re.search(r"\n {6}since 1\.22 \[1\]\n", webgpu)
    assert "was removed from ONNX Runtime in 1.23. Use MIGraphX instead." in cli("explain", "ROCMExecutionProvider").out
    assert 'Did you mean "unknown-key"?' in cli("explain", "unknown-kee").err
    assert "For it, write CUDA for NVIDIA" in cli("explain", "GPU").err


@pytest.mark.parametrize("name", [*OPERATIONS])
def test_explain_says_what_a_step_takes_gives_and_is_set_with(cli: Cli, name: str) -> None:
    said = cli("explain", name)
    assert said.code == 0, said.err
    contract = OPERATIONS[name].contract
    assert "{do: " + name + "}" in said.out
    assert all(f"takes {one.name}" in said.out for one in contract.inputs)
    assert all(f"gives {one.name}:" in said.out for one in contract.outputs)
    assert all(f"\n  {one.name}: {one.meaning}" in said.out for one in contract.attributes)


def test_explain_knows_a_step_and_an_operation_of_one_name_and_operators_of_onnx(cli: Cli) -> None:
    both = cli("explain", "resample").out
    assert "resample: a step of prepare\n" in both
    assert "resample: an operation of pipelines" in both
    assert "axis: INT" in cli("explain", "TopK").out
    assert "in: data, axes (optional)\n" in cli("explain", "Squeeze").out
    assert 'Did you mean "letterbox"?' in cli("explain", "leterbox").err
    assert "ortdeploy explain lists all" in cli("explain", "qqqq").err


def test_explain_without_a_name_lists_every_page(cli: Cli) -> None:
    said = cli("explain")
    assert said.code == 0
    assert all(f" {name}" in said.out for name in OPERATIONS)
    listed = {line.split()[0] for line in said.out.splitlines() if line.startswith("  ")}
    assert listed >= {*RULES, *PAGES}
    assert "OpenVINO" in said.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert "validate" in result.out


def test_validate_and_help_import_no_heavy_packages(deployment: Path) -> None:
    script = (
        "import sys; from ortdeploy.cli.main import main\n"
        f"code = main(['validate', {str(deployment)!r}]); main(['--help']); main(['schema'])\n"
        "heavy = {'onnxruntime', 'onnx', 'numpy', 'structlog', 'PIL', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_logs_are_json_lines_and_mask_secrets(deployment: Path) -> None:
    text = MANIFEST.replace(
        "{path: double.onnx}", "{path: double.onnx, session: {config: {ep.fooexecutionprovider.api_token: hunter2}}}"
    )
    (deployment / "m.yaml").write_text(text)
    result = run_fork(["apply", "m.yaml", "-v"], cwd=deployment)
    assert result.code == 0, result.err
    events = [json.loads(line) for line in result.err.splitlines()]
    assert [event["event"] for event in events][:2] == ["run.started", "session.opened"]
    assert all(event["run"] and event["deployment"] == "demo" for event in events)
    assert "hunter2" not in result.err + result.out


def test_a_log_file_gets_the_logs(deployment: Path) -> None:
    result = run_fork(["apply", "m.yaml", "--log-file", "log.jsonl", "--log-format", "json"], cwd=deployment)
    assert result.err == ""
    lines = (deployment / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "run.finished"


def test_a_log_file_that_cannot_be_written_is_an_error(deployment: Path) -> None:
    result = run_fork(["apply", "m.yaml", "--log-file", "nowhere/log"], cwd=deployment)
    assert (result.code, "nowhere/log cannot be written" in result.err) == (1, True)


def test_every_command_over_manifests_takes_the_common_flags(cli: Cli, deployment: Path) -> None:
    log = deployment / "log.jsonl"
    for command in ("validate", "plan", "apply", "status"):
        flags = ["--format", "text", "--log-format", "json", "--log-file", log, "--state-dir", deployment / "state"]
        result = cli(command, deployment / "m.yaml", *flags, "--set", "name=other", "-v", "--no-color")
        assert result.code == 0, result.err
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events[:2] == ["manifests.checked", "plan.made"]
    assert "block.finished" in events
    assert events[-1] == "status.shown"


def test_verbose_says_more(cli: Cli, deployment: Path) -> None:
    assert str(deployment / "m.yaml") in cli("validate", deployment, "-v").out
    assert "rests on ONNX Runtime version" in cli("plan", deployment / "m.yaml", "-v").out
    cli("apply", deployment / "m.yaml")
    assert "outbox/run/part-00000000.jsonl: 20 rows from 0" in cli("status", deployment / "m.yaml", "-v").out


def test_what_is_printed_and_left_is_what_its_schemas_say(cli: Cli, deployment: Path) -> None:
    diagnostics = Draft202012Validator(json.loads(cli("schema", "diagnostics").out))
    report = Draft202012Validator(json.loads(cli("schema", "report").out))
    path = deployment / "m.yaml"
    for command in ("validate", "plan", "apply"):
        diagnostics.validate(cli(command, path, "--format", "json").json)
    report.validate(json.loads((deployment / "outbox/run/_run.json").read_text()))
    path.write_text(MANIFEST.replace("double.onnx", "gone.onnx"))
    diagnostics.validate(cli("plan", path, "--format", "json").json)


def test_the_report_has_the_command_line_without_secrets_and_parts_do_not_depend_on_it(
    cli: Cli, deployment: Path
) -> None:
    path, folder = deployment / "m.yaml", deployment / "outbox/run"
    path.write_text(MANIFEST + "profiles:\n  pi: {jobs: {run: {report: html}}}\n")
    (deployment / "small.yaml").write_text("jobs: {run: {batch: {size: 8}}}\n")
    assert cli("apply", path).code == 0
    plain, before = json.loads((folder / "_run.json").read_text()), (folder / "part-00000000.jsonl").read_bytes()
    assert plain["invocation"] == {
        "arguments": ["apply", str(path)],
        "bundle": None,
        "profile": None,
        "choice": None,
        "overlays": [],
        "sets": [],
    }
    option, secret = "models.double.run={config: {azure.auth_key: ", "canaryOPTIONxy"
    flags = (
        "--profile",
        "pi",
        "--overlay",
        deployment / "small.yaml",
        f"--set={option}{secret}}}}}",
        "--set",
        "name=demo",
    )
    for left in ("outbox", ".ortdeploy"):
        shutil.rmtree(deployment / left)
    done = cli("apply", path, *flags)
    assert done.code == 0, done.out + done.err
    text = (folder / "_run.json").read_text()
    report = json.loads(text)
    assert report["invocation"] == {
        "arguments": [
            "apply", str(path), "--profile", "pi", "--overlay", str(deployment / "small.yaml"),
            f"--set={option}***}}}}",
            "--set", "name=demo",
        ],
        "bundle": None,
        "profile": "pi",
        "choice": {"name": "pi", "reason": "flag", "facts": {}, "since": report["invocation"]["choice"]["since"]},
        "overlays": ["small.yaml"],
        "sets": [f"{option}***}}}}", "name=demo"],
    }  # fmt: skip
    page = (folder / "_run.html").read_text()
    assert secret not in text + page
    assert "<td>profile</td><td>pi (flag)</td>" in page
    assert "<td>overlays</td><td>small.yaml</td>" in page
    assert "<td>command</td><td>ortdeploy apply " in page
    assert (folder / "part-00000000.jsonl").read_bytes() == before
    Draft202012Validator(load_schema("report")).validate(report)


def test_apply_gives_annotations_and_sarif_too(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("double.onnx", "gone.onnx"))
    assert cli("apply", deployment / "m.yaml", "--format", "github").out.startswith("::error file=")
    assert cli("apply", deployment / "m.yaml", "--format", "sarif").json["runs"][0]["results"]


def test_quiet_prints_only_what_is_wrong(deployment: Path) -> None:
    assert run_fork(["validate", "m.yaml", "-q"], cwd=deployment).out == ""
    assert run_fork(["apply", "m.yaml", "-q"], cwd=deployment).err == ""


def on_terminal(arguments: list[str], cwd: Path, **env: str) -> str:
    """Everything that a terminal would show."""
    import fcntl  # noqa: PLC0415  not on Windows
    import pty  # noqa: PLC0415
    import termios  # noqa: PLC0415

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = start_program(
        arguments, cwd=cwd, stdout=follower, stderr=follower, stdin=follower, env={"TERM": "xterm", **env}
    )
    os.close(follower)
    shown = bytearray()
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    process.wait()
    os.close(leader)
    return shown.decode()


def test_a_terminal_gets_colors_a_live_line_and_a_table(deployment: Path) -> None:
    shown = on_terminal(["apply", "m.yaml"], deployment)
    assert "\x1b[1mdemo\x1b[0m" in shown
    assert "session.opened" not in shown
    assert '{"' not in shown
    assert "of 20 rows" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")
    assert re.search(r"\n\n *job +state", plain), "a blank line stands before the table"
    table = shown.rpartition("state")[2]
    assert "done" in table
    assert "outbox/run" in table
    (kept,) = (deployment / ".ortdeploy/logs").iterdir()
    assert "session.opened" in kept.read_text()


def test_a_terminal_gets_console_logs_where_they_are_asked_for(deployment: Path) -> None:
    assert "session.opened" in on_terminal(["apply", "m.yaml", "-v"], deployment)
    assert not (deployment / ".ortdeploy/logs").exists()


def test_no_color_is_honoured(deployment: Path) -> None:
    assert "\x1b[" not in on_terminal(["validate", "m.yaml"], deployment, NO_COLOR="1")
    assert "\x1b[3" not in on_terminal(["apply", "m.yaml", "--no-color"], deployment)


@pytest.mark.parametrize(
    ("flags", "variables", "colored"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--no-color",), {"ORTDEPLOY_COLOR": "always"}, False),
        ((), {"ORTDEPLOY_COLOR": "always", "NO_COLOR": "1"}, True),
        (("--color", "auto"), {"ORTDEPLOY_COLOR": "always"}, False),
    ],
)
def test_color_is_as_asked_for(
    cli: Cli,
    deployment: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    variables: dict[str, str],
    colored: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "ORTDEPLOY_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (deployment / "m.yaml").write_text("version: 1\nmodel: {}\n")
    assert ("\x1b[" in cli("validate", deployment / "m.yaml", *flags).out) == colored


def test_environment_variables_stand_for_flags_that_are_not_given(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTDEPLOY_FORMAT", "json")
    monkeypatch.setenv("ORTDEPLOY_LOG_FORMAT", "console")
    monkeypatch.setenv("ORTDEPLOY_STATE_DIR", str(deployment / "elsewhere"))
    done = cli("apply", deployment / "m.yaml")
    assert done.json["jobs"][0]["status"] == "done"
    assert '"event"' not in done.err
    assert (deployment / "elsewhere/state.db").exists()
    assert not (deployment / ".ortdeploy").exists()
    assert "nothing to do" in cli("apply", deployment / "m.yaml", "--format", "text").out
    monkeypatch.setenv("ORTDEPLOY_FORMAT", "sarif")
    refused = cli("status", deployment / "m.yaml")
    assert refused.code == 64
    assert 'ORTDEPLOY_FORMAT is "sarif", and ortdeploy status takes text, json. Change it' in refused.err
    assert cli("status", deployment / "m.yaml", "--format", "text").code == 0


def test_quiet_says_only_what_is_wrong(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml", "-q").out == ""
    assert cli("apply", deployment / "m.yaml", "-q").out == ""
    np.save(deployment / "data.npy", np.full((4, 4), np.nan, np.float32))
    path = deployment / "m.yaml"
    path.write_text(path.read_text().replace("outbox/run", "outbox/other") + "    errors: {on_nan: fail}\n")
    failed = cli("apply", path, "-q")
    assert failed.code == 1
    assert "job run: failed" in failed.out


def test_control_characters_of_a_manifest_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text('version: 1\nmodels: {m: {path: m.onnx, "\\e[31mred": 1}}\n')
    assert "\x1b" not in cli("validate", tmp_path).out


def test_control_characters_of_names_do_not_reach_the_terminal(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("  run:", '  "r\\e[2Jun":'))
    for command in ("plan", "apply", "status"):
        result = cli(command, deployment / "m.yaml")
        assert result.code == 0
        assert "\x1b" not in result.out
        assert "[2Jun" in result.out


@pytest.mark.quick("SIGTERM")
@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (1, 129)], ids=["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_stops_the_run_and_the_next_goes_on(deployment: Path, number: int, code: int) -> None:
    np.save(deployment / "data.npy", np.zeros((200_000, 4), np.float32))
    text = MANIFEST.replace("size: 8", "size: 1").replace("format: jsonl", "format: jsonl, rows_per_part: 1000")
    (deployment / "m.yaml").write_text(text)
    process = start_program(
        ["apply", "m.yaml"], cwd=deployment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "part.committed" in line:
            process.send_signal(number)
            break
    out, err = process.communicate()
    assert process.returncode == code, err
    assert "interrupted" in out
    assert {path.suffix for path in (deployment / "outbox/run").glob(".*")} <= {".begun"}
    shown = run_fork(["status", "m.yaml"], cwd=deployment).out
    assert "interrupted" in shown


def test_a_reader_that_goes_away_is_no_error(deployment: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ortdeploy", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", cwd=deployment
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert "Traceback" not in errors
    assert process.wait() == 0


def test_init_writes_a_manifest_that_validates_plans_and_applies(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scale_model(tmp_path / "models" / "my model.onnx")
    made = cli("init", "models/my model.onnx")
    assert made.code == 0, made.out
    path = tmp_path / "my model.yaml"
    assert cli("validate", path).code == 0
    assert cli("plan", path).code == 0
    assert cli("apply", path).code == 0
    assert len(read_rows(tmp_path / "outbox/my model")) == 4
    again = cli("init", "models/my model.onnx")
    assert again.code == 1
    assert "is not overwritten" in again.err


@pytest.mark.slow
def test_init_takes_models_of_every_shape(cli: Cli, tmp_path: Path) -> None:
    from onnx import TensorProto, helper  # noqa: PLC0415  only here

    identity = [helper.make_node("Identity", ["x"], ["y"])]
    kinds: dict[str, tuple[int, list[int | str | None]]] = {
        "fixed-one": (TensorProto.FLOAT, [1, 3]), "fixed-many": (TensorProto.FLOAT, [5, 3]), "scalar": (TensorProto.INT64, []),
        "vector": (TensorProto.DOUBLE, ["n"]), "text": (TensorProto.STRING, ["n", 2]), "image": (TensorProto.UINT8, ["n", 3, "h", "w"]),
        "half": (TensorProto.FLOAT16, [None, 3]), "flag": (TensorProto.BOOL, ["n"]), "odd: name": (TensorProto.FLOAT, ["yes", 2]),
    }  # fmt: skip
    for name, value in kinds.items():
        folder = tmp_path / name.replace(": ", "-")
        save_model(folder / "m.onnx", identity, {"x": value}, {"y": value})
        made = cli("init", folder / "m.onnx", "-o", folder / "m.yaml")
        assert made.code == 0, (name, made.out, made.err)
        applied = cli("apply", folder / "m.yaml")
        assert applied.code == 0, (name, applied.out)
        rows = {"fixed-many": 5, "image": 2}.get(name, 4)  # pictures are files of their own
        assert len(read_rows(folder / "outbox/m")) == rows


def test_init_of_what_is_not_there_speaks_of_no_manifest(cli: Cli, tmp_path: Path) -> None:
    refused = cli("init", tmp_path / "gone.onnx")
    assert (refused.code, refused.err) == (1, f"ortdeploy: there is no file {tmp_path / 'gone.onnx'}.\n")


def test_init_of_what_is_no_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("hello")
    result = cli("init", tmp_path / "m.onnx")
    assert result.code == 1
    assert "is not an ONNX model" in result.err
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


def test_a_run_that_begins_while_another_plans_is_not_taken_for_a_stranger(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is read before the output folders are looked at; a run may begin in between."""
    assert cli("apply", deployment / "m.yaml").code == 0
    calls = iter(range(9))
    real, nothing = data_places.load_previous, data_places.Before()

    def load_previous(places: data_places.DataPlaces, state_dir: Path) -> data_places.Before:
        """Know of nothing at first: what happens in between cannot be arranged from outside."""
        return real(places, state_dir) if next(calls) else nothing

    for room in (probe, data_places):
        monkeypatch.setattr(room, "load_previous", load_previous)
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out
    for room in (probe, data_places):
        monkeypatch.setattr(room, "load_previous", lambda *_where: nothing)
    assert "error[finished-output]" in cli("plan", deployment / "m.yaml").out


def test_a_finished_output_is_no_reason_to_start_over_for_a_provider_that_is_not_here(
    cli: Cli, deployment: Path
) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text(text.replace("double.onnx", "double.onnx, providers: [CUDA, CPU]"))
    found = cli("plan", deployment / "m.yaml", "--format", "json").json["diagnostics"]
    assert [one["rule"] for one in found] == ["unavailable-provider"]


def test_a_finished_output_of_other_steps_can_be_continued_or_started_over(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text(text.replace("    batch:", "    prepare: {x: [{scale: 2}]}\n    batch:"))
    assert (
        "made before these changed: prepare. Under output:, on_upgrade: continue keeps its rows, and runs later ones "
        "with what is there now. Apply with --new-run to start over"
    ) in cli("plan", deployment / "m.yaml").words


def test_parts_of_another_size_are_named_by_their_setting(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    changed = cli("plan", deployment / "m.yaml", "--set", "jobs.run.output.rows_per_part=5")
    assert "made before these changed: rows_per_part. Under output:, on_upgrade: continue" in changed.words
    changed = cli("plan", deployment / "m.yaml", "--set", "jobs.run.output.format=csv")
    assert "made before these changed: output. Apply with" in changed.words


def test_a_table_with_the_elements_of_a_column_says_how_they_are_named(cli: Cli, deployment: Path) -> None:
    csv = MANIFEST.replace("format: jsonl", "format: csv")
    (deployment / "m.yaml").write_text(csv)
    assert cli("apply", deployment / "m.yaml").code == 0
    of_parts = csv.replace("data.npy, key: [row]", "outbox/run/part-*.csv, key: [row], columns: {x: y}")
    (deployment / "n.yaml").write_text(of_parts.replace("path: outbox/run,", "path: outbox/again,"))
    refused = cli("plan", deployment / "n.yaml")
    assert 'no column "y", and its elements as columns of their own, y.*. Name all of them: "y.*".' in refused.words
    (deployment / "n.yaml").write_text((deployment / "n.yaml").read_text().replace("{x: y}", '{x: "y.*"}'))
    assert cli("plan", deployment / "n.yaml").code == 0


def test_outputs_are_named_from_the_current_folder_for_people_and_from_the_manifest_for_programs(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deployment.parent)
    manifest = f"{deployment.name}/m.yaml"
    place = f"{deployment.name}/outbox/run"
    assert f"0 skipped, in {place}." in cli("apply", manifest).out
    again = cli("apply", manifest).out
    assert f"is finished: 20 rows in {place}\n" in again
    assert f"nothing to do, {place} is finished." in again
    assert f"part in {place} is as" in cli("verify", manifest).out
    assert f" {place} " in cli("status", manifest).out
    (job,) = cli("status", manifest, "--format", "json").json["jobs"]
    assert job["output"] == "outbox/run"


def test_two_applies_at_once_do_not_mix(deployment: Path) -> None:
    np.save(deployment / "data.npy", np.zeros((10_000, 4), np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("size: 8", "size: 1"))
    runs = [
        start_program(["apply", "m.yaml"], cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    codes = sorted(run.wait() for run in runs)
    assert codes[0] == 0
    assert set(codes) <= {0, 4}
    assert len(read_rows(deployment / "outbox/run")) == 10_000


def test_retry_runs_the_failed_rows_of_a_finished_job(cli: Cli, deployment: Path) -> None:
    values = np.ones((20, 4), np.float32)
    values[[3, 12]] = np.nan
    np.save(deployment / "data.npy", values)
    lenient = MANIFEST.replace("jobs:\n  run:\n", "jobs:\n  run:\n    errors: {on_nan: fail, max_failed: 5}\n")
    (deployment / "m.yaml").write_text(lenient)
    assert "18 rows committed, 2 failed" in cli("apply", deployment / "m.yaml").out
    again = cli("retry", deployment / "m.yaml", "--job", "run")
    assert again.code == 0
    assert "run the failed rows of job run once more" in again.out
    failed = [json.loads(line) for line in (deployment / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert [(row["row"], row["attempts"]) for row in failed] == [(3, 2), (12, 2)]
    assert cli("retry", deployment / "m.yaml").code == 64
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out


def test_new_files_of_a_finished_job_are_run_and_only_they(cli: Cli, deployment: Path) -> None:
    (deployment / "in").mkdir()
    np.save(deployment / "in/b.npy", np.full((5, 4), 2, np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("data.npy", "in/*.npy"))
    assert cli("apply", deployment / "m.yaml").code == 0
    first = (deployment / "outbox/run/part-00000000.jsonl").read_bytes()
    np.save(deployment / "in/a.npy", np.full((3, 4), 1, np.float32))
    (deployment / "in/b.npy").rename(deployment / "done.npy")
    assert "after 5 rows: 8 rows" in cli("plan", deployment / "m.yaml").out
    second = cli("apply", deployment / "m.yaml").out
    assert "8 rows committed, 0 failed, 0 skipped; 3 rows of this run, in" in second
    assert (deployment / "outbox/run/part-00000000.jsonl").read_bytes() == first
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(8))
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out
    np.save(deployment / "in/a.npy", np.full((4, 4), 1, np.float32))
    refused = cli("apply", deployment / "m.yaml")
    assert refused.code == 1
    assert "input file in/a.npy" in " ".join(refused.out.split())


def test_a_new_run_starts_over_what_changed_and_keeps_the_old(cli: Cli, deployment: Path) -> None:
    second = "  other:\n    model: double\n    input: {path: data.npy, key: [row]}\n    output: {path: outbox/other}\n"
    (deployment / "m.yaml").write_text(MANIFEST + second)
    assert cli("apply", deployment / "m.yaml").code == 0
    before = {path.name: path.read_bytes() for path in (deployment / "outbox/run").iterdir()}
    changed = (MANIFEST + second).replace("size: 8", "size: 4")
    (deployment / "m.yaml").write_text(changed)
    refused = cli("apply", deployment / "m.yaml")
    assert refused.code == 1
    assert "--new-run" in refused.out
    result = cli("apply", deployment / "m.yaml", "--new-run")
    assert result.code == 0
    assert "job run: done" in result.out
    assert "job other: nothing to do" in result.out
    (kept,) = (deployment / "outbox").glob("run.*")
    assert f"what outbox/run holds is kept beside it as {kept.name}" in result.out
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(20))
    unchanged = cli("apply", deployment / "m.yaml", "--new-run")
    assert "nothing to do" in unchanged.out
    assert "has changed, so --new-run does not start it over" in unchanged.out
    assert "--new-run" not in cli("apply", deployment / "m.yaml").out
    assert len(list((deployment / "outbox").glob("run*"))) == 2


def test_status_tells_how_far_a_live_run_is(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, seconds = deployment / ".ortdeploy", [0.0]
    monkeypatch.setattr(durations, "time", types.SimpleNamespace(monotonic=lambda: seconds[0]))
    live = Live(state, "../outbox/run", total=100, done=20)
    with open_ledger(state) as ledger, hold_output(state, "../outbox/run"):
        made_by = MadeBy(name="demo", profile=None, identity={}, layout=None)
        ledger.begin("../outbox/run", made_by=made_by, job="run", run="r")
        part = Part(number=0, start=0, rows=40, committed=38, failed=2, skipped=0, bytes=1, file="part-00000000.csv")
        ledger.commit_part("../outbox/run", part, [])
        ahead = cli("status", deployment / "m.yaml")
        assert "run: 40 of 100 rows, 2 failed, " in ahead.out, ahead.out
        assert "rows/s" not in ahead.out
        seconds[0] = 2.0
        live.rows_done(60, 3)
        shown = cli("status", deployment / "m.yaml")
        assert "run: 60 of 100 rows, 3 failed, 20 rows/s, 2 s left" in shown.out, shown.out
        (job,) = json.loads(cli("status", deployment / "m.yaml", "--format", "json").out)["jobs"]
        assert (job["status"], job["live"]["done"], job["live"]["seconds_left"]) == ("running", 60, 2)
        if job["live"]["resident_bytes"] is not None:
            assert job["live"]["resident_bytes"] <= job["live"]["peak_bytes"] + 2**20
            assert re.search(r"MiB of memory \(peak [0-9.]+ MiB\), [0-9.]+ cores, [0-9,]+ major faults", shown.out)
    stopped = cli("status", deployment / "m.yaml")
    assert "stopped" in stopped.out
    assert "rows/s" not in stopped.out
    live.end()


def test_a_run_that_ends_while_status_looks_is_not_called_stopped(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by = MadeBy(name="demo", profile=None, identity={}, layout=None)
    with open_ledger(deployment / ".ortdeploy") as ledger:
        ledger.begin("../outbox/run", made_by=made_by, job="run", run="r")

        def ended(_state: Path, output: str) -> bool:
            ledger.end(output, "done", None)
            return False

        monkeypatch.setattr(status, "is_live", ended)
        (job,) = json.loads(cli("status", deployment / "m.yaml", "--format", "json").out)["jobs"]
    assert job["status"] == "done"


def test_the_further_reports_are_written_beside_the_first(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST + "    report: [html, prometheus]\n")
    assert cli("apply", deployment / "m.yaml").code == 0
    assert "demo / run" in (deployment / "outbox/run/_run.html").read_text(encoding="utf-8")
    assert 'state="committed"} 20' in (deployment / "outbox/run/_run.prom").read_text(encoding="utf-8")


def test_a_report_that_was_carried_away_is_not_made_up(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "outbox/run/_run.json").unlink()
    (deployment / "m.yaml").write_text(MANIFEST + "    report: html\n")
    assert "cannot write html: _run.json is gone" in cli("plan", deployment / "m.yaml").out
    for _ in range(2):
        told = "it is finished; html cannot be written, because _run.json is gone. The next run with rows writes both"
        assert told in cli("apply", deployment / "m.yaml").words
    assert not (deployment / "outbox/run/_run.html").exists()


def test_a_finished_job_gets_the_reports_that_are_asked_for_later(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    before = json.loads((deployment / "outbox/run/_run.json").read_text())
    parts = {path: path.read_bytes() for path in (deployment / "outbox/run").glob("part-*")}
    (deployment / "m.yaml").write_text(MANIFEST + "    report: [html, prometheus]\n")
    assert "writes what its report lacks: html, prometheus" in cli("plan", deployment / "m.yaml").out
    applied = cli("apply", deployment / "m.yaml")
    assert applied.code == 0
    assert "nothing to do, it is finished; its report was written as html and prometheus too" in applied.out
    page = (deployment / "outbox/run/_run.html").read_text(encoding="utf-8")
    assert "demo / run" in page
    assert "the page was asked for when the job had ended" in page
    assert 'state="committed"} 20' in (deployment / "outbox/run/_run.prom").read_text(encoding="utf-8")
    assert json.loads((deployment / "outbox/run/_run.json").read_text()) == before
    assert {path: path.read_bytes() for path in (deployment / "outbox/run").glob("part-*")} == parts
    assert "outbox/run is finished." in cli("apply", deployment / "m.yaml").out


@pytest.mark.quick("parquet")
@pytest.mark.parametrize("kind", ["csv", "jsonl", "npy", "parquet"])
def test_a_job_that_stopped_goes_on_with_its_files_and_then_takes_new_ones(
    cli: Cli, deployment: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortdeploy.sources.jsonl.FIRST_ROWS", 4)  # plan would refuse the row that cannot be read

    def write(name: str, values: list[float]) -> None:
        table = np.array([[min(value, 1e6)] * 4 for value in values], np.float32)
        path = deployment / f"in/{name}.{kind}"
        if kind == "npy":
            np.save(path, table)
        elif kind == "parquet":
            parquet.write_table(pa.table({"x": list(table)}), path)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"x": [value] * 4}) + "\n" for value in values))
        else:
            lines = [",".join(map(str, row)) for row in table.tolist()]
            path.write_text("\n".join(["a,b,c,d", *lines]) + "\n")

    (deployment / "in").mkdir()
    columns = {"npy": "array", "csv": "[a, b, c, d]"}.get(kind, "x")
    text = MANIFEST.replace("path: data.npy", f"path: in/*.{kind}, columns: {{x: {columns}}}")
    text = text.replace("size: 8", "size: 2").replace("format: jsonl", "format: jsonl, rows_per_part: 4")
    (deployment / "m.yaml").write_text(text + "    errors: {on_nan: fail, max_failed: 0}\n")
    write("b", [*range(10), 1e39 if kind == "jsonl" else float("nan"), 11])
    first = cli("apply", deployment / "m.yaml")
    assert first.code == 1
    assert "1 row failed" in first.out, first.out
    write("a", [20, 21, 22])
    again = cli("apply", deployment / "m.yaml", "--set", "jobs.run.errors.max_failed=1")
    assert "14 rows committed, 1 failed" in again.out, again.out
    rows = {row["row"]: row["y"][0] for row in read_rows(deployment / "outbox/run")}
    assert rows == {**{row: row * 2.0 for row in range(12) if row != 10}, 12: 40.0, 13: 42.0, 14: 44.0}
    write("c", [30])
    assert "15 rows committed" in cli("apply", deployment / "m.yaml", "--set", "jobs.run.errors.max_failed=1").out
    assert {row["row"]: row["y"][0] for row in read_rows(deployment / "outbox/run")} == {**rows, 15: 60.0}
