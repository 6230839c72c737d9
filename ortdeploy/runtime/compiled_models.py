"""Asks a plugin's provider, in a child process, whether it runs a model that was compiled elsewhere.

Such a model holds a text that the provider wrote when it compiled it; ONNX Runtime has the provider compare that with a
device. The parent calls `ask_compatibility`; the child runs `main`.
"""

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.host import DeviceFacts
from ortdeploy.facts.preflight import BETTER_ANEW, UNSUPPORTED
from ortdeploy.process.child import Asked, ask

METADATA = "ep_compatibility_info."
"""How the name of that text begins in a model's metadata; the provider's name follows."""
_SECONDS = 60


def ask_compatibility(device: DeviceFacts, compiled: str) -> tuple[str, str] | None:
    """Return UNSUPPORTED or BETTER_ANEW, and which provider says so; None if it takes the model, or does not answer."""
    done = ask(__name__, [device.provider, device.library, device.index, compiled], seconds=_SECONDS)
    answer = done.messages[-1] if done.messages and not done.late else {}
    verdict = answer.get("verdict")
    return (verdict, answer["here"]) if verdict in {UNSUPPORTED, BETTER_ANEW} else None


def main(asked: Asked) -> None:
    """Entry of the child process."""
    from ortdeploy.runtime.plugins import ep_devices, register  # noqa: PLC0415  importing may print

    provider, library, index, compiled = asked.request
    try:
        register(provider, library)
    except OrtdeployError:
        return
    device = ep_devices(provider)[index]
    asked.say(verdict=verdict_of(device, compiled), here=f"{provider} {device.ep_metadata.get('version', '')}".strip())


def verdict_of(device: object, compiled: str) -> str | None:
    """Return what ONNX Runtime's interface says of a device; None if it says that all is well, or says nothing."""
    from ortdeploy.runtime.library import binding  # noqa: PLC0415  only the child

    try:
        found = binding.get_model_compatibility_for_ep_devices([device], compiled)
    except Exception:  # noqa: BLE001  a provider that cannot tell raises errors of its own, and that is no refusal
        return None
    verdicts = binding.OrtCompiledModelCompatibility
    return {verdicts.EP_UNSUPPORTED: UNSUPPORTED, verdicts.EP_SUPPORTED_PREFER_RECOMPILATION: BETTER_ANEW}.get(found)
