"""Plans for other machines: open ones, which a device binds, and bound ones, whose workers are not where `finish` is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import MANIFEST, REPOSITORY, Cli, read_rows
from msgspec.structs import replace
from support.models import scale_model

from ortdeploy.application import ray_workers
from ortdeploy.cli import engines
from ortdeploy.cli.applying import runner
from ortdeploy.facts.host import RuntimeFacts
from ortdeploy.plan.steps import OpenSession, Plan
from ortdeploy.runtime import machine, probe

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8")
Edit = Callable[[dict[str, dict[str, object]]], None]


@pytest.fixture
def captured(cli: Cli, deployment: Path) -> Path:
    """A device file of the machine on which these tests run."""
    assert cli("device", "-o", deployment / "device.yaml").code == 0
    return deployment / "device.yaml"


def with_providers(captured: Path, *providers: str, version: str | None = None) -> Path:
    """Write the file of a device like this machine, with other providers or another ONNX Runtime."""
    described = yaml.safe_load(captured.read_text())
    described["runtime"]["providers"] = list(providers)
    described["runtime"]["version"] = version or described["runtime"]["version"]
    other = captured.with_name("other.yaml")
    other.write_text(yaml.safe_dump(described))
    return other


def planned_on_a_laptop(cli: Cli, laptop: Path, device: Path, *more: str | Path) -> Path:
    """Save an open plan in a checkout without data."""
    (laptop / "data.npy").unlink()
    saved = cli("plan", laptop / "m.yaml", "--device", device, "--out", laptop / "plan.json", *more)
    assert saved.code == 0, saved.out + saved.err
    document = json.loads((laptop / "plan.json").read_text())
    assert (document["kind"], document["plans"][0]["inputs"], document["plans"][0]["rows"]) == ("open", {}, {})
    return laptop / "plan.json"


def on_the_device(laptop: Path, rows: int = 20) -> Path:
    """Carry the checkout to a machine that has data; return the plan there."""
    device = laptop.parent / f"{laptop.name}-device/site"
    shutil.copytree(laptop, device, ignore=shutil.ignore_patterns(".ortdeploy"))
    np.save(device / "data.npy", np.arange(rows * 4, dtype=np.float32).reshape(rows, 4))
    return device / "plan.json"


def test_an_open_plan_is_bound_where_it_is_applied(cli: Cli, deployment: Path, captured: Path) -> None:
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    alone = Path(
        shutil.copytree(plan.parent, plan.parent.parent / "alone", ignore=shutil.ignore_patterns("outbox", ".o*"))
    )
    assert cli("apply", alone / "m.yaml").code == 0
    assert read_rows(plan.parent / "outbox/run") == read_rows(alone / "outbox/run")
    assert len(read_rows(alone / "outbox/run")) == 20
    assert "nothing to do" in cli("apply", plan).out


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "in/*.png"])
def test_formats_that_tell_their_columns_are_bound_too(cli: Cli, deployment: Path, captured: Path, name: str) -> None:
    pa, parquet, image = (pytest.importorskip(one) for one in ("pyarrow", "pyarrow.parquet", "PIL.Image"))
    steps = (
        "prepare: {x: [{grayscale: true}, {op: Cast, in: {input: $x}, attributes: {to: 1}}, {flatten: true}]}\n    "
        if name.endswith("png")
        else ""
    )
    columns = "" if steps else ", columns: {x: [a, b, c, d]}"
    text = MANIFEST.replace("data.npy", f'"{name}"{columns}').replace("batch:", f"{steps}batch:")
    (deployment / "m.yaml").write_text(text)
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    (plan.parent / "in").mkdir()
    if name == "data.csv":
        (plan.parent / name).write_text("a,b,c,d\n1,2,3,4\n")
    elif steps:
        image.fromarray(np.array([[1, 2], [3, 4]], np.uint8)).save(plan.parent / "in/a.png")
    else:
        parquet.write_table(pa.table({one: pa.array([1.0], pa.float32()) for one in "abcd"}), plan.parent / name)
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(plan.parent / "outbox/run")) == 1


@pytest.mark.slow
def test_first_rows_are_looked_at_where_an_open_plan_is_applied(cli: Cli, deployment: Path, captured: Path) -> None:
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    np.save(plan.parent / "data.npy", np.zeros((3, 5), np.float32))
    refused = cli("apply", plan)
    assert (refused.code, "error[" in refused.out) == (1, True)
    assert not (plan.parent / "outbox").exists()
    (plan.parent / "data.npy").unlink()
    assert "error[unmatched-input]" in cli("apply", plan).out


@pytest.mark.slow
def test_another_machine_is_refused_in_words(cli: Cli, deployment: Path, captured: Path) -> None:
    other = with_providers(captured, "CUDAExecutionProvider", "CPUExecutionProvider", version="1.99.0")
    planned_on_a_laptop(cli, deployment, other)
    refused = cli("apply", on_the_device(deployment))
    assert refused.code == 1
    assert (
        "The providers are not what the plan was made from: onnxruntime. Make the plan again with --device"
        in refused.words
    )
    assert "The ONNX Runtime version is not what the plan was made from" in refused.words


@pytest.mark.slow
def test_another_model_and_another_manifest_are_refused(cli: Cli, deployment: Path, captured: Path) -> None:
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    scale_model(plan.parent / "double.onnx", factor=3.0)
    assert "The model is not what the plan was made from" in cli("apply", plan).words
    (plan.parent / "m.yaml").write_text(SMALL)
    assert "The manifest is not what the plan was made from" in cli("apply", plan).words
    assert not (plan.parent / "outbox").exists()


def test_an_edited_open_plan_is_refused(cli: Cli, deployment: Path, captured: Path) -> None:
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    whole = json.loads(plan.read_text())
    whole["plans"][0]["steps"][1]["output"]["path"] = "outbox/edited"
    plan.write_text(json.dumps(whole))
    refused = cli("apply", plan)
    assert (refused.code, "plans[0].steps[1].output.path:" in refused.words) == (1, True)
    whole["plans"][0]["steps"][1]["output"]["path"] = "outbox/run"
    plan.write_text(json.dumps({**whole, "kind": "bound"}))
    refused = cli("apply", plan)
    assert (refused.code, "job run: data.npy: the plan names none of its files" in refused.words) == (1, True)
    assert not (plan.parent / "outbox").exists()


@pytest.mark.slow
def test_jobs_that_feed_jobs_are_bound_together(cli: Cli, deployment: Path, captured: Path) -> None:
    second = "  more:\n    model: double\n    input: {job: run, columns: {x: y}}\n    output: {path: outbox/more}\n"
    (deployment / "m.yaml").write_text(MANIFEST.rstrip("\n").replace("jsonl", "npz") + "\n" + second)
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    for job in ("run", "more"):
        applied = cli("apply", plan, "--job", job)
        assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(plan.parent / "outbox/more")) == 20
    assert cli("apply", plan).out.count("nothing to do") == 2


@pytest.mark.slow
def test_files_that_were_there_are_held_in_an_open_plan(cli: Cli, deployment: Path, captured: Path) -> None:
    second = "  more:\n    model: double\n    input: {path: in/*.npy}\n    output: {path: outbox/more, format: jsonl}\n"
    (deployment / "m.yaml").write_text(MANIFEST.rstrip("\n") + "\n" + second)
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--device", captured, "--out", plan).code == 0
    (told,) = json.loads(plan.read_text())["plans"]
    assert list(told["inputs"]) == ["run"]
    (deployment / "in").mkdir()
    np.save(deployment / "in/a.npy", np.ones((3, 4), np.float32))
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(deployment / "outbox/more")) == 3
    np.save(deployment / "data.npy", np.zeros((2, 4), np.float32))
    refused = cli("apply", plan)
    assert (refused.code, "data.npy changed" in refused.words) == (1, True)


@pytest.mark.slow
def test_a_sample_in_the_checkout_leaves_room_for_other_files(cli: Cli, deployment: Path, captured: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("data.npy", "'*.npy'"))
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--device", captured, "--out", plan).code == 0
    np.save(deployment / "a.npy", np.ones((3, 4), np.float32))
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(deployment / "outbox/run")) == 23


@pytest.mark.parametrize("arguments", [["apply", "--shard", "0/2"], ["finish"], ["apply", "--engine", "ray"]])
def test_what_needs_rows_and_parts_needs_a_bound_plan(
    cli: Cli, deployment: Path, captured: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda _name: "there")
    planned_on_a_laptop(cli, deployment, captured)
    plan = on_the_device(deployment)
    wrong = cli(arguments[0], plan, *arguments[1:])
    assert (wrong.code, "is an open plan" in wrong.words, "plan --bound --device FILE" in wrong.words) == (
        64,
        True,
        True,
    )


@pytest.mark.slow
def test_data_that_is_not_here_is_bound_by_nobody(cli: Cli, deployment: Path, captured: Path) -> None:
    (deployment / "data.npy").unlink()
    for more in (["--out", deployment / "plan.json"], []):
        refused = cli("plan", deployment / "m.yaml", "--bound", "--device", captured, *more)
        assert (refused.code, 'the data of job "run" was not looked at' in refused.err) == (1, True)
    assert not (deployment / "plan.json").exists()


@pytest.mark.slow
def test_workers_run_a_plan_that_was_bound_for_them(cli: Cli, deployment: Path, captured: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    plan = deployment / "plan.json"
    bound = cli("plan", deployment / "m.yaml", "--bound", "--device", captured, "--out", plan)
    assert bound.code == 0, bound.out + bound.err
    for index in range(2):
        assert cli("apply", plan, "--shard", f"{index}/2").code == 0
    assert cli("finish", plan).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 20


DEVICES = REPOSITORY / "deployments/devices"
QNN = "{provider: QNN, device: NPU, options: {backend_type: htp}}"


def bound_for(cli: Cli, deployment: Path, device: Path, model: str) -> Path:
    """Save a bound plan for workers that a device file describes; it is refused here where rows would be computed."""
    (deployment / "m.yaml").write_text(
        SMALL.replace("double.onnx}", f"double.onnx, {model}}}").replace("size: 8", "size: 8, last: pad")
    )
    plan = deployment / "plan.json"
    bound = cli("plan", deployment / "m.yaml", "--bound", "--device", device, "--out", plan)
    assert bound.code == 0, bound.out + bound.err
    computing = cli("apply", plan, "--shard", "0/1")
    assert (computing.code, "error[moved-fact]" in computing.words) == (64, True)
    return plan


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("jetson-orin-nano.yaml", "providers: [CUDA, CPU]"),
        ("snapdragon-x-elite.yaml", f"providers: [{QNN}, CPU], session: {{free_dimension_overrides: {{batch: 8}}}}"),
    ],
)
def test_finish_runs_where_the_devices_of_a_plan_are_not(cli: Cli, deployment: Path, device: str, model: str) -> None:
    plan = bound_for(cli, deployment, DEVICES / device, model)
    finished = cli("finish", plan)
    assert (finished.code, "error[" in finished.out) == (1, False), finished.out
    assert "no shard of this plan has run" in finished.words
    np.save(deployment / "data.npy", np.zeros((2, 4), np.float32))
    assert "error[moved-fact]" in cli("finish", plan).out, "files count everywhere"


@pytest.mark.slow
def test_finish_takes_parts_of_workers_whose_devices_it_has_not(
    cli: Cli, deployment: Path, captured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployment / "m.yaml").write_text(SMALL.replace("double.onnx}", "double.onnx, threads: auto}"))
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--bound", "--device", captured, "--out", plan).code == 0
    assert cli("apply", plan, "--shard", "0/1").code == 0
    here = probe.probe_runtime

    def head_node(*asked: Any) -> RuntimeFacts:
        return replace(here(*asked), version="1.98.0", available_providers=("AzureExecutionProvider",), kernels={})

    monkeypatch.setattr(probe, "probe_runtime", head_node)
    monkeypatch.setattr(machine, "probe_machine", lambda: None)
    assert cli("apply", plan, "--shard", "0/1").code == 64
    assert cli("finish", plan).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 20


def test_a_driver_of_workers_need_not_be_like_them(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[Plan] = []

    def drive(plan: Plan, *_: object) -> tuple[()]:
        driven.append(plan)
        return ()

    plan = bound_for(cli, deployment, DEVICES / "jetson-orin-nano.yaml", "providers: [CUDA, CPU]")
    monkeypatch.setattr(ray_workers, "find_spec", lambda _name: "there")
    monkeypatch.setattr(engines, "run_on_engine", drive)
    monkeypatch.setattr(runner, "refused_by_gates", lambda *_: pytest.fail("each worker runs the gates"))
    assert cli("apply", plan, "--engine", "ray").code == 0
    (one,) = driven
    opening = next(step for step in one.steps if isinstance(step, OpenSession))
    assert opening.candidates[0].providers[0].name == "CUDAExecutionProvider"
