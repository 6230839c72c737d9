"""Device files: captured here, read back, planned for."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from conftest import MANIFEST, REPOSITORY, Cli, Result
from PIL import Image

from ortdeploy.facts.host import MachineFacts
from ortdeploy.manifest.document import parse_document
from ortdeploy.planning.devices.device_file import dump_device, load_device
from ortdeploy.process import cores, memory
from ortdeploy.runtime import machine
from ortdeploy.runtime.machine import probe_machine
from ortdeploy.runtime.probe import probe_runtime

DEVICES = sorted((REPOSITORY / "deployments/devices").glob("*.yaml"))


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_every_shipped_device_file_is_right_and_says_where_it_comes_from(path: Path) -> None:
    facts, problems = load_device(str(path))
    assert not problems
    assert facts is not None
    document, _ = parse_document(path.read_bytes(), "d")
    assert document is not None
    assert document.data["name"] == path.stem
    assert document.data["source"] in {"captured", "documentation"}


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_the_example_is_planned_for_every_shipped_device(cli: Cli, path: Path) -> None:
    assert cli("plan", REPOSITORY / "deployments/digits.yaml", "--device", path, "-q").code == 0


def test_the_page_of_boards_names_every_shipped_device() -> None:
    page = (REPOSITORY / "docs/boards.md").read_text(encoding="utf-8")
    named = re.findall(r"^\|[^|]*\| `([\w-]+)` \|", page, re.MULTILINE)
    assert sorted(named) == [one.stem for one in DEVICES]


def test_what_is_captured_reads_back_as_the_same_facts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    path = tmp_path / "here.yaml"
    assert cli("device", "--name", "here: now", "-o", path).code == 0
    facts, problems = load_device(str(path))
    assert not problems
    here = probe_runtime({})
    assert facts is not None
    assert facts.machine == probe_machine()
    assert "  gpu_memory_bytes: null\n" in path.read_text()  # without NVML
    assert (facts.runtime.version, facts.runtime.available_providers, facts.runtime.max_opsets) == (
        here.version,
        here.available_providers,
        here.max_opsets,
    )
    assert cli("device").out.startswith("device_version: 1")


def test_a_plan_for_another_device_says_what_it_assumes(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    path.write_text(MANIFEST.replace("double.onnx}", "double.onnx, providers: [TensorRT, CUDA, CPU]}"))
    jetson, pi = (REPOSITORY / f"deployments/devices/{name}.yaml" for name in ("jetson-orin-nano", "raspberry-pi-5"))
    assert cli("plan", path).code == 1
    planned = cli("plan", path, "--device", jetson)
    assert planned.code == 0, planned.out
    for place, name in enumerate(("Tensorrt", "CUDA", "CPU"), 1):
        assert f"─ {place} {name}ExecutionProvider\n" in planned.out
    refused = cli("plan", path, "--device", pi, "--format", "json")
    assert {(d["rule"], d["certainty"]) for d in refused.json["diagnostics"]} == {("unavailable-provider", "assumed")}
    assert "(assumed: this machine does not prove it)" in cli("plan", path, "--device", pi).out


ONE_SESSION = """\
device_version: 1
runtime: {version: 1.31.1, providers: [CUDA, VitisAI, CPU]}
machine: {cores: 4, gpu_memory_bytes: 4}  # one of the two weights
"""


@pytest.mark.parametrize(("provider", "rule"), [("VitisAI", "crowded-device"), ("CUDA", "over-gpu-memory")])
def test_only_the_jobs_that_are_chosen_crowd_a_device(cli: Cli, deployment: Path, provider: str, rule: str) -> None:
    path, board = deployment / "m.yaml", deployment / "board.yaml"
    board.write_text(ONE_SESSION)
    other = f"  other: {{path: double.onnx, providers: [{provider}, CPU]}}\njobs:\n"
    text = MANIFEST.replace("double.onnx}", f"double.onnx, providers: [{provider}, CPU]}}").replace("jobs:\n", other)
    path.write_text(f"{text}  more: {{model: other, input: {{path: data.npy}}, output: {{path: more}}}}\n")
    refused = cli("plan", path, "--device", board)
    assert (refused.code, f"error[{rule}]" in refused.out) == (1, True), refused.out
    for job in ("run", "more"):
        assert f"error[{rule}]" not in cli("plan", path, "--device", board, "--job", job).out


def test_a_device_of_a_plugin_package_is_chosen_for_another_machine(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    chain = "providers: [{provider: QNN, device: NPU, options: {backend_type: htp}}, CPU]"
    override = "session: {free_dimension_overrides: {batch: 4}}"
    manifest = MANIFEST.replace("double.onnx}", f"double.onnx, {chain}, {override}}}").replace("size: 8", "size: 4")
    path.write_text(manifest)
    planned = cli("plan", path, "--bound", "--device", REPOSITORY / "deployments/devices/snapdragon-x-elite.yaml")
    assert planned.code == 0, planned.out
    assert "QNNExecutionProvider (device 0: NPU NPU, Qualcomm)" in planned.out


def test_a_library_that_a_described_device_does_not_have_is_refused_in_whole_sentences(
    cli: Cli, deployment: Path
) -> None:
    path = deployment / "m.yaml"
    path.write_text(
        MANIFEST.replace("double.onnx}", "double.onnx, providers: [{provider: Mine, library: libmine.so}, CPU]}")
    )
    refused = cli("plan", path, "--device", REPOSITORY / "deployments/devices/jetson-orin-nano.yaml")
    assert refused.code == 1
    assert "run on the CPU. List CPU alone if the CPU is intended." in " ".join(refused.out.split())


def test_a_plan_for_another_device_is_not_applied_here(cli: Cli, deployment: Path) -> None:
    plan = deployment / "plan.json"
    device = REPOSITORY / "deployments/devices/jetson-orin-nano.yaml"
    assert cli("plan", deployment / "m.yaml", "--device", device, "--out", plan).code == 0
    refused = cli("apply", plan)
    assert refused.code == 1
    assert "The providers are not what the plan was made from" in refused.out


def planned_for_a_board(cli: Cli, manifest: Path, *more: str | Path) -> Result:
    """Plan for another machine with the data that is here, as if the plan were to be saved."""
    saved = () if "--bound" in more else ("--out", manifest.parent / "open.json")
    return cli("plan", manifest, "--device", REPOSITORY / "deployments/devices/raspberry-pi-5.yaml", *saved, *more)


def test_what_is_done_here_is_not_done_on_another_device(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    assert cli("apply", path).code == 0
    path.write_text(MANIFEST.replace("size: 8", "size: 4"))  # of which this ledger knows another result
    planned = planned_for_a_board(cli, path, "--detailed-exitcode")
    assert planned.code == 2, planned.out
    assert "+ run job run: 20 rows of data.npy (npy)" in planned.out
    assert "is finished" in cli("plan", path, "--set", "jobs.run.batch.size=8").out


def test_data_that_is_not_here_is_said_and_not_refused(cli: Cli, deployment: Path) -> None:
    (deployment / "data.npy").unlink()
    path = deployment / "m.yaml"
    assert "[unmatched-input]" in cli("plan", path).out
    planned = planned_for_a_board(cli, path)
    assert planned.code == 0, planned.out
    assert "+ run job run: an unknown number of rows of data.npy (npy)" in planned.out
    assert "data not looked at. No file here matches data.npy. So its rows are not counted" in planned.out
    (step,) = (one for one in planned_for_a_board(cli, path, "--format", "json").json["steps"] if "job" in one)
    assert step["input"]["elsewhere"] == "No file here matches data.npy."


def test_all_but_the_data_is_judged_where_the_data_is_not_here(cli: Cli, deployment: Path) -> None:
    (deployment / "data.npy").unlink()
    path = deployment / "m.yaml"
    path.write_text(
        MANIFEST.replace("double.onnx}", "double.onnx, providers: [CUDA]}").replace("data.npy", "inbox/*.parquet")
    )
    found = planned_for_a_board(cli, path, "--format", "json").json["diagnostics"]
    assert {one["rule"] for one in found} == {"unavailable-provider", "missing-package"}


@pytest.mark.parametrize("needed_by", ["the rows", "a step"])
def test_data_that_only_a_package_reads_is_not_looked_at_without_it(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, needed_by: str
) -> None:
    path = deployment / "m.yaml"
    if needed_by == "the rows":
        path.write_text(MANIFEST.replace("data.npy", "'*.png'"))
        Image.new("L", (4, 1)).save(deployment / "a.png")
    else:
        path.write_text(MANIFEST.replace("model: double\n", "model: double\n    prepare: {x: [{resize: [1, 4]}]}\n"))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find(name))
    planned = planned_for_a_board(cli, path)
    assert planned.code == 0
    assert 'data not looked at. Pillow is not installed here: pip install "ortdeploy[images]".' in planned.out


def test_new_files_of_a_checkout_are_settled_on_another_device(cli: Cli, deployment: Path) -> None:
    path = deployment / "m.yaml"
    path.write_text(MANIFEST.replace("data.npy", "data.npy, stable_for: 1h, on_empty: done"))
    assert "nothing to do" in cli("plan", path).out
    assert "+ run job run: 20 rows" in planned_for_a_board(cli, path).out
    (deployment / "data.npy").unlink()
    assert "data not looked at" in planned_for_a_board(cli, path).out


def test_a_plan_that_fixes_rows_needs_the_data(cli: Cli, deployment: Path) -> None:
    (deployment / "data.npy").unlink()
    refused = planned_for_a_board(cli, deployment / "m.yaml", "--bound", "--out", deployment / "plan.json")
    assert refused.code == 1
    assert 'the data of job "run" was not looked at, and a bound plan fixes files and rows' in refused.err
    assert not (deployment / "plan.json").exists()


def test_a_new_run_is_about_this_machine(cli: Cli, deployment: Path) -> None:
    refused = planned_for_a_board(cli, deployment / "m.yaml", "--new-run")
    assert refused.code == 64
    assert "--new-run is about what this machine's ledger knows" in refused.err


def test_a_folder_of_device_files_is_told_the_pattern(cli: Cli, deployment: Path) -> None:
    (deployment / "boards").mkdir()
    refused = cli("plan", deployment / "m.yaml", "--device", deployment / "boards")
    assert refused.code == 1
    assert f'Quote a pattern: --device "{deployment}/boards/*.yaml".' in " ".join(refused.out.split())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("orin-nano", "boards/orin-nano.yaml"),
        ("orin", "boards/orin-agx.yaml or boards/orin-nano.yaml"),
        ("boards/orin-agx", "boards/orin-agx.yaml"),
        ("boards/orin-nanno.yaml", "boards/orin-nano.yaml"),
        ("board/orin-agx.yaml", "boards/orin-agx.yaml"),
    ],
)
def test_a_device_without_a_file_is_told_which_are_there(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    (deployment / "boards").mkdir()
    for board in ("orin-nano", "orin-agx", "pi"):
        (deployment / f"boards/{board}.yaml").touch()
    monkeypatch.chdir(deployment)
    refused = cli("plan", "m.yaml", "--device", name)
    assert refused.code == 1
    assert f"Did you mean {meant}?" in " ".join(refused.out.split())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "unreadable-device"),
        ("device_version: 2\nruntime: {version: 1.31.1, providers: []}\n", "value-not-allowed"),
        ("device_version: 1\n", "missing-key"),
        ("device_version: 1\nruntime: {version: 1.31.1, providers: [CPU], provider: x}\n", "unknown-key"),
        ("a: [", "yaml-syntax"),
    ],
)
def test_a_wrong_device_file_is_a_diagnostic(cli: Cli, deployment: Path, text: str | None, rule: str) -> None:
    device = deployment / "device.txt"
    if text is not None:
        device.write_text(text)
    refused = cli("plan", deployment / "m.yaml", "--device", device)
    assert refused.code == 1
    assert f"error[{rule}]" in refused.out


def test_quota_and_memory_of_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cores, memory):
        monkeypatch.setattr(module, "group_folders", lambda _: (tmp_path,))
    assert probe_machine().cpu_quota is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("268435456\n")
    facts = probe_machine()
    assert (facts.cpu_quota, facts.memory_bytes) == (1.5, 268435456)


def test_a_machine_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MEMINFO", "_CPUINFO"):
        monkeypatch.setattr(machine, name, tmp_path / "nothing")
    for module in (cores, memory):
        monkeypatch.setattr(module, "group_folders", lambda _: ())
    facts = probe_machine()
    assert (facts.cpu_quota, facts.memory_bytes, facts.cpu_flags) == (None, None, ())
    assert facts.cores >= 1


def test_odd_names_survive_in_a_device_file(tmp_path: Path) -> None:
    nobody = MachineFacts(
        system="", architecture="", python="", cores=1, cpu_quota=None, memory_bytes=None, cpu_flags=()
    )
    path = tmp_path / "d.yaml"
    path.write_text(
        dump_device("yes: #1\n", probe_runtime({}), nobody, labels={"no": "1"}, opens=["CPU"]), encoding="utf-8"
    )
    facts, problems = load_device(str(path))
    assert facts is not None
    assert (facts.traits.name, facts.traits.labels) == ("yes: #1\n", {"no": "1"})
    assert not problems
