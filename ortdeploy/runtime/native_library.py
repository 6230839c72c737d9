"""Whether the shared library of a provider that is built into the wheel can be loaded here.

`onnxruntime.get_available_providers()` lists CUDA and the like by what was compiled; a missing libcublasLt.so or
libcudnn.so shows only in a log line, and the session runs on the CPU. The library is loaded in a process of its own:
`python -m ortdeploy.runtime.native_library PATH`.
"""

import ctypes
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort

from ortdeploy.process.child import child_command
from ortdeploy.providers.catalogue import find_provider

_SECONDS = 60
_FILES = {"NvTensorRTRTX": "nv_tensorrt_rtx"}
_PREFIX, _SUFFIX = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")


def loading_problem(name: str) -> str | None:
    """Return a sentence on why a built-in provider's library cannot be loaded; None where it can, or has none."""
    provider = find_provider(name)
    if provider is None:
        return None
    library = (
        _folder() / f"{_PREFIX}onnxruntime_providers_{_FILES.get(provider.short, provider.short.lower())}{_SUFFIX}"
    )
    if not library.is_file():
        return None
    done = subprocess.run(  # noqa: S603  our own module
        child_command("ortdeploy.runtime.native_library", str(library)),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return f"Its library {library.name} cannot be loaded: {lines[-1] if lines else f'code {done.returncode}'}."


def preload() -> None:
    """Load CUDA and cuDNN from where pip's nvidia packages put them, if this wheel wants them."""
    ort.preload_dlls()


def _folder() -> Path:
    return Path(ort.__file__).parent / "capi"


def main() -> None:
    """Be the child: load what the provider's library needs, then the library."""
    preload()
    library = Path(sys.argv[1])
    try:
        shared = library.with_name(f"{_PREFIX}onnxruntime_providers_shared{_SUFFIX}")
        ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
