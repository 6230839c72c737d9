"""`ortdeploy check`: golden inputs and outputs in both layouts, on every session, each ending in a result."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli, run_process
from onnx import TensorProto, helper, numpy_helper
from support.models import lora_model, make_adapter, save_model, scale_model
from support.plugins import needs_qnn

from ortdeploy.checks.run import CheckResult
from ortdeploy.cli.commands import check
from ortdeploy.cli.commands.check import run_checks
from ortdeploy.planning.golden_checks import plan_checks
from ortdeploy.process.child import child_command

MANIFEST = """\
version: 1
models:
  double: {path: double.onnx, checks: [checks]}
"""
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def write_pb(folder: Path, number: int, **arrays: np.ndarray) -> Path:
    """A data set in onnx's layout: input_0=…, output_0=…"""
    path = folder / f"test_data_set_{number}"
    path.mkdir(parents=True)
    for name, array in arrays.items():
        (path / f"{name}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


def results(cli: Cli, folder: Path, *arguments: str) -> list[CheckResult]:
    answer = cli("check", folder / "m.yaml", "--format", "json", *arguments)
    assert answer.json["format_version"] == 1
    found = [CheckResult(**one) for one in answer.json["checks"]]
    assert (answer.code == 0) == all(one.status == "passed" for one in found)
    return found


def test_data_sets_in_onnxs_layout_pass_or_say_what_differs(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    write_pb(folder / "checks", 10, input_0=X, output_0=X * 2 + np.float32(1e-6))
    write_pb(folder / "checks", 2, input_0=X, output_0=np.where(X == 3, 7, X * 2).astype(np.float32))
    first, second, third = results(cli, folder)
    assert [one.check for one in (first, second, third)] == [f"checks/test_data_set_{n}" for n in (0, 2, 10)]
    assert (first.model, first.session, first.status, first.max_abs_diff) == ("double", "double", "passed", 0.0)
    assert (second.status, second.message) == ("failed", "output y: 1 of 8 values differ by up to 1")
    assert third.status == "passed"
    assert third.max_abs_diff == pytest.approx(1e-6, rel=0.2)


def test_text_is_one_line_a_data_set_and_a_count(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    write_pb(folder / "checks", 1, input_0=X, output_0=X)
    shown = cli("check", folder / "m.yaml")
    assert shown.code == 1
    assert shown.out == (
        "passed  double on double: checks/test_data_set_0\n"
        "failed  double on double: checks/test_data_set_1 (largest difference 7): "
        "output y: 7 of 8 values differ by up to 7\n1 of 2 checks passed.\n"
    )
    assert "passed  " not in cli("check", folder / "m.yaml", "-q").out


def test_npz_pairs_and_tolerances_by_output(cli: Cli, folder: Path) -> None:
    (folder / "checks").mkdir()
    np.savez(folder / "checks/inputs.npz", x=X)
    np.savez(folder / "checks/outputs.npz", y=X * 2 + np.float32(0.5))
    assert [one.status for one in results(cli, folder)] == ["failed"]
    loose = "{path: checks, outputs: {y: {atol: 0.6}}}"
    (folder / "m.yaml").write_text(MANIFEST.replace("[checks]", f"[checks, {loose}, {{path: checks, atol: 1}}]"))
    assert [one.status for one in results(cli, folder)] == ["failed", "passed", "passed"]


def test_what_cannot_be_run_is_an_error_with_its_reason(cli: Cli, folder: Path) -> None:
    (only,) = results(cli, folder)
    assert (only.status, only.check) == ("error", "checks")
    write_pb(folder / "checks", 0, input_0=X.astype(np.float64), output_0=X)
    write_pb(folder / "checks", 1, input_0=X)
    path = write_pb(folder / "checks", 2, input_0=X, output_0=X)
    (path / "input_0.pb").write_bytes(b"\xff\xff not a tensor")
    np.savez(write_pb(folder / "checks", 3) / "inputs.npz", x=X)
    np.savez(write_pb(folder / "checks", 4) / "inputs.npz", x=X)
    np.savez(folder / "checks/test_data_set_4/outputs.npz", z=X)
    found = results(cli, folder)
    assert {one.status for one in found} == {"error"}
    words = ["Unexpected input data type", "no outputs to", "is not a tensor", "no outputs to", "no output z"]
    assert all(word in (one.message or "") for one, word in zip(found, words, strict=True)), found


def test_golden_data_that_is_a_link_out_of_the_tree_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    folder.mkdir()
    scale_model(folder / "double.onnx")
    (folder / "m.yaml").write_text(MANIFEST)
    write_pb(elsewhere, 0, input_0=X, output_0=X * 2)
    checked = folder / "checks/test_data_set_0"
    checked.mkdir(parents=True)
    for name in ("input_0.pb", "output_0.pb"):
        (checked / name).symlink_to(elsewhere / "test_data_set_0" / name)
    refused = cli("check", folder)
    assert refused.code == 1
    assert "[link-out-of-tree]" in refused.words
    assert cli("check", folder, "--allow-root", elsewhere).code == 0
    (checked / "input_0.pb").unlink()
    (checked / "output_0.pb").unlink()
    checked.rmdir()
    checked.symlink_to(elsewhere / "test_data_set_0")
    assert cli("check", folder).code == 1
    (elsewhere / "test_data_set_0").rename(folder / "kept")
    checked.unlink()
    checked.symlink_to(folder / "kept")
    assert cli("check", folder).code == 0


def test_each_session_is_checked(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    sessions = "sessions: [{name: a, providers: [CPU], count: 3}, {name: b, providers: [CPU]}]"
    text = MANIFEST.replace("checks: [checks]", f"checks: [checks], {sessions}") + "  other: {path: double.onnx}\n"
    (folder / "m.yaml").write_text(text)
    assert [(one.session, one.status) for one in results(cli, folder)] == [("a", "passed"), ("b", "passed")]
    assert len(results(cli, folder, "--model", "double")) == 2
    assert cli("check", folder / "m.yaml", "--model", "doubel").code == 64


def test_a_manifest_that_is_refused_is_not_checked(cli: Cli, folder: Path) -> None:
    (folder / "double.onnx").write_bytes(b"")
    refused = cli("check", folder / "m.yaml")
    assert refused.code == 1
    assert "error[unreadable-model]" in refused.err
    (folder / "m.yaml").write_text(MANIFEST.replace("[checks]", "[../elsewhere]"))
    assert "error[path-outside-tree]" in cli("check", folder / "m.yaml").err


def test_jobs_are_not_in_the_way(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    job = "jobs:\n  run: {model: double, input: {path: gone.npy}, output: {path: out}}\n"
    (folder / "m.yaml").write_text(MANIFEST + job)
    assert [one.status for one in results(cli, folder)] == ["passed"]


def test_a_gate_lets_jobs_run_only_when_its_checks_pass(cli: Cli, folder: Path) -> None:
    np.save(folder / "data.npy", X)
    job = "jobs:\n  run: {model: double, input: {path: data*.npy}, output: {path: out}}\n"
    (folder / "m.yaml").write_text(MANIFEST.replace("[checks]", "[checks], gate: true") + job)
    path = write_pb(folder / "checks", 0, input_0=X, output_0=X)
    refused = cli("apply", folder / "m.yaml", "--format", "json")
    assert refused.code == 1
    (job_result,) = refused.json["jobs"]
    assert job_result["status"] == "failed"
    assert "golden check checks/test_data_set_0 of model double on session double failed" in job_result["reason"]
    assert not (folder / "out").exists()
    assert cli("plan", folder / "m.yaml", "--out", folder / "p.json").code == 0
    assert cli("apply", folder / "p.json").code == 1
    (path / "output_0.pb").write_bytes(numpy_helper.from_array(X * 2).SerializeToString())
    assert cli("apply", folder / "p.json").code == 0
    assert (folder / "out/part-00000000.jsonl").is_file()
    assert "nothing to do" in cli("apply", folder / "m.yaml").out
    np.save(folder / "data2.npy", X)
    (path / "output_0.pb").write_bytes(numpy_helper.from_array(X).SerializeToString())
    (again,) = cli("apply", folder / "m.yaml", "--format", "json").json["jobs"]
    assert (again["status"], again["committed"]) == ("failed", len(X))


@pytest.mark.parametrize("arguments", [(), ("--model", "double"), ("--record",)])
def test_a_check_that_checks_nothing_fails(cli: Cli, folder: Path, arguments: tuple[str, ...]) -> None:
    text = "version: 1\nmodels:\n  double: {path: double.onnx}\n"
    (folder / "m.yaml").write_text(text)
    refused = cli("check", folder / "m.yaml", *arguments)
    assert refused.code == 1
    assert "m.yaml:3:3: error[nothing-to-check]" in refused.err
    assert 'Model "double" has golden inputs' not in refused.err
    (folder / "m.yaml").write_text(text.replace("onnx}", "onnx, checks: []}"))
    said = cli("check", folder / "m.yaml", *arguments)
    assert (said.code, said.err) == (0, "")
    assert "0 of 0 checks passed." in said.out


def test_a_model_without_checks_beside_others_is_asked_for_by_name(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    (folder / "m.yaml").write_text(MANIFEST + "  other: {path: double.onnx}\n")
    assert cli("check", folder / "m.yaml").code == 0
    refused = cli("check", folder / "m.yaml", "--model", "other")
    assert refused.code == 1
    assert 'Model "other" has no golden inputs' in refused.err


def test_a_preset_can_say_that_it_has_no_checks(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "deployments/models/painter", tmp_path / "models/painter")
    text = (REPOSITORY / "deployments/painter.yaml").read_text()
    (tmp_path / "m.yaml").write_text(text)
    assert "error[nothing-to-check]" in cli("check", tmp_path / "m.yaml").err
    (tmp_path / "m.yaml").write_text(re.sub(r"(\n +)(preset: )", r"\1checks: []\1\2", text))
    assert cli("check", tmp_path / "m.yaml").code == 0


@pytest.mark.parametrize("missing", ["data sets", "outputs"])
def test_golden_folders_with_nothing_to_compare_fail_and_keep_a_gate_shut(cli: Cli, folder: Path, missing: str) -> None:
    (folder / "checks").mkdir()
    if missing == "outputs":
        write_pb(folder / "checks", 0, input_0=X)
    (one,) = results(cli, folder)
    assert one.status == "error"
    np.save(folder / "data.npy", X)
    job = "jobs:\n  run: {model: double, input: {path: data.npy}, output: {path: out}}\n"
    (folder / "m.yaml").write_text(MANIFEST + job)
    assert cli("plan", folder / "m.yaml").code == 0
    (folder / "m.yaml").write_text(MANIFEST.replace("[checks]", "[checks], gate: true") + job)
    refused = cli("plan", folder / "m.yaml")
    assert refused.code == 1
    assert "error[unusable-gate]" in refused.out
    assert "checks" in refused.out


def test_outputs_are_recorded_from_the_cpu_provider_and_then_pass(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X)
    write_pb(folder / "checks", 1, input_0=X, output_0=X)
    np.savez(write_pb(folder / "checks", 2) / "inputs.npz", x=X)
    sessions = "sessions: [{name: a, providers: [CPU]}, {name: b, providers: [CPU]}]"
    text = f"checks: [checks], session: {{optimized_model_filepath: o.onnx}}, {sessions}"
    (folder / "m.yaml").write_text(MANIFEST.replace("checks: [checks]", text))
    recorded = results(cli, folder, "--record")
    assert [(one.session, one.status, one.message) for one in recorded] == [("cpu", "passed", "recorded")] * 3
    assert not (folder / "o.onnx").exists()
    assert [(one.session, one.status) for one in results(cli, folder)] == [("a", "passed")] * 3 + [("b", "passed")] * 3
    with np.load(folder / "checks/test_data_set_2/outputs.npz") as arrays:
        assert arrays["y"].tolist() == (X * 2).tolist()


def test_outputs_of_any_name_and_text_are_recorded_as_arrays(cli: Cli, folder: Path) -> None:
    nodes = [helper.make_node("Identity", ["text"], ["same"]), helper.make_node("Shape", ["text"], ["file"])]
    outputs: dict[str, tuple[int, list[str | int]]] = {
        "same": (TensorProto.STRING, [2]),
        "file": (TensorProto.INT64, [1]),
    }
    save_model(folder / "double.onnx", nodes, {"text": (TensorProto.STRING, [2])}, outputs)
    path = write_pb(folder / "checks", 0)
    np.savez(path / "inputs.npz", text=np.array(["a", "ß"]))
    assert [one.message for one in results(cli, folder, "--record")] == ["recorded"]
    assert [one.status for one in results(cli, folder)] == ["passed"]
    np.savez(path / "inputs.npz", text=np.array(["a", "b"]))
    assert [one.message for one in results(cli, folder)] == ["output same: 1 of 2 values differ"]


def test_sequences_text_and_whole_numbers_are_compared_exactly(cli: Cli, folder: Path) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1),
        helper.make_node("Identity", ["text"], ["same"]),
        helper.make_node("Shape", ["x"], ["size"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]), helper.make_tensor_value_info("text", 8, [2])],
        [
            helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("same", TensorProto.STRING, [2]),
            helper.make_tensor_value_info("size", TensorProto.INT64, [2]),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "double.onnx"
    )
    words = np.array(["a", "ß"], dtype=object)
    path = write_pb(folder / "checks", 0, input_0=X, input_1=words, output_1=words, output_2=np.array([2, 4]))
    (path / "output_0.pb").write_bytes(numpy_helper.from_list([X[:1], X[1:]]).SerializeToString())
    assert [one.status for one in results(cli, folder)] == ["passed"]
    (path / "output_0.pb").write_bytes(numpy_helper.from_list([X[:1]]).SerializeToString())
    (path / "output_2.pb").write_bytes(numpy_helper.from_array(np.array([2, 5])).SerializeToString())
    (failed,) = results(cli, folder)
    assert [one.message for one in results(cli, folder, "--record")] == ["recorded"]
    assert [one.status for one in results(cli, folder)] == ["passed"]
    assert failed.message == "output parts: it is not a sequence of 1; output size: 1 of 2 values differ"


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(
    ("number", "name"),
    [(16, "bfloat16"), (17, "float8_e4m3fn"), (18, "float8_e4m3fnuz"), (19, "float8_e5m2"), (20, "float8_e5m2fnuz")],
)
def test_element_types_that_numpy_does_not_have_go_in_and_out(cli: Cli, folder: Path, number: int, name: str) -> None:
    narrow, wide = (number, [2, 4]), (TensorProto.FLOAT, [2, 4])
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT), helper.make_node("Identity", ["x"], ["z"])]
    save_model(folder / "double.onnx", nodes, {"x": narrow}, {"y": wide, "z": narrow}, opset=21, ir_version=10)
    values = X.astype(getattr(ml_dtypes, name))
    write_pb(folder / "checks", 0, input_0=values, output_0=values.astype(np.float32), output_1=values)
    (passed,) = results(cli, folder)
    assert (passed.status, passed.message) == ("passed", None)


def test_adapters_are_checked_with_their_model_and_recorded(cli: Cli, tmp_path: Path) -> None:
    lora_model(tmp_path / "double.onnx")
    a, b = np.ones((4, 2), np.float32), np.full((2, 4), 0.5, np.float32)
    make_adapter(tmp_path / "fr.onnx_adapter", lora_A=a, lora_B=b)
    make_adapter(tmp_path / "it.onnx_adapter", lora_A=a, lora_B=-b)
    adapters = "".join(
        f"  {name}: {{path: {name}.onnx_adapter, model: double, checks: [checks/{name}]}}\n" for name in ("fr", "it")
    )
    (tmp_path / "m.yaml").write_text(f"{MANIFEST}adapters:\n{adapters}")
    write_pb(tmp_path / "checks", 0, input_0=X, output_0=X)
    write_pb(tmp_path / "checks/fr", 0, input_0=X, output_0=X + X @ a @ b)
    write_pb(tmp_path / "checks/it", 0, input_0=X)
    base, french, italian = results(cli, tmp_path)
    assert (base.adapter, base.status) == (None, "passed")
    assert (french.adapter, french.check, french.status) == ("fr", "checks/fr/test_data_set_0", "passed")
    assert (italian.adapter, italian.status, italian.message) == ("it", "error", "it has no outputs to compare with")
    assert [one.message for one in results(cli, tmp_path, "--record")] == ["recorded"] * 3
    assert [one.status for one in results(cli, tmp_path)] == ["passed"] * 3
    assert "passed  double with it on double: checks/it/test_data_set_0" in cli("check", tmp_path / "m.yaml").out
    make_adapter(tmp_path / "fr.onnx_adapter", lora_A=a, lora_B=2 * b)
    (wrong,) = [one for one in results(cli, tmp_path) if one.status != "passed"]
    assert (wrong.adapter, wrong.status) == ("fr", "failed")


def test_a_data_set_of_zeros_passes_and_proves_nothing(cli: Cli, folder: Path) -> None:
    write_pb(folder / "checks", 0, input_0=X * 0, output_0=X * 0)
    write_pb(folder / "checks", 1, input_0=X, output_0=X * 2)
    blank, other = results(cli, folder)
    assert (blank.status, blank.not_proven) == ("passed", "all values that are fed were equal")
    assert (other.status, other.not_proven) == ("passed", None)
    shown = cli("check", folder / "m.yaml", "--quiet").out
    assert "passed  double on double: checks/test_data_set_0: nothing is proven: all values that are fed were" in shown
    assert "checks/test_data_set_1" not in shown
    assert "2 of 2 checks passed, 1 without proving anything: record other inputs." in shown


@pytest.mark.parametrize(("share", "proves"), [(0.5, True), (1e-9, False)])
def test_a_data_set_that_the_model_passes_alone_proves_nothing_of_an_adapter(
    cli: Cli, tmp_path: Path, share: float, proves: bool
) -> None:
    lora_model(tmp_path / "double.onnx")
    a, b = np.ones((4, 2), np.float32), np.full((2, 4), share, np.float32)
    make_adapter(tmp_path / "fr.onnx_adapter", lora_A=a, lora_B=b)
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels:\n  double: {path: double.onnx}\nadapters:\n"
        "  fr: {path: fr.onnx_adapter, model: double, checks: [checks]}\n"
    )
    write_pb(tmp_path / "checks", 0, input_0=X, output_0=X + X @ a @ b)
    (found,) = results(cli, tmp_path)
    assert found.status == "passed"
    assert found.not_proven == (None if proves else "all results were equal without the adapter")


@needs_qnn
def test_a_session_that_aborts_is_an_error_and_the_others_go_on(folder: Path) -> None:
    save_model(
        folder / "double.onnx",
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        {"x": (TensorProto.FLOAT, (2, 4))},
        {"y": (TensorProto.FLOAT, (2, 4))},
        {"two": np.array(2, np.float32)},
    )
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    sessions = "sessions: [{name: npu, providers: [{provider: QNN, options: {backend_type: htp}}]}, {name: cpu, providers: [CPU]}]"
    (folder / "m.yaml").write_text(MANIFEST.replace("checks: [checks]", f"checks: [checks], {sessions}"))
    checked = run_process(["check", "m.yaml"], cwd=folder)
    assert checked.code == 0, checked.out + checked.err
    assert "passed  double on npu" in checked.out


def test_a_child_that_is_gone_is_an_error_of_the_session_that_it_ran(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    script = ["/bin/sh", "-c", "echo '{\"ended\": 0}'; kill -6 $$"]
    monkeypatch.setattr(
        "ortdeploy.process.child.child_command",
        lambda module: script if module == "ortdeploy.cli.children.check" else child_command(module),
    )
    (only,) = results(cli, folder)
    assert (only.status, only.message) == ("error", "the process that ran it was ended by SIGABRT")
    assert list(run_checks((), None, ())) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links take rights on Windows")
@pytest.mark.parametrize("place", ["checks", "checks/test_data_set_0"])
def test_a_golden_folder_that_is_a_link_out_of_the_tree_is_neither_read_nor_written(
    cli: Cli, tmp_path: Path, place: str
) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "site2"
    scale_model(site / "double.onnx")
    (site / "m.yaml").write_text(MANIFEST)
    write_pb(elsewhere, 0, input_0=X, output_0=X)
    link = site / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere if place == "checks" else elsewhere / "test_data_set_0")
    before = (elsewhere / "test_data_set_0/output_0.pb").read_bytes()
    for flags in ((), ("--record",)):
        refused = cli("check", site / "m.yaml", *flags)
        assert refused.code == 1
        assert "[link-out-of-tree]" in refused.words
    assert (elsewhere / "test_data_set_0/output_0.pb").read_bytes() == before
    assert cli("check", site / "m.yaml", "--record", "--allow-root", elsewhere).code == 0
    assert (elsewhere / "test_data_set_0/output_0.pb").read_bytes() != before


@pytest.mark.skipif(sys.platform == "win32", reason="links take rights on Windows")
@pytest.mark.parametrize("flags", [(), ("--record",)])
def test_a_golden_folder_that_is_exchanged_for_a_link_after_planning_leads_nowhere(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}2"
    write_pb(folder / "checks", 0, input_0=X, output_0=X * 2)
    write_pb(elsewhere, 0, input_0=X, output_0=X)
    before = (elsewhere / "test_data_set_0/output_0.pb").read_bytes()

    def planned(*arguments: Any, **more: Any) -> Any:
        found = plan_checks(*arguments, **more)
        (folder / "checks").rename(folder / "aside")
        (folder / "checks").symlink_to(elsewhere)
        return found

    monkeypatch.setattr(check, "plan_checks", planned)
    (found,) = results(cli, folder, *flags)
    assert found.status == "error"
    assert "a link on the way leads out of the manifest's folder tree" in (found.message or "")
    assert (elsewhere / "test_data_set_0/output_0.pb").read_bytes() == before
