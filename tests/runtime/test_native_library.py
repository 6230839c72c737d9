"""Libraries of built-in providers: one that cannot be loaded makes its provider unavailable, with the reason."""

import signal
import sys
from pathlib import Path

import onnxruntime
import pytest

from ortdeploy.process.child import Answer
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.option_files import needed_libraries
from ortdeploy.runtime import native_library, probe
from ortdeploy.runtime.native_library import find_missing, loading_problem
from ortdeploy.runtime.probe import probe_runtime, runtime_packages


def test_a_provider_without_a_library_of_its_own_has_no_problem() -> None:
    assert loading_problem("CPUExecutionProvider") is None
    assert loading_problem("NopeExecutionProvider") is None


def test_a_library_that_cannot_be_loaded_is_named_with_the_loaders_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("libonnxruntime_providers_cuda.so", "libonnxruntime_providers_shared.so"):
        (tmp_path / name).write_bytes(b"not a library, as after a copy that was cut off")
    monkeypatch.setattr(native_library, "_folder", lambda: tmp_path)
    problem = loading_problem("CUDAExecutionProvider")
    assert problem is not None
    assert "libonnxruntime_providers_cuda.so cannot be loaded" in problem
    assert "file too short" in problem or "invalid ELF header" in problem


@pytest.mark.parametrize(
    ("code", "printed", "words"),
    [
        (-signal.SIGSEGV, "Please follow https://onnxruntime.ai/docs/install to install CUDA.\n", "SIGSEGV"),
        (1, "Traceback\nValueError: no\n", "ValueError: no"),
        (3, "", "code 3"),
    ],
)
def test_a_library_that_ends_the_process_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, printed: str, words: str
) -> None:
    """ONNX Runtime prints which of CUDA's libraries it does not find before anything is loaded."""
    (tmp_path / "libonnxruntime_providers_cuda.so").touch()
    monkeypatch.setattr(native_library, "_folder", lambda: tmp_path)
    monkeypatch.setattr(native_library, "ask", lambda *_, **__: Answer([], code, late=False, printed=printed))
    problem = loading_problem("CUDAExecutionProvider")
    assert problem is not None
    assert words in problem
    assert "Please follow" not in problem


def test_a_library_is_looked_for_beside_the_providers_own_and_by_the_system(tmp_path: Path) -> None:
    (tmp_path / "libbeside.so").touch()
    name_of_the_system = {"linux": "libc.so.6", "darwin": "libSystem.dylib", "win32": "kernel32.dll"}[sys.platform]
    names = ["libbeside.so", name_of_the_system, "libnowhere.so"]
    assert find_missing(str(tmp_path / "libprovider.so"), names) == {"libnowhere.so"}
    assert find_missing(None, names) == {"libbeside.so", "libnowhere.so"}


@pytest.mark.parametrize(
    ("provider", "options", "needed"),
    [
        ("QNN", {"backend_type": "cpu"}, {"backend_type": "QnnCpu"}),
        ("QNN", {"backend_path": "libOwn.so"}, {"backend_path": "libOwn.so"}),
        ("QNN", {"backend_path": "libs/libOwn.so", "op_packages": "Relu:libs/a.so:Own"}, {}),
        ("QNN", {"op_packages": "Relu:libA.so:Own"}, {"op_packages": "libA.so"}),
        ("TensorRT", {"trt_extra_plugin_lib_paths": "libs/a.so;libb.so"}, {"trt_extra_plugin_lib_paths": "libb.so"}),
        ("CPU", {"backend_type": "cpu"}, {}),
    ],
)
def test_options_decide_libraries(provider: str, options: dict[str, str], needed: dict[str, str]) -> None:
    found = dict(needed_libraries(find_provider(provider), options))
    assert found.keys() == needed.keys()
    assert all(name in found[option] for option, name in needed.items())


def test_its_provider_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: built_in)
    monkeypatch.setattr(probe, "loading_problem", lambda name: "No libcublasLt.so.13." if "CUDA" in name else None)
    facts = probe_runtime({"CUDAExecutionProvider": None, "CPUExecutionProvider": None})
    assert facts.available_providers == ("CPUExecutionProvider",)
    assert facts.plugin_problems == {"CUDAExecutionProvider": "No libcublasLt.so.13."}


def test_the_packages_that_carry_onnxruntime_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that lies in another folder is hidden by the first, and overwrites none of its files."""
    for name, file in (
        ("onnxruntime", "onnxruntime/__init__.py"),
        ("onnxruntime_gpu", "onnxruntime/__init__.py"),
        ("onnxruntime_qnn", "onnxruntime_qnn/__init__.py"),
    ):
        info = tmp_path / f"{name}-1.31.1.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{name}.txt,,\n{file},sha256=x,1\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.31.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert runtime_packages(tmp_path) == ("onnxruntime", "onnxruntime-gpu")
    assert probe_runtime({}).runtime_packages == runtime_packages(Path(onnxruntime.__file__).parents[1])
