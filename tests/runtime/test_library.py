"""The library of ONNX Runtime is told from another one by its files."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortdeploy.runtime import library


@pytest.fixture
def capi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of an onnxruntime with its library."""
    folder = tmp_path / "onnxruntime/capi"
    folder.mkdir(parents=True)
    (folder / "onnxruntime_pybind11_state.cpython-311.so").write_bytes(b"one")
    (folder / "session.py").write_text("")
    monkeypatch.setattr(library.ort, "__file__", str(folder.parent / "__init__.py"))
    return folder


def test_the_same_library_has_the_same_id(capi: Path) -> None:
    before = library.library_id()
    (capi / "session.py").write_text("# another")
    assert library.library_id() == before


@pytest.mark.parametrize("name", ["onnxruntime_pybind11_state.cpython-311.so", "libonnxruntime.so.1.32.0", "ort.dll"])
def test_an_exchanged_or_added_library_has_another(capi: Path, name: str) -> None:
    before = library.library_id()
    (capi / name).write_bytes(b"other")
    assert library.library_id() != before


@pytest.mark.usefixtures("capi")
def test_another_version_or_start_of_the_machine_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.library_id()
    monkeypatch.setattr(library, "boot_id", lambda: "another")
    after = library.library_id()
    monkeypatch.setattr(library.ort, "__version__", "0.1")
    assert len({before, after, library.library_id()}) == 3


def test_telemetry_is_switched_off_before_anything_else_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the call does can be seen on Windows alone."""
    called: list[str] = []
    monkeypatch.setattr(library.ort, "disable_telemetry_events", lambda: called.append("off"))
    loaded = importlib.util.find_spec(library.__name__)
    assert loaded is not None
    assert loaded.loader is not None
    loaded.loader.exec_module(importlib.util.module_from_spec(loaded))
    assert called == ["off"]


_OF_CI = {"CI", "GITHUB_ACTIONS", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "TF_BUILD", "XDG_CACHE_HOME"}
"""Variables with which ONNX Runtime sends nothing on its own, and the one that moves what it keeps until it has sent it."""


@pytest.mark.process
@pytest.mark.quick("library")
@pytest.mark.parametrize("module", ["kernels", "library", "session"])
def test_no_event_is_kept_to_be_sent_whichever_module_loads_onnx_runtime(tmp_path: Path, module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_CI}
    load = f"import ortdeploy.runtime.{module}"
    subprocess.run([sys.executable, "-c", load], env={**environment, "HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("onnxruntime.db")) == []
