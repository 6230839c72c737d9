"""`plan --device` for many devices: a table that rests on manifests, models and device files alone."""

import importlib.util
import json
import locale
import shlex
import shutil
import time
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.machines import GIB, Machine, holds, machines, whens
from support.models import save_model, scale_model
from support.pages import snippets

from ortdeploy.graph import model as graph_model
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.devices.device_table import plan_devices
from ortdeploy.versions import runtime_version
from ortdeploy.views.device_table import render_table

MANIFEST = """\
version: 1
models:
  m: {path: double.onnx, providers: [CPU]}
jobs:
  j:
    model: m
    input: {path: "inbox/*.npy"}
    output: {path: out}
    hours: {from: "00:00", to: "23:59", zone: Europe/Berlin}
  pictures: {model: m, input: {path: "inbox/*.png"}, prepare: {x: [{resize: [1, 4]}]}, output: {path: more}}
profiles:
  gpu:
    when: {provider: CUDA, memory: ">= 6GiB"}
    models: {m: {providers: [CUDA, CPU]}}
  paint:
    when: {labels: {line: paint}, not: {provider: CUDA}}
    limits: {memory: 60MiB}
  otherwise: base
"""
FLEET = {
    "gpu": Machine(name="gpu", opens=("CUDA", "CPU")),
    "paint": Machine(name="paint", labels={"line": "paint"}),
    "plain": Machine(name="plain", memory=2 * GIB),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "devices").mkdir()
    for name, machine in FLEET.items():
        text = machine.device_file()
        (tmp_path / f"devices/{name}.yaml").write_text(text.replace("runtime:\n", "runtime:\n  packages: [PIL]\n"))
    return tmp_path


def table(cli: Cli, *more: str) -> Any:
    shown = cli("plan", "m.yaml", "--device", "devices/*.yaml", "--format", "json", *more)
    assert shown.code in {0, 1}, shown.err
    return shown.json


def cells(found: Any) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {
        (one["device"], one["job"]): (
            one["profile"] and one["profile"]["name"],
            one["refused"] and one["refused"]["rule"],
        )
        for one in found["devices"]
    }


def test_each_job_of_each_device_has_a_profile_and_runs_or_is_refused(cli: Cli, folder: Path) -> None:
    shown = cli("plan", "m.yaml", "--device", "devices/gpu.yaml", "--device", "devices/p*.yaml", "--color", "never")
    assert shown.code == 1
    rows = [line.split() for line in shown.out.splitlines()[-8:]]
    assert rows[0] == ["DEVICE", "JOB", "PROFILE", "PLAN", "MEMORY", "WHY"]
    assert [row[:4] for row in rows[1:7]] == [
        ["gpu", "j", "gpu", "runs"],
        ["gpu", "pictures", "gpu", "runs"],
        ["paint", "j", "paint", "refused"],
        ["paint", "pictures", "paint", "refused"],
        ["plain", "j", "base", "runs"],
        ["plain", "pictures", "base", "runs"],
    ]
    assert rows[3][4:] == ["over-memory-limit", "m.yaml:17"]
    assert shown.out.splitlines()[-1] == "Planned for 3 devices: 4 run, 2 refused."
    assert "\x1b" not in shown.out
    assert "(on paint)" in shown.out
    found = table(cli)
    assert all(one["memory_bytes"] for one in found["devices"] if one["runs"])
    assert {(one["rule"], tuple(one["devices"])) for one in found["diagnostics"] if one["severity"] == "error"} == {
        ("over-memory-limit", ("paint",))
    }
    assert cli("plan", "m.yaml", "--device", "devices/plain.yaml").code == 0
    assert cli("plan", "m.yaml", "--device", "devices/plain.yaml", "--detailed-exitcode").code == 2
    assert not (folder / ".ortdeploy").exists()


def test_a_finding_of_several_devices_is_one_result_of_sarif(cli: Cli, folder: Path) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("double.onnx", "nowhere.onnx"))
    results = json.loads(cli("plan", "m.yaml", "--device", "devices/*.yaml", "--format", "sarif").out)["runs"][0][
        "results"
    ]
    (missing,) = (one for one in results if one["ruleId"] == "unreadable-model")
    assert missing["properties"]["devices"] == ["gpu", "paint", "plain"]
    annotated = cli("plan", "m.yaml", "--device", "devices/*.yaml", "--format", "github").out
    assert annotated.count("[unreadable-model]") == 1
    assert "(on gpu, paint, plain)" in annotated
    assert "| plain | m: j | base (otherwise) | refused: unreadable-model m.yaml:3 |" in annotated


