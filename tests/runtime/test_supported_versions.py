"""What this ONNX Runtime can load at most, as it tells itself."""

from pathlib import Path

import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortdeploy.planning.devices.device_file import load_device
from ortdeploy.runtime.supported_versions import find_limits
from ortdeploy.versions import TESTED_WITH, release_numbers, runtime_version


def save(path: Path, ir_version: int, opsets: dict[str, int]) -> Path:
    """A model that hands on what it takes; by hand, for the onnx package may not know such versions yet."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=ir_version).SerializeToString())
    return path


def loads(path: Path) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        return False
    return True


def test_the_limits_are_where_onnx_runtime_begins_to_refuse(tmp_path: Path) -> None:
    ir_version, opsets = find_limits()
    assert ir_version is not None
    assert set(opsets) == {"ai.onnx", "ai.onnx.ml"}
    for more, loaded in ((0, True), (1, False)):
        assert loads(save(tmp_path / "ir.onnx", ir_version + more, {"": 17})) is loaded
        for domain, version in opsets.items():
            name = domain.removeprefix("ai.onnx") and domain
            imports = {"": 17, name: version + more} if name else {"": version + more}
            assert loads(save(tmp_path / f"{domain}.onnx", 10, imports)) is loaded


def test_nothing_is_said_of_opsets_that_the_user_lets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_limits()
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    assert find_limits() == (before[0], {})


def test_limits_of_versions_are_what_they_say() -> None:
    """So that a device file may leave them out."""
    minor = ".".join(map(str, release_numbers(runtime_version())[:2]))
    assert TESTED_WITH.get(minor, find_limits()) == find_limits()


@pytest.mark.parametrize(("version", "known"), [("1.31.0", True), ("1.32rc1", True), ("99.1.0", False)])
def test_a_device_file_may_leave_limits_out(tmp_path: Path, version: str, *, known: bool) -> None:
    (tmp_path / "box.yaml").write_text(f"device_version: 1\nruntime: {{version: {version}, providers: [CPU]}}\n")
    host, problems = load_device(str(tmp_path / "box.yaml"))
    assert host is not None
    assert problems == ()
    assert bool(host.runtime.max_ir_version and host.runtime.max_opsets) is known
