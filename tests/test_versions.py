"""The versions for reports: that of ONNX Runtime, whichever package carries it."""

import sys
from pathlib import Path

import pytest

from ortdeploy.versions import versions

PACKAGES = {
    "onnxruntime-1.31.0": "onnxruntime/__init__.py",
    "onnxruntime_ep_webgpu-0.4.0": "onnxruntime_ep_webgpu/__init__.py",
    "onnxruntime_extensions-0.15.2": "onnxruntime_extensions/__init__.py",
    "onnxruntime_gpu-1.31.1": "onnxruntime/__init__.py",
}


@pytest.mark.parametrize(
    ("installed", "version"),
    [
        (["onnxruntime-1.31.0", "onnxruntime_extensions-0.15.2"], "1.31.0"),
        (
            ["onnxruntime_ep_webgpu-0.4.0", "onnxruntime_extensions-0.15.2", "onnxruntime_gpu-1.31.1"],
            "1.31.1 (onnxruntime-gpu)",
        ),
        (["onnxruntime_ep_webgpu-0.4.0", "onnxruntime_extensions-0.15.2"], "not installed"),
        ([], "not installed"),
    ],
)
def test_whichever_package_carries_onnxruntime_its_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[str], version: str
) -> None:
    for name in installed:
        info = tmp_path / f"{name}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{PACKAGES[name]},sha256=x,1\n{info.name}/RECORD,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions()["onnxruntime"] == version