@pytest.mark.usefixtures("folder")
def test_a_narrow_terminal_leaves_columns_out_and_no_state() -> None:
    files = [f"devices/{name}.yaml" for name in FLEET]
    found = plan_devices(["m.yaml"], LoadOptions(), files, jobs=["j"], excluded=(), state_dir=None)
    narrow = render_table(found.entries, color=False, width=44)
    assert all(len(line) <= 44 for line in narrow.splitlines())
    assert narrow.split().count("runs") == 2
    assert "refused" in narrow
    assert "MEMORY" not in narrow
    assert "\x1b[" in render_table(found.entries, color=True, width=100)


def test_the_answer_does_not_depend_on_the_machine_that_asks(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose ledger, data, packages, locales, zones and clock would each change the answer."""
    before = table(cli)
    np.save(make(folder, "inbox") / "a.npy", np.ones((4, 9), np.float32))  # rows that do not fit
    assert "input-shape-mismatch" in cli("plan", "m.yaml", "--profile", "none", "--job", "j").out
    assert table(cli) == before

    np.save(folder / "inbox/a.npy", np.ones((4, 4), np.float32))
    assert cli("apply", "m.yaml", "--profile", "none", "--job", "j").code == 0
    (folder / "m.yaml").write_text(MANIFEST.replace("out}", "out}\n    batch: {size: 2}"))
    again = table(cli)
    (folder / "m.yaml").write_text(MANIFEST)
    assert cells(again) == cells(before)  # a finished output of another deployment is not there
    shutil.rmtree(folder / "inbox")
    assert table(cli) == before

    (folder / ".ortdeploy/state.db").write_bytes(b"damaged")
    assert table(cli) == before
    shutil.rmtree(folder / ".ortdeploy")
    (folder / ".ortdeploy").symlink_to("/")
    assert table(cli) == before
    (folder / ".ortdeploy").unlink()

    find = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "PIL" else find(name, *rest))
        assert table(cli) == before
    with monkeypatch.context() as patch:
        patch.setattr(locale, "setlocale", lambda *_: (_ for _ in ()).throw(locale.Error))
        assert table(cli) == before
    with monkeypatch.context() as patch:
        patch.setattr(zoneinfo, "ZoneInfo", lambda name: (_ for _ in ()).throw(zoneinfo.ZoneInfoNotFoundError(name)))
        assert "unusable-hours" in cli("validate", "m.yaml").out
        assert table(cli) == before
    with monkeypatch.context() as patch:
        now = time.time
        patch.setattr(time, "time", lambda: now() + 12 * 3600)
        assert table(cli) == before
    for variable in ("ORTDEPLOY_LABELS", "ORTDEPLOY_DEVICE"):
        monkeypatch.setenv(variable, "line=paint")
        assert table(cli) == before


def make(folder: Path, name: str) -> Path:
    (folder / name).mkdir(exist_ok=True)
    return folder / name


def test_each_model_is_read_once(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = graph_model.read_model

    def counted(path: Path, *rest: Any) -> Any:
        read.append(path.name)
        return real(path, *rest)

    monkeypatch.setattr(graph_model, "read_model", counted)
    for name, factor in (("one", 7.25), ("other", 8.25)):  # which no other test has read
        scale_model(folder / f"{name}.onnx", factor=factor)
    apart = onnx.load(folder / "other.onnx")
    onnx.save(apart, folder / "other.onnx", save_as_external_data=True, location="other.data", size_threshold=0)
    jobs = "".join(
        f"  j{number}: {{model: {'mo'[number % 2]}, input: {{path: x.npy}}, output: {{path: out{number}}}}}\n"
        for number in range(10)
    )
    models = "models: {m: {path: one.onnx}, o: {path: other.onnx}}\n"
    (folder / "m.yaml").write_text(f"version: 1\n{models}jobs:\n{jobs}")
    for number in range(12):
        (folder / f"devices/{number}.yaml").write_text(Machine(name=f"box-{number}").device_file())
    assert len(table(cli)["devices"]) == 15 * 10
    assert sorted(read) == ["one.onnx", "other.onnx"]


def test_device_files_that_cannot_be_read_are_named(cli: Cli, folder: Path) -> None:
    (folder / "devices/broken.yaml").write_text("device_version: 1\n")
    refused = cli("plan", "m.yaml", "--device", "devices/*.yaml", "--device", "nowhere.yaml", "--device", "no/*.yaml")
    assert refused.code == 1
    assert {"devices/broken.yaml:1:1:", "nowhere.yaml:1:1:", "no/*.yaml:1:1:"} <= set(refused.out.split())
    assert "Planned for 3 devices" in refused.out


def test_devices_of_one_name_are_told_apart(cli: Cli, folder: Path) -> None:
    shutil.copy(folder / "devices/plain.yaml", folder / "devices/second.yaml")
    assert {"devices/plain.yaml", "devices/second.yaml", "gpu", "paint"} == {
        one["device"] for one in table(cli)["devices"]
    }


def test_a_provider_that_opens_no_session_on_a_device_does_not_run_there(cli: Cli, folder: Path) -> None:
    """One that compiles may have left the small model that was tried to the CPU. Names may be short."""
    shutil.rmtree(folder / "devices")
    plain = Machine(offered=("CUDA", "VitisAI")).device_file("name")
    for name, old, new in (
        ("open", "- CPU\n", "- CUDA\n"),
        ("short", "- CPU\n  providers:\n  - CUDAExecutionProvider\n", "- cuda\n  providers:\n  - CUDA\n"),
        ("closed", "", ""),
        ("unknown", "  opens:\n  - CPU\n", ""),
    ):
        assert old in plain
        make(folder, "devices").joinpath(f"{name}.yaml").write_text(plain.replace(old, new) + f"name: {name}\n")
    for provider, refused in (("CUDA", {"closed"}), ("VitisAI", set()), ("CPU", set())):
        chain = f"[{', '.join(dict.fromkeys((provider, 'CPU')))}]"
        job = "{model: m, input: {path: x.npy}, output: {path: out}}"
        model = f"{{path: double.onnx, providers: {chain}, cpu_fallback: allow}}"
        (folder / "m.yaml").write_text(f"version: 1\nmodels: {{m: {model}}}\njobs: {{j: {job}}}\n")
        found = cells(table(cli))
        assert {device for (device, _), (_, rule) in found.items() if rule == "unavailable-provider"} == refused
        assert len(found) == 4


def test_flags_that_are_about_one_machine(cli: Cli, folder: Path) -> None:
    two = ("--device", "devices/gpu.yaml", "--device", "devices/paint.yaml")
    for flags in (("--out", "p.json"), ("--bound",), ("--new-run",), ("--label", "a=b")):
        assert cli("plan", "m.yaml", *two, *flags).code == 64, flags
    assert cli("plan", "m.yaml", "--device", "devices/*.yaml", "--job", "nothing").code == 64
    assert not (folder / "p.json").exists()


def test_the_page_about_variants_shows_what_is_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    page = REPOSITORY / "docs/variants.md"
    ((_, _, body),) = (one for one in snippets(page.read_text(encoding="utf-8")) if one[0] == "console")
    line, _, written = body.partition("\n")
    monkeypatch.chdir(REPOSITORY)
    command, *words = shlex.split(line.removeprefix("$ "))
    assert command == "ortdeploy"
    assert cli(*words, "--color", "never").out == written


def test_a_device_file_without_kernels_has_those_of_here_unless_the_device_is_newer(cli: Cli, folder: Path) -> None:
    """A locale that this machine lacks is no reason to refuse: the device may have it."""
    lower = {"case_change_action": "LOWER", "locale": "no_WHERE.UTF-8"}
    for name, kind, node in (
        ("kernel", onnx.TensorProto.DOUBLE, onnx.helper.make_node("Tan", ["x"], ["y"])),
        ("locale", onnx.TensorProto.STRING, onnx.helper.make_node("StringNormalizer", ["x"], ["y"], **lower)),
    ):
        save_model(folder / f"{name}.onnx", [node], {"x": (kind, ["n"])}, {"y": (kind, ["n"])})
    steps = "{op: Cast, in: {input: $y}, attributes: {to: float64}, out: d}, {op: Tan, in: {input: $d}, out: e}"
    here = runtime_version().partition(" ")[0]
    devices = {"same": here, "older": "1.31.0", "newer": "99.0.0"}
    for name, version in devices.items():
        (folder / f"devices/{name}.yaml").write_text(Machine(name=name).device_file().replace("1.32.0", version))
    for model, more, refused in (
        ("kernel", "", "refused-model"),
        ("locale", "", None),
        ("double", f"postprocess: [{steps}],", "refused-operator"),
    ):
        job = f"{{model: m, input: {{path: x.npy}}, {more} output: {{path: out}}}}"
        (folder / "m.yaml").write_text(f"version: 1\nmodels: {{m: {{path: {model}.onnx}}}}\njobs: {{j: {job}}}\n")
        found = {device: rule for (device, _), (_, rule) in cells(table(cli)).items()}
        assert [found[name] for name in devices] == [refused, refused, None]


def test_each_condition_on_hardware_is_decided_for_every_shipped_device(cli: Cli, folder: Path) -> None:
    """The board that is sold with 8 GB counts; on a PC the processor decides, whose memory nobody knows."""
    when = '{architecture: aarch64, memory: ">= 6GiB", provider: CUDA}'
    (folder / "m.yaml").write_text(MANIFEST.replace('{provider: CUDA, memory: ">= 6GiB"}', when))
    shutil.rmtree(folder / "devices")
    shutil.copytree(REPOSITORY / "deployments/devices", folder / "devices")
    found = {device: profile for (device, _), (profile, _) in cells(table(cli)).items()}
    assert len(found) == 10
    assert {device for device, profile in found.items() if profile == "gpu"} == {"jetson-agx-orin", "jetson-orin-nano"}
    assert {rule for _, rule in cells(table(cli)).values()} == {None}


@settings(max_examples=effort(4, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abc"), whens, min_size=1, max_size=3), machines)
def test_plan_apply_and_the_table_choose_alike(
    cli: Cli, folder: Path, conditions: dict[str, Any], machine: Machine
) -> None:
    told = {name: {"when": when} for name, when in conditions.items()} | {"otherwise": "refuse"}
    job = {"model": "m", "input": {"path": "data.npy"}, "output": {"path": "out"}}
    models = {"m": {"path": "double.onnx", "providers": ["CPU"]}}
    text = json.dumps({"version": 1, "models": models, "jobs": {"j": job}, "profiles": told})
    (folder / "m.yaml").write_text(text)
    np.save(folder / "data.npy", np.ones((2, 4), np.float32))
    for left in (".ortdeploy", "out"):
        shutil.rmtree(folder / left, ignore_errors=True)
    (folder / "devices/it.yaml").write_text(machine.device_file())

    with pytest.MonkeyPatch.context() as patch:
        machine.become(patch)
        elsewhere = outcome(cli("plan", "m.yaml", "--device", "devices/it.yaml", "--format", "json"))
        here = outcome(cli("plan", "m.yaml", "--format", "json"))
        applied = outcome(cli("apply", "m.yaml", "--format", "json"))
    true = [name for name, when in conditions.items() if holds(when, machine)]
    wanted = "ambiguous-profile" if len(true) > 1 else "no-profile" if not true else None
    if applied == "contradictory-when":  # refused before anything is chosen, and it holds on no device
        assert set(true) < set(conditions)
        wanted = applied
    assert elsewhere == here == applied == wanted
    if wanted is None:
        report = json.loads((folder / "out/_run.json").read_text())
        assert report["invocation"]["profile"] == true[0]
        (cell,) = cli("plan", "m.yaml", "--device", "devices/it.yaml", "--format", "json").json["devices"]
        assert cell["profile"]["name"] == true[0]


def outcome(result: Result) -> str | None:
    """Return the rule that refused; None if nothing did."""
    errors = [one["rule"] for one in result.json["diagnostics"] if one["severity"] == "error"]
    assert (result.code == 0) != bool(errors)
    return errors[0] if errors else None
