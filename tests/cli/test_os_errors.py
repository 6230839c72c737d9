"""Faults of the machine and of the installation are told from bugs."""

import errno
import os
from pathlib import Path

import pytest
from conftest import Cli, run_process

from ortdeploy.cli.command_line.arguments import COMMANDS
from ortdeploy.cli.main import MEANT
from ortdeploy.cli.os_errors import fault_of_the_machine


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime"), "onnxruntime is not installed: pip install onnxruntime, or onnxruntime-gpu for an NVIDIA GPU"),
        (ModuleNotFoundError("No module named 'onnxruntime.capi'", name="onnxruntime.capi"), "onnxruntime is not installed: pip install onnxruntime, or"),
        (ModuleNotFoundError("No module named 'yaml'", name="yaml"), "pyyaml is not installed: pip install pyyaml"),
        (ModuleNotFoundError("No module named 'google'", name="google.protobuf"), "protobuf is not installed"),
        (ImportError("libcudart.so.12: cannot open shared object file: No such file"), "a library cannot be loaded: libcudart.so.12"),
        (ImportError("/lib/libc.so.6: version `GLIBC_2.38' not found"), "a library cannot be loaded: /lib/libc.so.6"),
        (ImportError("DLL load failed while importing onnxruntime_pybind11_state"), "a library cannot be loaded: DLL"),
        (ImportError("cannot import name 'helper' from 'onnx'", name="onnx"), "the package onnx cannot be used as it is installed: cannot import name"),
        (ModuleNotFoundError("No module named 'ortdeploy.nowhere'", name="ortdeploy.nowhere"), None),
        (ImportError("cannot import name 'x' from 'ortdeploy.api'", name="ortdeploy.api"), None),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), "x: No space left on device"),
        (KeyError("x"), None),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(error: Exception, said: str | None) -> None:
    found = fault_of_the_machine(error)
    assert (found or "").startswith(said or "") if said else found is None


def test_a_locale_without_a_letter_of_a_name_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UnicodeEncodeError("ascii", "in/ö.csv", 3, 4, "ordinal not in range(128)")
    assert fault_of_the_machine(error) is None  # of text
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    found = fault_of_the_machine(error)
    assert found == "Python has ascii for names of files here, which has no '\\xf6'; set LC_ALL=C.UTF-8"


@pytest.mark.process
@pytest.mark.quick("onnxruntime", "numpy", "yaml")
@pytest.mark.parametrize(
    "module", ["onnxruntime", "numpy", "yaml", "jsonschema", "structlog", "onnx", "rich", "tenacity", "google.protobuf"]
)
def test_a_base_package_that_is_missing_is_no_bug(module: str, deployment: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    for command in ("plan", "apply"):
        done = run_process([command, "m.yaml"], cwd=deployment, env={"PYTHONPATH": str(tmp_path / "site")})
        assert "report it" not in done.err
        if done.code:  # a command need not use each of them
            package = {"yaml": "pyyaml", "google.protobuf": "protobuf"}.get(module, module)
            assert done.code == 1, done.err
            assert f"ortdeploy: {package} is not installed: pip install {package}" in done.err
        else:
            assert module in {"rich", "tenacity", "jsonschema", "structlog"}


@pytest.mark.process
def test_a_broken_package_is_no_bug(deployment: Path, tmp_path: Path) -> None:
    (tmp_path / "site/numpy").mkdir(parents=True)
    (tmp_path / "site/numpy/__init__.py").write_text("from numpy import gone\n")
    done = run_process(["plan", "m.yaml"], cwd=deployment, env={"PYTHONPATH": str(tmp_path / "site")})
    assert (done.code, "report it" in done.err) == (1, False)
    assert "ortdeploy: the package numpy cannot be used as it is installed: cannot import name 'gone'" in done.err


def test_a_command_by_another_name_is_offered(cli: Cli) -> None:
    for typed, meant in MEANT.items():
        assert typed not in COMMANDS
        assert meant in COMMANDS or meant in {"--help", "--version"}
        shown = cli(typed, "m.yaml")
        assert (shown.code, f'Did you mean "{meant}"?' in shown.err) == (64, True)


def test_a_file_alone_is_offered_with_a_command(cli: Cli) -> None:
    for typed, meant in (("m.yaml", "apply m.yaml"), ("net.ONNX", "init net.ONNX")):
        assert f'Did you mean "{meant}"?' in cli(typed).err


def test_a_file_that_is_no_manifest_is_named(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployment)
    for command in ("validate", "plan", "apply"):
        shown = cli(command, "double.onnx")
        assert (
            shown.code,
            "double.onnx is a model. ortdeploy init double.onnx writes a manifest for it." in shown.words,
        ) == (1, True)
        shown = cli(command, "data.npy")
        assert (shown.code, "data.npy is a .npy array, and a manifest is YAML text." in shown.words) == (1, True)
        shown = cli(command, "mm.yaml")
        assert (shown.code, "There is no file mm.yaml. Did you mean m.yaml?" in shown.words) == (1, True)
        shown = cli(command, "-")
        assert (shown.code, "PATH takes the name of a file; standard input and output have none." in shown.err) == (
            64,
            True,
        )


def test_a_manifest_without_jobs_says_so(cli: Cli, deployment: Path) -> None:
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text(text[: text.index("jobs:")])
    for command in ("plan", "apply", "try"):
        shown = cli(command, deployment / "m.yaml")
        assert (shown.code, "the manifest has no jobs:" in shown.out) == (0, True)
    (deployment / "m.yaml").write_text(text)
    assert "no jobs" not in cli("plan", deployment / "m.yaml").out
    assert "no jobs" not in cli("try", deployment / "m.yaml").out


@pytest.mark.parametrize(("typed", "offered"), [("provders", "providers"), ("rule", "rules"), ("steps ", "steps")])
def test_parts_of_the_list_have_names(cli: Cli, typed: str, offered: str) -> None:
    assert f'Did you mean "{offered}"?' in cli("explain", typed).err
    shown = cli("explain", offered)
    assert (shown.code, "CUDA" in shown.out) == (0, offered == "providers")
    assert ("unknown-provider" in shown.out, "top_k" in shown.out) == (offered == "rules", offered == "steps")
