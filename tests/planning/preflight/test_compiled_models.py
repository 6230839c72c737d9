"""A compiled model is asked about where its provider is; no answer is no refusal."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.facts import make_deployment
from support.specs import MANIFEST, make_spec

from ortdeploy.facts.host import DeviceFacts
from ortdeploy.facts.preflight import UNSUPPORTED, CompiledModel
from ortdeploy.planning.preflight import compiled_models
from ortdeploy.planning.preflight.compiled_models import ask_about_compiled

QNN = "QNNExecutionProvider"
MODEL = {
    "inputs": {"image": "float32[batch,1,8,8]"},
    "outputs": {"scores": "float32[batch,10]"},
    "compiled_by": [QNN],
    "metadata": {f"ep_compatibility_info.{QNN}": "v2:68"},
}
FACTS: Mapping[str, Any] = {"devices": [f"{QNN} 0 NPU Qualcomm NPU"], "models": {"digits": MODEL}}
CHAIN = MANIFEST.replace("digits.onnx}", "digits.onnx, providers: [{provider: QNN, options: {backend_type: htp}}]}")


def answers(monkeypatch: pytest.MonkeyPatch, facts: Mapping[str, Any], **flags: Any) -> dict[str, Any]:
    def ask(device: DeviceFacts, compiled: str) -> tuple[str, str]:
        return UNSUPPORTED, f"{device.provider} 2.7.0, asked for {compiled}"

    monkeypatch.setattr(compiled_models, "ask_compatibility", ask)
    arguments = {"rejected": (), "elsewhere": False, **flags}
    return ask_about_compiled(make_deployment(make_spec(CHAIN), facts), **arguments)


def test_the_device_of_the_chain_is_asked_with_the_text_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{QNN} 2.7.0, asked for v2:68"
    found = CompiledModel(provider=QNN, session="digits", verdict=UNSUPPORTED, compiled="v2:68", here=here)
    assert answers(monkeypatch, FACTS) == {"digits": (found,)}


@pytest.mark.parametrize(
    ("facts", "flags"),
    [
        (FACTS, {"elsewhere": True}),
        (FACTS, {"rejected": {"digits"}}),
        ({**FACTS, "devices": []}, {}),
        ({**FACTS, "models": {"digits": {**MODEL, "metadata": {}}}}, {}),
        ({**FACTS, "models": {"digits": {**MODEL, "compiled_by": []}}}, {}),
    ],
)
def test_nobody_is_asked_of_another_machine_or_without_a_text_or_a_device(
    monkeypatch: pytest.MonkeyPatch, facts: Mapping[str, Any], flags: Mapping[str, Any]
) -> None:
    assert answers(monkeypatch, facts, **flags) == {}


def test_a_compiled_model_is_not_compared_with_the_cpu() -> None:
    (model,) = make_deployment(make_spec(CHAIN), FACTS).models
    assert not model.is_compared
    (plain,) = make_deployment(make_spec(CHAIN), {**FACTS, "models": {}}).models
    assert plain.is_compared
