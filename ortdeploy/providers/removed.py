"""Names of execution providers that no Python package of ONNX Runtime can load, any more or ever.

A package may be one that is built from source: those providers are in the catalogue. Sources: the provider list of
wheels (`onnxruntime.get_all_providers()`), release notes, the documentation of onnxruntime-web, and what the Python
binding creates (onnxruntime_pybind_state.cc).
"""

from msgspec import Struct

from ortdeploy.providers.catalogue import folded


class GoneProvider(Struct, frozen=True):
    """A provider's full name, why no session here can have it, and what to use instead; None: nothing replaces it."""

    name: str
    why: str
    instead: str | None = None

    @property
    def advice(self) -> str:
        """What to write instead."""
        return f"Use {self.instead} instead." if self.instead else "Nothing replaces it."


GONE: tuple[GoneProvider, ...] = (
    GoneProvider("ArmNNExecutionProvider", "was removed from ONNX Runtime in 1.25", "CPU"),
    GoneProvider("JsExecutionProvider", "runs in browsers alone, in onnxruntime-web", "WebGPU"),
    GoneProvider("NGRAPHExecutionProvider", "was removed from ONNX Runtime in 1.6"),
    GoneProvider("NnapiExecutionProvider", "runs on Android alone, without Python"),
    GoneProvider("NupharExecutionProvider", "was removed from ONNX Runtime in 1.13"),
    GoneProvider("ROCMExecutionProvider", "was removed from ONNX Runtime in 1.23", "MIGraphX"),
    GoneProvider("SNPEExecutionProvider", "is known to the C API alone, and not to Python", "QNN"),
    GoneProvider("TvmExecutionProvider", "was removed from ONNX Runtime in 1.21"),
    GoneProvider("WebNNExecutionProvider", "runs in browsers alone, in onnxruntime-web"),
)

_BY_NAME = {folded(one.name): one for one in GONE}


def find_gone(name: str) -> GoneProvider | None:
    """Return the provider of a name as people write it, if it is one of these."""
    return _BY_NAME.get(folded(name))


def render_gone(provider: GoneProvider) -> str:
    """Return the page that `ortdeploy explain` prints."""
    return f"{provider.name}\n  It {provider.why}. {provider.advice}"
