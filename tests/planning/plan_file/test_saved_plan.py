"""Plan files: what is saved, what is refused, and that nothing of a file is carried out."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import plan_schema
from support.effort import effort
from support.hostile import mutate
from support.models import lora_model, make_adapter, scale_model

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.plan_file import plan_writing, saved_comparison
from ortdeploy.planning.plan_file.plan_writing import PlanToSave, dump_plans, made
from ortdeploy.planning.plan_file.planning_again import plan_again
from ortdeploy.planning.plan_file.saved_comparison import difference
from ortdeploy.planning.plan_file.saved_plan import is_plan_file, load_plans
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.schemas import schema_text

RICH = """\
version: 1
name: demo
providers: {chain: [CPU]}
models:
  double:
    path: models/lora.onnx
    inputs: {x: {range: [0, 100]}}
    sessions: [{name: a, providers: chain, count: 2}]
    use: all
    session: {intra_op_num_threads: 1, optimized_model_filepath: made/optimized.onnx}
    checks: [checks]
    gate: true
adapters: {french: {path: models/f.onnx_adapter, model: double}}
jobs:
  run:
    model: double
    adapter: french
    input: {path: in/*.npy, key: [row], columns: {x: array}}
    prepare: {x: [{scale: 0.5}]}
    batch: {size: 8}
    postprocess: [{argmax: y, as: digit}, {labels: digit, as: name, from: names.txt}]
    output: {path: outbox/run, format: jsonl}
    errors: {max_failed: 10%, max_consecutive: 5}
  other:
    model: double
    input: {path: in/a.npy}
    output: {path: outbox/other, format: npz}
"""


def make_rich(folder: Path) -> Path:
    for name in ("models", "in", "made", "checks/test_data_set_0"):
        (folder / name).mkdir(parents=True)
    lora_model(folder / "models/lora.onnx")
    a, b = np.ones((4, 2), np.float32), np.ones((2, 4), np.float32)
    make_adapter(folder / "models/f.onnx_adapter", lora_A=a, lora_B=b)
    np.save(folder / "in/a.npy", np.ones((4, 4), np.float32))
    np.save(folder / "in/b.npy", np.ones((5, 4), np.float32))
    (folder / "names.txt").write_text("a\nb\nc\nd\n")
    np.savez(folder / "checks/test_data_set_0/inputs.npz", x=np.ones((1, 4), np.float32))
    np.savez(folder / "checks/test_data_set_0/outputs.npz", y=np.ones((1, 4), np.float32))
    (folder / "m.yaml").write_text(RICH, encoding="utf-8")
    return folder


@pytest.fixture
def rich(tmp_path: Path) -> Path:
    """A deployment with something of every kind that a plan file holds."""
    return make_rich(tmp_path / "site")


def edit(plan: Path, *way: Any, to: Any) -> None:
    """Change one value of a plan file."""
    document = json.loads(plan.read_text())
    node = document
    for key in way[:-1]:
        node = node[key]
    node[way[-1]] = to
    plan.write_text(json.dumps(document))


def words(text: str) -> str:
    return " ".join(text.split())


def save(cli: Cli, folder: Path, *arguments: str | Path) -> Path:
    saved = cli("plan", folder / "m.yaml", "--out", folder / "plan.json", *arguments)
    assert saved.code == 0, saved.out + saved.err
    return folder / "plan.json"


@pytest.mark.parametrize(
    ("way", "value", "place"),
    [
        (("steps", 1, "output", "path"), "../elsewhere", "steps[1].output.path"),
        (("steps", 1, "output", "path"), "/elsewhere", "steps[1].output.path"),
        (("steps", 0, "path"), "other.onnx", "steps[0].path"),
        (("steps", 0, "options"), {"optimized_model_filepath": "/x"}, "steps[0].options.optimized_model_filepath"),
        (("steps", 0, "candidates", 0, "providers", 0, "options"), {"use_arena": "0"}, "steps[0].candidates[0].providers[0].options.use_arena"),
        (("steps", 1, "errors", "max_failed"), "100%", "steps[1].errors.max_failed"),
        (("steps", 1, "postprocess"), [], None),
        (("steps", 1, "output", "upload"), "s3://bucket/x", "steps[1].output.upload"),
        (("steps", 1, "batching", "size"), 4, "steps[1].batching.size"),
        (("deployment",), "another", "deployment"),
        (("finished",), [{"job": "run", "output": "outbox/run", "path": "outbox/run", "waiting": None, "gone": []}], "finished[0]"),
        (("steps",), [], "steps"),
        (("gates",), [], None),
    ],
)  # fmt: skip
def test_an_edited_plan_is_refused_and_the_place_is_named(
    cli: Cli, deployment: Path, way: tuple[Any, ...], value: Any, place: str | None
) -> None:
    scale_model(deployment / "other.onnx")
    plan = save(cli, deployment)
    edit(plan, "plans", 0, *way, to=value)
    ended = cli("apply", plan)
    if place is None:  # what was there already
        assert ended.code == 0
        return
    assert ended.code == 1
    assert "error[edited-plan]" in ended.out
    assert f"plans[0].{place}:" in words(ended.out)
    assert not (deployment / "outbox").exists()


def test_what_is_carried_out_is_what_was_planned_here(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = save(cli, deployment)
    edit(plan, "plans", 0, "steps", 1, "output", "path", to="outbox/edited")
    monkeypatch.setattr(saved_comparison, "difference", lambda *_: None)
    assert cli("apply", plan).code == 0, "even where the comparison were blind"
    assert len(read_rows(deployment / "outbox/run")) == 20
    assert not (deployment / "outbox/edited").exists()


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("steps", 1, "input", "format"), "", "steps[1].input.format is"),
        (("steps", 1, "input", "format"), "exe", "allowed are arrow, audio, bytes, csv"),
        (("steps", 1, "identity"), {}, 'steps[1].identity needs the key "model"'),
        (("steps", 0, "candidates", 0, "count"), -(2**63), "candidates[0].count is -9223372036854775808; at least 1"),
        (("steps", 0, "candidates", 0, "count"), 10**30, "at most 64 is allowed"),
        (("steps", 0, "candidates", 0, "callers"), "2", "must be a whole number"),
        (("steps", 0, "candidates", 0, "callers"), True, "must be a whole number"),
        (("steps", 0, "use"), "everything", "allowed are first, all"),
        (("steps", 1, "batching", "last"), None, "steps[1].batching.last"),
        (("steps", 1, "batching", "rows_per_part"), 0, "at least 1 is allowed"),
        (("steps", 1, "errors", "progress_timeout"), -1, "more than 0 is allowed"),
        (("steps", 1), {}, "plans[0].steps[1]"),
        (("steps", 1, "step"), "run-model", "plans[0].steps[1]"),
        (("steps",), {}, "plans[0].steps must be a list"),
        (("inputs", "run"), [["data.npy", 5]], "plans[0].inputs.run[0]"),
        (("options", "sets"), ["a"], "plans[0].options.sets[0]"),
        (("options", "new"), 1, '"new" is not a key of plans[0].options'),
        (("facts", 0, "value"), 7, "plans[0].facts[0].value must be text"),
        (("manifest",), "", "plans[0].manifest is empty"),
    ],
)
def test_a_value_that_no_plan_has_is_one_diagnostic_in_words(
    cli: Cli, deployment: Path, way: tuple[Any, ...], value: Any, said: str
) -> None:
    plan = save(cli, deployment)
    edit(plan, "plans", 0, *way, to=value)
    refused = cli("apply", plan)
    assert refused.code == 1
    assert refused.out.count("error[") == 1
    assert said in words(refused.out)
    assert "manifest must be" not in refused.out


@pytest.mark.parametrize(
    "text",
    [
        '{"format_version": 7',
        '{"format_version": 3, "plans": []}',
        '{"format_version": true, "plans": []}',
        '{"format_version": 6, "kind": "bound", "made_by": "x", "plans": []}',
        '{"format_version": 7, "kind": "ajar", "made_by": "x", "plans": []}',
        '{"format_version": 7, "format_version": 7, "kind": "bound", "made_by": "x", "plans": []}',
        '{"format_version": 7, "kind": "bound", "made_by": NaN, "plans": []}',
        '{"format_version": 7, "plans": ' + "[" * 100_000,
        '{"format_version": 7, "plans": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_plan_is_refused_in_words(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    refused = cli("apply", tmp_path / "plan.json")
    assert (refused.code, refused.out.count("error[")) == (1, 1)


def test_a_plan_file_that_is_too_large_is_refused(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = save(cli, deployment)
    for module in ("ortdeploy.planning.plan_file.saved_plan", "ortdeploy.cli.plans"):
        monkeypatch.setattr(f"{module}.MAX_BYTES", 100)
    assert "it has more than 100 bytes" in words(cli("apply", plan).out)


def test_a_manifest_is_not_taken_for_a_plan() -> None:
    assert is_plan_file(dump_plans([], Path("/"), "1", Path("/plan.json")).encode())
    assert not is_plan_file(MANIFEST.encode())
    assert not is_plan_file(b"{version: 1, models: {}}")


def test_the_schema_is_that_of_the_dataclasses() -> None:
    """`python tests/support/plan_schema.py > schemas/plan.schema.json` writes it."""
    assert json.loads(schema_text("plan")) == plan_schema.schema()


def test_a_plan_file_names_no_absolute_place_and_applies_in_another_checkout(cli: Cli, rich: Path) -> None:
    assert cli("check", rich / "m.yaml", "--record").code == 0
    plan = save(cli, rich)
    assert str(rich) not in plan.read_text()
    other = rich.parent / "deep/checkout"
    shutil.copytree(rich, other, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".ortdeploy"))
    assert {path.stat().st_mtime_ns for path in (rich / "in").iterdir()}.isdisjoint(
        path.stat().st_mtime_ns for path in (other / "in").iterdir()
    )
    applied = cli("apply", other / "plan.json")
    assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(other / "outbox/run")) == 9
    assert not (rich / "outbox").exists()
    again = cli("apply", other / "plan.json")
    assert "job run: nothing to do" in again.out


def test_root_says_what_the_paths_are_relative_to(
    cli: Cli, deployment: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = tmp_path_factory.mktemp("artifacts") / "plan.json"
    refused = cli("plan", deployment / "m.yaml", "--out", plan)
    assert refused.code == 64
    assert "--root" in refused.err
    assert cli("plan", deployment / "m.yaml", "--out", plan, "--root", deployment).code == 0
    gone = cli("apply", plan)
    assert gone.code == 1
    assert "There is no file" in words(gone.out)
    assert "If the plan file was moved, say with --root DIR which folder its paths are relative to" in words(gone.out)
    assert cli("apply", plan, "--root", deployment).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 20


@pytest.mark.parametrize("wrong", [["--root", "/nowhere"], ["--new-run"], ["--set", "a=b"], ["--profile", "x"]])
def test_what_a_plan_has_been_made_with_is_not_given_again(cli: Cli, deployment: Path, wrong: list[str]) -> None:
    refused = cli("apply", save(cli, deployment), *wrong)
    assert refused.code == 64
    assert wrong[0] in refused.err


def test_root_without_a_plan_is_wrong_usage(cli: Cli, deployment: Path) -> None:
    for command in ("plan", "apply"):
        assert cli(command, deployment / "m.yaml", "--root", deployment).code == 64


@pytest.mark.parametrize("manifest", ["../site2/m.yaml", "/etc/passwd", "link/m.yaml", "a\0b", "\ud800"])
def test_a_plan_cannot_name_a_manifest_out_of_its_folder(cli: Cli, rich: Path, manifest: str) -> None:
    shutil.copytree(rich, rich.parent / "site2")
    (rich / "link").symlink_to(rich.parent / "site2")
    plan = save(cli, rich)
    edit(plan, "plans", 0, "manifest", to=manifest)
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "leads out of" in words(refused.out)
    assert not (rich.parent / "site2/outbox").exists()


def test_the_input_file_that_changed_is_named(cli: Cli, rich: Path) -> None:
    plan = save(cli, rich, "--job", "run")

    def refusal() -> str:
        refused = cli("apply", plan)
        assert refused.code == 1
        return words(refused.out)

    np.save(rich / "in/b.npy", np.zeros((5, 4), np.float32))
    assert "made from: job run: in/*.npy: in/b.npy changed." in refusal()
    np.save(rich / "in/c.npy", np.zeros((5, 4), np.float32))
    assert "made from: job run: in/*.npy: in/b.npy changed." in refusal()
    (rich / "in/a.npy").unlink()
    assert "in/a.npy is gone, and 1 more of 2." in refusal()


def test_files_that_arrive_after_the_plan_belong_to_the_next(cli: Cli, rich: Path) -> None:
    assert cli("check", rich / "m.yaml", "--record").code == 0
    plan = save(cli, rich, "--job", "run")
    np.save(rich / "in/0.npy", np.full((5, 4), 3, np.float32))  # before the others in order
    applied = cli("apply", plan)
    assert applied.code == 0, applied.words
    assert {row["y"][0] for row in read_rows(rich / "outbox/run")}.isdisjoint({6.0})
    rows = len(read_rows(rich / "outbox/run"))
    assert cli("apply", rich / "m.yaml", "--job", "run").code == 0
    assert len(read_rows(rich / "outbox/run")) == rows + 5
    again = cli("apply", plan)
    assert (again.code, "nothing to do" in again.out) == (0, True)


def test_a_file_of_another_time_and_the_same_content_is_the_same(cli: Cli, deployment: Path) -> None:
    plan = save(cli, deployment)
    os.utime(deployment / "data.npy", (1, 1))
    assert cli("apply", plan).code == 0


def test_large_inputs_are_held_by_size_and_time(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_writing, "MAX_HASHED", 100)
    plan = save(cli, deployment)
    assert json.loads(plan.read_text())["plans"][0]["inputs"]["run"][0][3] is None
    os.utime(deployment / "data.npy", (1, 1))
    assert "data.npy changed" in words(cli("apply", plan).out)


def test_a_fact_that_was_taken_out_of_the_file_is_missed(cli: Cli, deployment: Path) -> None:
    plan = save(cli, deployment)
    facts = json.loads(plan.read_text())["plans"][0]["facts"]
    edit(plan, "plans", 0, "facts", to=[fact for fact in facts if fact["kind"] != "model"])
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "The model is not what the plan was made from: double.onnx" in words(refused.out)


def test_inputs_of_jobs_that_are_no_part_of_the_plan_do_not_matter(cli: Cli, rich: Path) -> None:
    assert cli("check", rich / "m.yaml", "--record").code == 0
    plan = save(cli, rich, "--job", "other")
    np.save(rich / "in/b.npy", np.zeros((5, 4), np.float32))
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    assert not (rich / "outbox/run").exists()


@pytest.mark.slow
def test_options_travel_with_the_plan(cli: Cli, deployment: Path) -> None:
    (deployment / "o.yaml").write_text("jobs: {run: {batch: {size: 5}}}\n")
    options: list[str | Path] = ["--overlay", deployment / "o.yaml", "--set", "jobs.run.output.rows_per_part=10"]
    plan = save(cli, deployment, *options)
    assert cli("apply", plan).code == 0
    assert len(list((deployment / "outbox/run").glob("part-*"))) == 2


@pytest.mark.slow
def test_a_plan_of_a_new_run_starts_over_once(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "m.yaml").write_text(MANIFEST.replace("size: 8", "size: 4"))
    shown = cli("plan", deployment / "m.yaml", "--new-run", "--out", deployment / "plan.json").out
    assert "what outbox/run holds is kept beside it as run.2" in shown
    for _ in range(2):
        assert cli("apply", deployment / "plan.json").code == 0
    (kept,) = (deployment / "outbox").glob("run.*")
    assert kept.name in shown
    assert "nothing to do" in cli("apply", deployment / "plan.json").out


@pytest.mark.slow
def test_a_plan_cannot_start_over_what_is_finished_and_unchanged(cli: Cli, deployment: Path) -> None:
    plan = save(cli, deployment)
    assert cli("apply", plan).code == 0
    run = json.loads((deployment / "outbox/run/_run.json").read_text())["run"]
    edit(plan, "plans", 0, "options", "starts_over", to={"run": run})
    assert "nothing to do" in cli("apply", plan).out
    assert not list((deployment / "outbox").glob("run.*"))


@pytest.mark.slow
def test_a_job_that_the_plan_calls_finished_must_be(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    plan = save(cli, deployment)
    assert "nothing to do" in cli("apply", plan).out
    shutil.rmtree(deployment / "outbox/run")
    refused = cli("apply", plan)
    assert refused.code == 1
    assert 'says that job "run" is finished, and here it is not' in words(refused.out)


def test_forecasts_and_progress_are_no_part_of_a_plan_file(cli: Cli, deployment: Path) -> None:
    def text() -> dict[str, Any]:
        (one,) = json.loads(save(cli, deployment).read_text())["plans"]
        return dict(one["steps"][1])

    assert not text().keys() & {"memory", "files", "committed_rows", "rows", "replaces"}


@pytest.mark.parametrize(
    ("saved", "ours", "said"),
    [
        ({"a": [1]}, {"a": [1]}, None),
        ({"a": [1, 2]}, {"a": [1]}, "a: the plan file has 2, the manifest gives 1"),
        ({"a": 1}, {"a": 1.0}, "a: the plan file says 1, the manifest gives 1.0"),
        ({"a": True}, {"a": 1}, "a: the plan file says true, the manifest gives 1"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b: the plan file says 1, the manifest gives nothing"),
        ({"a": None}, {"a": None, "c": "x"}, 'c: the plan file says nothing, the manifest gives "x"'),
        ({"a": {}}, {"a": []}, "a: the plan file says {}, the manifest gives []"),
    ],
)
def test_the_first_difference_is_named_by_its_way(saved: Any, ours: Any, said: str | None) -> None:
    assert difference(saved, ours) == said


class Saved:
    """A saved plan of the rich deployment, and what its manifest gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_rich(folder)
        shutil.rmtree(folder / "checks")
        text = RICH.replace("    checks: [checks]\n    gate: true\n", "")
        (folder / "m.yaml").write_text(text, encoding="utf-8")
        (self.plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
        self.document = json.loads(dump_plans([PlanToSave(plan=self.plan)], folder, "1", folder / "plan.json"))

    def apply(self, document: Any, *, computes: bool = True) -> tuple[tuple[Plan, ...], tuple[Diagnostic, ...]]:
        """What `apply` makes of a plan file, up to where it would run; or `finish`, which does not compute."""
        raw = json.dumps(document).encode()
        saved, diagnostics = load_plans(raw, "plan.json", self.folder, ())
        if diagnostics:
            return (), diagnostics
        planned = plan_again(saved, LoadOptions(), None, computes=computes)
        return planned.plans, planned.diagnostics

    def hold(self, document: Any, *, computes: bool) -> None:
        """Refused in words, or exactly what the manifest says."""
        plans, diagnostics = self.apply(document, computes=computes)
        errors = [one for one in diagnostics if one.severity == "error"]
        assert plans or errors or not document["plans"]
        for plan in () if errors else plans:
            jobs = None if plan.jobs is None else list(plan.jobs)
            options = LoadOptions(profile=plan.profile, sets=plan.sets, overlays=plan.overlays)
            (same,) = plan_manifests([str(self.folder / "m.yaml")], options, state_dir=None, jobs=jobs).plans
            assert made(plan) == made(same)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("fuzz") / "site")


def test_an_unchanged_plan_is_accepted(saved: Saved) -> None:
    plans, diagnostics = saved.apply(saved.document)
    assert not diagnostics
    assert plans == (replace(saved.plan, manifest=plans[0].manifest),)


@settings(max_examples=effort(20, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_plan_is_refused_or_carried_out_as_the_manifest_says(saved: Saved, data: st.DataObject) -> None:
    mutated = mutate(saved.document, lambda most: data.draw(st.integers(0, most - 1)))
    saved.hold(mutated, computes=data.draw(st.booleans()))


@pytest.mark.slow
def test_many_mutated_plans(saved: Saved) -> None:
    chance = random.Random(19)  # noqa: S311  a seed, no secret
    for _ in range(effort(400, 3000)):
        document = saved.document
        for _ in range(chance.randint(1, 3)):
            document = mutate(document, chance.randrange)
            if not isinstance(document.get("plans"), list) or not document["plans"]:
                break
        saved.hold({**document, "plans": document.get("plans", [None])}, computes=chance.random() < 0.5)
