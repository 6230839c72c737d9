"""Providers from plugin packages, for real: QNN on its HTP simulator, OpenVINO where it offers a device."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, Result, read_rows, run_fork, run_process
from onnx import TensorProto, helper
from support.models import save_model, scale_model
from support.past_the_rules import apply_document, plan_document
from support.plugins import QNN, needs_openvino, needs_qnn, report

from ortdeploy.facts.host import DeviceFacts
from ortdeploy.process.child import Answer
from ortdeploy.runtime.plugin_probe import PluginFacts, probe_plugin
from ortdeploy.runtime.probe import probe_runtime

MANIFEST = """\
version: 1
models:
  double:
    path: double.onnx
    providers: [{{provider: {provider}, options: {options}}}{cpu}]
    cpu_fallback: {cpu_fallback}
jobs:
  run:
    model: double
    input: {{path: data.npy, key: [row]}}
    batch: {{size: 4, last: pad}}
    output: {{path: out}}
"""


def write(
    folder: Path,
    *,
    batch: int | str = 4,
    cpu_fallback: str = "warn",
    cpu: bool = True,
    provider: str = "QNN",
    options: str = "{backend_type: htp}",
) -> Path:
    scale_model(folder / "double.onnx", batch=batch)
    np.save(folder / "data.npy", np.arange(24, dtype=np.float32).reshape(6, 4))
    text = MANIFEST.format(provider=provider, options=options, cpu=", CPU" if cpu else "", cpu_fallback=cpu_fallback)
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


@needs_qnn
def test_a_plugin_provider_runs_and_is_proven_to_have_run(tmp_path: Path) -> None:
    write(tmp_path, cpu_fallback="forbid")
    planned = run_process(["plan", "m.yaml"], cwd=tmp_path)
    assert planned.code == 0, planned.out
    assert "QNNExecutionProvider (device 0: CPU CPU" in planned.out
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out + applied.err
    assert report(tmp_path)["placement"] == {"QNNExecutionProvider": 1}
    rows = [row["y"] for row in read_rows(tmp_path / "out")]
    assert np.allclose(rows, np.arange(24).reshape(6, 4) * 2, rtol=1e-3)


@needs_qnn
def test_files_in_the_current_folder_are_not_taken_for_modules(tmp_path: Path) -> None:
    """The processes that ortdeploy starts run in the folder that it is called in, which may hold anybody's files."""
    write(tmp_path)
    for name in ("json.py", "onnxruntime.py", "ortdeploy.py", "structlog.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')\n")
    script = Path(sys.executable).with_name("ortdeploy")
    applied = subprocess.run([script, "apply", "m.yaml"], cwd=tmp_path, capture_output=True, check=False)
    assert applied.returncode == 0, applied.stdout


