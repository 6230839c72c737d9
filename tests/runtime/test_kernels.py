"""Kernels of built-in providers: the CPU's are known in any case, those of others if a child survives the question."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from onnxruntime.capi import _pybind_state

from ortdeploy.facts.host import Kernel
from ortdeploy.process.child import Answer, Asked
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime import kernels
from ortdeploy.runtime.kernels import KnownKernels, other_kernels
from ortdeploy.runtime.library import ort

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"


@pytest.fixture
def _gpu_wheel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The providers of onnxruntime-gpu."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    other_kernels.cache_clear()
    yield
    other_kernels.cache_clear()


def never(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a child was started")


@pytest.mark.skipif(
    TENSORRT in ort.get_available_providers(), reason="ONNX Runtime crashes without TensorRT's libraries"
)
def test_the_kernels_of_the_cpu_are_those_that_onnx_runtime_lists() -> None:
    listed = [one for one in _pybind_state.get_all_opkernel_def() if one.provider == CPU]
    known = KnownKernels({})[CPU]
    assert {f"{one.domain or 'ai.onnx'}.{one.op_name}" for one in listed} == set(known)
    assert set(KnownKernels({})) == {CPU}


@pytest.mark.usefixtures("_gpu_wheel")
def test_the_cpus_need_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ask", never)
    assert CPU in KnownKernels({})
    assert KnownKernels({CUDA: {}})[CUDA] == {}


@pytest.mark.usefixtures("_gpu_wheel")
def test_a_child_that_crashes_leaves_the_others_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ask", lambda *_, **__: Answer([], -11, False, "Failed to load library"))
    known = KnownKernels({})
    assert CUDA not in known
    assert list(known) == [CPU]
    assert len(known) == 1


@pytest.mark.usefixtures("_gpu_wheel")
def test_what_a_child_tells_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"provider": CUDA, "kernels": {"ai.onnx.Erf": ["9-12 T=tensor(float)"]}}
    monkeypatch.setattr(kernels, "ask", lambda *_, **__: Answer([told], 0, False, ""))
    (kernel,) = KnownKernels({})[CUDA]["ai.onnx.Erf"]
    assert (kernel.first, kernel.last) == (9, 12)
    assert set(KnownKernels({})) == {CPU, CUDA}


def test_a_library_of_its_own_is_asked_as_a_plugin_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that CUDA's kernels are told where TensorRT's library cannot be loaded."""
    registered: list[str] = []

    def register(name: str, library: str) -> None:
        if name == TENSORRT:
            raise RuntimeError(f"{library} cannot be loaded")
        registered.append(name)

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.setattr(ort, "register_execution_provider_library", register)
    monkeypatch.setattr(_pybind_state, "get_all_opkernel_def", never)
    monkeypatch.setattr(kernels, "own_library", lambda name: None if name == CPU else Path(name))
    monkeypatch.setattr(kernels, "plugin_kernels", lambda _: {"ai.onnx.Erf": (Kernel(first=9, last=12, types={}),)})
    kernels.main(cast("Asked", SimpleNamespace(say=lambda **message: told.append(message))))
    assert registered == [CUDA]
    assert told == [{"provider": CUDA, "kernels": {"ai.onnx.Erf": ["9-12"]}}]


def test_providers_inside_of_the_library_are_told_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    listed = [
        SimpleNamespace(provider=name, domain="", op_name="Erf", version_range=(9, 12), type_constraints={})
        for name in (CPU, "DmlExecutionProvider")
    ]
    monkeypatch.setattr(kernels, "own_library", lambda _: None)
    monkeypatch.setattr(_pybind_state, "get_all_opkernel_def", lambda: listed)
    kernels.main(cast("Asked", SimpleNamespace(say=lambda **message: told.append(message))))
    assert told == [{"provider": "DmlExecutionProvider", "kernels": {"ai.onnx.Erf": ["9-12"]}}]
