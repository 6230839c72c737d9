"""Whether the shared library of a provider that is built into the wheel, and those of its options, can be loaded here.

`onnxruntime.get_available_providers()` lists CUDA and the like by what was compiled; a missing libcublasLt.so or
libcudnn.so shows only in a log line, and the session runs on the CPU. The library is loaded in a process of its own.
"""

import ctypes
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ortdeploy.process.child import CRASHES, Answer, Asked, ask, how_it_ended
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.library import ort, preload

_SECONDS = 60
_FILES = {"NvTensorRTRTX": "nv_tensorrt_rtx"}
_PREFIX, _SUFFIX = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")


def loading_problem(name: str) -> str | None:
    """Return a sentence on why a built-in provider's library cannot be loaded; None if it can, or has none."""
    library = own_library(name)
    if library is None:
        return None
    done = ask(__name__, str(library), seconds=_SECONDS)
    if done.late:
        return f"Its library {library.name} was not loaded within {_SECONDS} s."
    if done.code == 0 and not done.messages:
        return None
    return f"Its library {library.name} cannot be loaded: {_why(done)}."


def _why(done: Answer) -> str:
    """Return the loader's words, or how the child ended: what it printed before a crash is about other libraries."""
    if done.messages:
        return str(done.messages[0]["problem"])
    return f"its process {how_it_ended(done.code)}" if done.code in CRASHES or not done.last_words else done.last_words


def own_library(name: str) -> Path | None:
    """Return the library that a wheel has for one built-in provider; None for one inside of ONNX Runtime's own."""
    provider = find_provider(name)
    short = "" if provider is None else _FILES.get(provider.short, provider.short.lower())
    library = _folder() / f"{_PREFIX}onnxruntime_providers_{short}{_SUFFIX}"
    return library if library.is_file() else None


def find_missing(plugin: str | None, names: Collection[str]) -> frozenset[str]:
    """Return which libraries are neither beside the provider's own nor found by the system, which loads them.

    `plugin` is the provider's library; None for one that is built into the wheel.
    """
    folder = _folder() if plugin is None else Path(plugin).parent
    elsewhere = [name for name in names if not (folder / name).is_file()]
    if not elsewhere:
        return frozenset()
    done = ask(__name__, elsewhere, seconds=_SECONDS)
    return frozenset(elsewhere) - frozenset(message["loaded"] for message in done.messages)


def _folder() -> Path:
    return Path(ort.__file__).parent / "capi"


def main(asked: Asked) -> None:
    """Be the child: load what the provider's library needs, then the library; or each of several, by their names."""
    if isinstance(asked.request, list):
        for name in asked.request:
            with suppress(OSError):
                ctypes.CDLL(name)
                asked.say(loaded=name)
        return
    preload()
    library = Path(asked.request)
    shared = library.with_name(f"{_PREFIX}onnxruntime_providers_shared{_SUFFIX}")
    try:
        ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        asked.say(problem=str(error))