@needs_qnn
def test_a_library_given_by_its_path_runs_too(tmp_path: Path) -> None:
    library = Path(importlib.import_module(QNN).get_library_path())
    path = write(tmp_path, cpu_fallback="forbid")
    path.write_text(
        path.read_text().replace("{provider: QNN,", f"{{provider: QNNExecutionProvider, library: {library},")
    )
    outside = run_process(["plan", "m.yaml"], cwd=tmp_path)
    assert outside.code == 1
    assert "error[path-outside-tree]" in outside.out
    applied = run_process(["apply", "m.yaml", "--allow-root", library.parent], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert report(tmp_path)["placement"] == {"QNNExecutionProvider": 1}


def test_a_library_that_is_not_one_is_refused_with_its_words(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "libmine.so").write_bytes(b"nothing")
    path.write_text(
        path.read_text().replace(
            "{provider: QNN, options: {backend_type: htp}}", "{provider: Mine, library: libmine.so}"
        )
    )
    refused = run_fork(["plan", "m.yaml"], cwd=tmp_path)
    assert refused.code == 1
    assert "error[unavailable-provider]" in refused.out
    words = " ".join(refused.out.split())
    assert "Its library cannot be used: the library of Mine cannot be loaded: " in words
    assert "OrtdeployError" not in words
    assert "short. List CPU alone" in words


@pytest.mark.parametrize("provider", ["Mine", "OpenVINO", "OpenVINOExecutionProvider"])
def test_a_link_to_a_library_out_of_the_tree_is_not_loaded(tmp_path: Path, provider: str) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    outside.mkdir()
    path = write(folder)
    (outside / "libmine.so").write_bytes(b"nothing")
    (folder / "libmine.so").symlink_to(outside / "libmine.so")
    path.write_text(
        path.read_text().replace(
            "{provider: QNN, options: {backend_type: htp}}", f"{{provider: {provider}, library: libmine.so}}"
        )
    )
    refused = run_fork(["plan", "m.yaml"], cwd=folder)
    assert refused.code == 1
    assert "is a link out of the manifest's folder tree" in " ".join(refused.out.split())


@needs_qnn
@pytest.mark.parametrize("options", ["{backend_type: cpu}", "{backend_path: libQnnCpu.so}"])
def test_a_backend_whose_library_is_missing_is_refused_by_plan(tmp_path: Path, options: str) -> None:
    """onnxruntime-qnn carries no CPU backend: QNN would log that, take no node, and the CPU would run all of them."""
    write(tmp_path, options=options)
    refused = run_process(["plan", "m.yaml", "--format", "json"], cwd=tmp_path)
    (found,) = refused.json["diagnostics"]
    assert (refused.code, found["rule"], found["certainty"]) == (1, "missing-library", "proven-on-this-machine")
    assert "would load libQnnCpu.so" in found["detail"]


@needs_qnn
def test_a_backend_is_named_by_its_library_too(tmp_path: Path) -> None:
    write(tmp_path, options="{backend_path: libQnnHtp.so}", cpu_fallback="forbid")
    planned = run_process(["plan", "m.yaml"], cwd=tmp_path)
    assert planned.code == 0, planned.out


@needs_qnn
def test_a_chain_without_the_cpu_leaves_no_node_to_it(tmp_path: Path) -> None:
    write(tmp_path, batch="batch", cpu=False, cpu_fallback="allow")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert "explicitly disabled by the user" in applied.out


@needs_qnn
def test_a_provider_that_would_silently_take_no_node_is_refused(tmp_path: Path) -> None:
    """QNN takes no node of a graph with a dynamic batch; ONNX Runtime would run all of it on the CPU without a word."""
    write(tmp_path, batch="batch")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert "error[dynamic-shape]" in applied.out
    assert not (tmp_path / "out").exists()


@needs_qnn
def test_cpu_fallback_allow_accepts_it(tmp_path: Path) -> None:
    write(tmp_path, batch="batch", cpu_fallback="allow")
    assert run_process(["apply", "m.yaml"], cwd=tmp_path).code == 0
    assert report(tmp_path)["placement"] == {"CPUExecutionProvider": 1}


@needs_qnn
def test_a_backend_that_cannot_start_is_not_taken_for_a_run(tmp_path: Path) -> None:
    """Its GPU backend is there, and finds no GPU."""
    write(tmp_path, options="{backend_type: gpu}")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert "QNNExecutionProvider took no node" in applied.out
    assert "Failed to initialize backend" in " ".join(applied.out.split())
    assert not list((tmp_path / "out").glob("part-*"))


@needs_qnn
def test_an_element_type_that_a_provider_does_not_take_fails_the_job(tmp_path: Path) -> None:
    """QNN has no float64; ONNX Runtime would run the whole graph on the CPU and list QNN as its provider."""
    path = write(tmp_path)
    tensor = (TensorProto.DOUBLE, (4, 4))
    save_model(tmp_path / "double.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], {"x": tensor}, {"y": tensor})
    np.save(tmp_path / "data.npy", np.zeros((4, 4)))
    applied = run_process(["apply", path.name], cwd=tmp_path)
    assert applied.code == 1
    assert "QNNExecutionProvider took no node" in applied.out
    assert not list((tmp_path / "out").glob("part-*"))


@needs_qnn
def test_a_backend_that_answers_with_nothing_does_not_pass(tmp_path: Path) -> None:
    """QNN's saver backend takes every node and runs without an error; what it returns is zeros or noise."""
    write(tmp_path, options="{backend_type: saver}", cpu_fallback="forbid")
    refused = run_process(["validate", "m.yaml"], cwd=tmp_path)
    assert "error[contradictory-option]" in refused.out
    applied = apply_past_the_rules(tmp_path, "saver")
    assert applied.code == 1
    assert "is not what the CPU provider computes" in applied.out
    assert not list((tmp_path / "out").glob("part-*"))


@needs_qnn
def test_the_probe_runs_on_the_cpu_also_where_the_session_may_not(tmp_path: Path) -> None:
    path = write(tmp_path, cpu=False, cpu_fallback="forbid")
    config = "    session: {config: {session.disable_cpu_ep_fallback: true}}\n    cpu_fallback"
    path.write_text(path.read_text().replace("    cpu_fallback", config))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out


@needs_qnn
def test_the_probe_run_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, options="{backend_type: saver}", cpu_fallback="forbid")
    path.write_text(path.read_text().replace("    cpu_fallback", "    probe: false\n    cpu_fallback"))
    assert run_process(["apply", "m.yaml"], cwd=tmp_path).code == 0


def apply_past_the_rules(folder: Path, backend: str) -> Result:
    """Plan with QNN's htp backend and apply with one that no manifest may have, as if no rule had objected."""
    path = folder / "m.yaml"
    path.write_text(path.read_text().replace(f"backend_type: {backend}", "backend_type: htp"))
    planned = run_process(["plan", "m.yaml"], cwd=folder)
    assert planned.code == 0, planned.out
    assert ("CUDA" in path.read_text()) == ("warning[skipped-provider]" in planned.out)
    text = json.dumps(plan_document(folder))
    return apply_document(json.loads(text.replace('"backend_type": "htp"', f'"backend_type": "{backend}"')), folder)


SESSIONS = """\
    sessions:
      - {name: gpu, providers: [CUDA, CPU]}
      - {name: dynamic, providers: [{provider: QNN, options: {backend_type: gpu}}, CPU]}
      - {name: broken, providers: [{provider: QNN, options: {backend_type: ir}}, CPU]}
      - {name: cpu, providers: [CPU]}
"""


ABORTING = """\
    sessions:
      - {name: npu, providers: [{provider: QNN, options: {backend_type: htp}}, CPU]}
      - {name: cpu, providers: [CPU]}
    run: {config: {qnn.rpc_control_latency: 9}}
"""


def abort_in_qnn(folder: Path, sessions: str = ABORTING) -> Result:
    """QNN 2.7.0 ends the process when this run option is no number (an uncaught std::invalid_argument)."""
    path = write(folder)
    lines = [line for line in path.read_text().splitlines(keepends=True) if "providers:" not in line]
    path.write_text("".join(lines).replace("    cpu_fallback: warn\n", sessions))
    text = json.dumps(plan_document(folder))
    assert '"qnn.rpc_control_latency": "9"' in text
    changed = text.replace('"qnn.rpc_control_latency": "9"', '"qnn.rpc_control_latency": "soon"')
    return apply_document(json.loads(changed), folder, "--format", "json")


@needs_qnn
def test_a_provider_that_aborts_the_process_is_a_reason_and_the_next_session_goes_on(tmp_path: Path) -> None:
    applied = abort_in_qnn(tmp_path)
    assert applied.code == 0, applied.out + applied.err
    assert [job["status"] for job in applied.json["jobs"]] == ["done"]
    found = report(tmp_path)
    assert found["session"] == "cpu"
    reason = found["sessions_passed_over"]["npu"]
    assert 'ran job run on session npu of model "double" was ended by SIGABRT' in reason
    assert "std::invalid_argument" in reason or "stoi" in reason or "stoul" in reason
    assert len(read_rows(tmp_path / "out")) == 6


@needs_qnn
def test_without_another_session_an_abort_fails_the_job_and_not_ortdeploy(tmp_path: Path) -> None:
    applied = abort_in_qnn(tmp_path, ABORTING.replace("      - {name: cpu, providers: [CPU]}\n", ""))
    assert applied.code == 1
    (job,) = applied.json["jobs"]
    assert job["status"] == "failed"
    assert "was ended by SIGABRT" in job["reason"]
    assert "Traceback" not in applied.err
    status = run_process(["status", "m.yaml"], cwd=tmp_path)
    assert "failed" in status.out


def start_long_run(folder: Path, rows: int = 160_000) -> "subprocess.Popen[str]":
    """Start a run on QNN whose rows take it some seconds, and return when its first part is committed."""
    path = write(folder)
    np.save(folder / "data.npy", np.zeros((rows, 4), np.float32))
    path.write_text(path.read_text().replace("{path: out}", "{path: out, rows_per_part: 400}"))
    command = [sys.executable, "-m", "ortdeploy", "apply", "m.yaml"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    assert process.stderr is not None
    assert any("part.committed" in line for line in process.stderr)
    return process


@needs_qnn
@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (1, 129)], ids=["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_reaches_the_process_that_runs(tmp_path: Path, number: int, code: int) -> None:
    process = start_long_run(tmp_path)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert "interrupted" in out
    assert "interrupted" in run_process(["status", "m.yaml"], cwd=tmp_path).out


@needs_qnn
def test_the_process_that_runs_goes_on_when_its_readers_go_away(tmp_path: Path) -> None:
    process = start_long_run(tmp_path, rows=20_000)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    assert process.wait() == 0
    assert report(tmp_path)["status"] == "done"


@needs_qnn
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a child that its parent is gone")
def test_nothing_runs_on_when_ortdeploy_is_killed(tmp_path: Path) -> None:
    process = start_long_run(tmp_path)
    process.kill()
    process.communicate()  # ends when the child, which holds the pipes too, is gone
    path = tmp_path / "m.yaml"
    np.save(tmp_path / "small.npy", np.zeros((4, 4), np.float32))
    path.write_text(path.read_text().replace("data.npy", "small.npy").replace("path: out,", "path: other,"))
    assert run_process(["apply", "m.yaml"], cwd=tmp_path).code == 0  # the lock is free


@needs_qnn
def test_isolated_sessions_are_tried_in_order_for_real(tmp_path: Path) -> None:
    """No CUDA here; QNN's gpu backend does not start; its ir backend takes the nodes and fails when it runs."""
    path = write(tmp_path)
    lines = [line for line in path.read_text().splitlines(keepends=True) if "providers:" not in line]
    path.write_text("".join(lines).replace("    cpu_fallback: warn\n", SESSIONS))
    applied = apply_past_the_rules(tmp_path, "ir")
    assert applied.code == 0, applied.out
    found = report(tmp_path)
    assert found["session"] == "cpu"
    assert list(found["sessions_passed_over"]) == ["dynamic", "broken"]
    assert "took no node" in found["sessions_passed_over"]["dynamic"]
    assert len(read_rows(tmp_path / "out")) == 6


@needs_qnn
def test_sessions_of_two_providers_take_batches_of_one_job(tmp_path: Path) -> None:
    path = write(tmp_path)
    np.save(tmp_path / "data.npy", np.arange(400, dtype=np.float32).reshape(100, 4))
    npu = "{name: npu, providers: [{provider: QNN, options: {backend_type: htp}}, CPU]}"
    both = f"sessions: [{npu}, {{name: cpu, providers: [CPU]}}]"
    line = next(line for line in path.read_text().splitlines() if "providers:" in line)
    path.write_text(path.read_text().replace(line, f"    {both}\n    use: all"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert "and on cpu: CPUExecutionProvider" in applied.out
    rows = [row["y"] for row in read_rows(tmp_path / "out")]
    assert np.allclose(rows, np.arange(400).reshape(100, 4) * 2, rtol=1e-3)
    sessions = report(tmp_path)["sessions"]
    assert [one["placement"] for one in sessions] == [{"QNNExecutionProvider": 1}, {"CPUExecutionProvider": 1}]
    assert sum(one["batches"] for one in sessions) == 25


@needs_qnn
def test_what_a_library_prints_does_not_land_in_json(tmp_path: Path) -> None:
    write(tmp_path)
    applied = run_process(["apply", "m.yaml", "--format", "json"], cwd=tmp_path)
    assert [job["status"] for job in applied.json["jobs"]] == ["done"]


@needs_qnn
def test_a_free_dimension_override_makes_the_shape_static(tmp_path: Path) -> None:
    path = write(tmp_path, batch="batch", cpu_fallback="forbid")
    text = path.read_text().replace(
        "    cpu_fallback", "    session: {free_dimension_overrides: {batch: 4}}\n    cpu_fallback"
    )
    path.write_text(text)
    assert run_process(["apply", "m.yaml"], cwd=tmp_path).code == 0
    assert report(tmp_path)["placement"] == {"QNNExecutionProvider": 1}


@pytest.mark.parametrize(("provider", "why"), [("OpenVINO", ": it takes devices of Intel alone."), ("WebGPU", "here.")])
def test_a_plugin_without_a_device_here_says_whose_devices_it_takes(
    monkeypatch: pytest.MonkeyPatch, provider: str, why: str
) -> None:
    answer = Answer([{"devices": [], "kernels": {}}], 0, late=False, printed="")
    monkeypatch.setattr("ortdeploy.runtime.plugin_probe.ask", lambda *_, **__: answer)
    problem = probe_plugin(provider, "/p.so").problem
    assert problem is not None
    assert problem.startswith("Its library /p.so was loaded and offers no device here")
    assert problem.endswith(why)


@needs_openvino
def test_openvino_runs_where_it_offers_a_device_and_says_so_where_not(tmp_path: Path) -> None:
    write(tmp_path, provider="OpenVINO", options="{}", cpu_fallback="forbid")
    facts = probe_runtime({"OpenVINOExecutionProvider": None})
    result = run_process(["apply", "m.yaml"], cwd=tmp_path)
    if facts.devices:
        assert result.code == 0, result.out
        assert report(tmp_path)["placement"] == {"OpenVINOExecutionProvider": 1}
    else:
        assert result.code == 1
        assert "offers no device here" in " ".join(result.out.split())


def test_a_library_that_is_none_is_a_sentence_and_not_a_crash(tmp_path: Path) -> None:
    library = tmp_path / "libnothing.so"
    library.write_bytes(b"not a library")
    plugin = probe_plugin("QNNExecutionProvider", str(library))
    assert plugin.devices == ()
    assert plugin.problem is not None
    assert "cannot be loaded: " in plugin.problem


def test_a_library_that_aborts_takes_only_its_own_process_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.process.child.child_command", lambda *_: ["/bin/sh", "-c", "kill -6 $$"])
    plugin = probe_plugin("QNNExecutionProvider", "/lib.so")
    assert plugin.devices == ()
    assert plugin.problem is not None
    assert "with signal 6" in plugin.problem


def test_a_library_that_ends_its_process_without_an_error_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.process.child.child_command", lambda *_: ["/bin/sh", "-c", "exit 0"])
    plugin = probe_plugin("QNNExecutionProvider", "/lib.so")
    assert plugin.devices == ()
    assert plugin.problem is not None
    assert "with code 0: no message" in plugin.problem


def test_a_provider_that_nobody_asks_for_is_not_loaded() -> None:
    assert probe_runtime({}).devices == ()
    assert probe_runtime({"CPUExecutionProvider": None}).devices == ()


def test_a_device_that_is_no_longer_there_moves_a_saved_plan(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is written down: first with an NPU, then without."""
    npu = DeviceFacts(
        provider="QNNExecutionProvider", index=0, kind="NPU", vendor="Qualcomm", name="NPU", library="/q.so"
    )
    monkeypatch.setattr("ortdeploy.runtime.probe.find_library", lambda _provider: "/q.so")
    monkeypatch.setattr("ortdeploy.runtime.probe.probe_plugin", lambda _name, _library: PluginFacts(devices=(npu,)))
    monkeypatch.setattr("ortdeploy.runtime.probe.find_missing", lambda _library, _names: frozenset())
    write(tmp_path)
    assert cli("plan", tmp_path / "m.yaml", "--out", tmp_path / "plan.json").code == 0
    monkeypatch.setattr(
        "ortdeploy.runtime.probe.probe_plugin", lambda _name, _library: PluginFacts(problem="It offers no device here.")
    )
    refused = cli("apply", tmp_path / "plan.json")
    assert refused.code == 1
    assert "The device is not what the plan was made from" in refused.out


@needs_qnn
def test_a_plan_of_several_manifests_rests_for_each_on_its_own_devices(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text()
    (tmp_path / "other.yaml").write_text(
        text.replace("{provider: QNN, options: {backend_type: htp}}, CPU", "CPU").replace("path: out", "path: out2")
    )
    assert run_process(["plan", "m.yaml", "other.yaml", "--out", "plan.json"], cwd=tmp_path).code == 0
    applied = run_process(["apply", "plan.json"], cwd=tmp_path)
    assert applied.code == 0, applied.out
