"""Models that a provider has compiled elsewhere: what ONNX Runtime's interface says, and that they run."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import run_process
from support.models import scale_model
from support.plugins import needs_qnn, report

from ortdeploy.facts.host import DeviceFacts
from ortdeploy.facts.preflight import BETTER_ANEW, UNSUPPORTED
from ortdeploy.runtime import compiled_models
from ortdeploy.runtime.compiled_models import ask_compatibility, verdict_of
from ortdeploy.runtime.library import binding

VERDICTS = binding.OrtCompiledModelCompatibility


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (VERDICTS.EP_UNSUPPORTED, UNSUPPORTED),
        (VERDICTS.EP_SUPPORTED_PREFER_RECOMPILATION, BETTER_ANEW),
        (VERDICTS.EP_SUPPORTED_OPTIMAL, None),
        (VERDICTS.EP_NOT_APPLICABLE, None),
        (RuntimeError("only supports OrtHardwareDeviceType_NPU"), None),
    ],
)
def test_only_an_answer_against_the_model_counts(
    monkeypatch: pytest.MonkeyPatch, answer: Any, verdict: str | None
) -> None:
    def ask(_devices: object, compiled: str) -> Any:
        assert compiled == "v2:68"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(binding, "get_model_compatibility_for_ep_devices", ask)
    assert verdict_of(object(), "v2:68") == verdict


@pytest.mark.process
def test_a_library_that_cannot_be_loaded_gives_no_answer(tmp_path: Path) -> None:
    (tmp_path / "libnone.so").write_bytes(b"no library")
    device = DeviceFacts(
        provider="MineExecutionProvider",
        index=0,
        kind="NPU",
        vendor="",
        name="NPU",
        library=str(tmp_path / "libnone.so"),
    )
    assert ask_compatibility(device, "v2:68") is None


def test_the_metadata_is_named_as_onnx_runtime_names_it(tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.metadata_props.add(key=f"{compiled_models.METADATA}QNNExecutionProvider", value="v2:68")
    onnx.save(model, tmp_path / "m.onnx")
    found = binding.get_compatibility_info_from_model(str(tmp_path / "m.onnx"), "QNNExecutionProvider")
    assert found == "v2:68"


MANIFEST = """\
version: 1
models:
  m:
    path: {path}
    providers: [{{provider: QNN, options: {{backend_type: htp}}}}]
{more}jobs:
  run: {{model: m, input: {{path: data.npy}}, batch: {{size: 4}}, output: {{path: out}}}}
"""


@needs_qnn
@pytest.mark.slow
def test_a_model_compiled_elsewhere_runs_behind_its_provider_and_is_not_compared(tmp_path: Path) -> None:
    """On Linux the simulator of the NPU is no NPU, and QNN raises an error instead of an answer: that is no refusal."""
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4))
    more = "    cache: true\n    session: {free_dimension_overrides: {batch: 4}}\n"
    (tmp_path / "m.yaml").write_text(MANIFEST.format(path="m.onnx", more=more))
    assert run_process(["apply", "-q", "m.yaml"], cwd=tmp_path).code == 0
    (compiled,) = (tmp_path / ".ortdeploy/cache").rglob("model.onnx")
    shutil.copytree(compiled.parent, tmp_path / "shipped")
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / ".ortdeploy")
    (tmp_path / "m.yaml").write_text(MANIFEST.format(path="shipped/model.onnx", more=""))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out + applied.err
    assert "compiled-model" not in applied.out
    assert report(tmp_path)["placement"] == {"QNNExecutionProvider": 1}
