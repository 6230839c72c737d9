"""ONNX Runtime's telemetry is switched off before anything else is asked of it."""

import importlib
import re
from pathlib import Path

import onnxruntime
import pytest

import ortdeploy.runtime
from ortdeploy.runtime import library


def test_telemetry_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: called.append(True))
    importlib.reload(library)
    assert called == [True]


def test_no_other_module_gets_it_elsewhere() -> None:
    folder = Path(ortdeploy.runtime.__path__[0])
    direct = [
        path.name
        for path in folder.glob("*.py")
        if re.search(r"^\s*import onnxruntime\b", path.read_text(), re.MULTILINE)
    ]
    assert direct == ["library.py"]
