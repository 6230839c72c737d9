"""The GitHub action: its steps run here as a runner runs them; and the pre-commit hook, run by pre-commit."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

from ortdeploy.manifest.document import parse_document

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="composite actions run bash"),
]
DEVICE = REPOSITORY / "deployments/devices/raspberry-pi-5.yaml"


def action() -> Any:
    document, problems = parse_document((REPOSITORY / "action.yml").read_bytes(), "action.yml")
    assert document is not None
    assert not problems
    return document.data


@dataclass
class Runner:
    """What a GitHub runner does with the steps of a composite action, as far as this one needs it."""

    workspace: Path
    temp: Path
    code: int = 0
    out: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    def run(self, given: Mapping[str, str]) -> "Runner":
        """Run the steps until one fails."""
        inputs = {name: one["default"] for name, one in action()["inputs"].items()} | dict(given)
        path = f"{self.temp / 'bin'}{os.pathsep}{os.environ['PATH']}"
        for step in action()["runs"]["steps"]:
            assert step["shell"] == "bash"
            if step.get("if") == "inputs.version != 'installed'" and inputs["version"] == "installed":
                continue
            files = {name: self.temp / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
            for one in files.values():
                one.write_text("")
            (self.temp / "step.sh").write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(self.temp / "step.sh")],  # noqa: S607
                cwd=self.workspace,
                env={
                    "PATH": path,
                    "PYTHONPATH": str(REPOSITORY),
                    "RUNNER_TEMP": str(self.temp),
                    **{name: self._filled(value, inputs) for name, value in step["env"].items()},
                    **{name: str(file) for name, file in files.items()},
                },
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            self.code, self.out = done.returncode, self.out + done.stdout
            assert done.stderr == ""
            added = files["GITHUB_PATH"].read_text().splitlines()
            path = os.pathsep.join([*added, path])
            if "id" in step:
                self.outputs |= dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
            self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
            if self.code:
                break
        return self

    @staticmethod
    def _filled(text: str, inputs: Mapping[str, str]) -> str:
        known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(REPOSITORY)}
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text)

    @property
    def annotations(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith(("::error", "::warning"))]


@pytest.fixture
def runner(deployment: Path, tmp_path_factory: pytest.TempPathFactory, shell_program: Path) -> Runner:
    """A runner whose workspace has a manifest in `deployments`, with a device file beside it."""
    workspace, temp = tmp_path_factory.mktemp("work space"), tmp_path_factory.mktemp("temp")
    shutil.copytree(deployment, workspace / "deployments")
    (workspace / "devices").mkdir()
    for name in ("pi one.yaml", "pi two.yaml"):
        shutil.copy(DEVICE, workspace / "devices" / name)
    (temp / "bin").mkdir()
    shutil.copy(shell_program / "ortdeploy", temp / "bin")
    return Runner(workspace=workspace, temp=temp)


def changed(runner: Runner, old: str, new: str) -> None:
    manifest = runner.workspace / "deployments/m.yaml"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))


INSTALLED = {"version": "installed"}


def test_a_right_manifest_passes_for_each_device(runner: Runner) -> None:
    done = runner.run({**INSTALLED, "devices": "devices/*.yaml\n"})
    assert (done.code, done.outputs["errors"]) == (0, "0")
    assert done.summary.splitlines() == [
        "| ortdeploy | |",
        "| --- | --- |",
        "| validate | passed |",
        "| plan | passed |",
        "",
        "| Device | Job | Profile | Plan |",
        "| --- | --- | --- | --- |",
        "| devices/pi one.yaml | demo: run |  | runs, 105 MiB |",
        "| devices/pi two.yaml | demo: run |  | runs, 105 MiB |",
    ]


def test_data_need_not_be_in_the_repository(runner: Runner) -> None:
    (runner.workspace / "deployments/data.npy").unlink()
    done = runner.run({**INSTALLED, "devices": "devices/*.yaml"})
    assert (done.code, done.outputs) == (0, {"errors": "0", "warnings": "0"})


def test_a_wrong_text_is_annotated_at_its_line_and_not_planned(runner: Runner) -> None:
    changed(runner, "batch:", "bach:")
    done = runner.run({**INSTALLED, "devices": "devices/*.yaml"})
    assert (done.code, done.outputs) == (1, {"errors": "1", "warnings": "0"})
    (annotation,) = done.annotations
    assert annotation.startswith("::error file=deployments/m.yaml,line=9,col=5,title=Unknown key [unknown-key]::")
    assert "| plan |" not in done.summary


def test_what_a_device_cannot_do_is_annotated_once(runner: Runner) -> None:
    changed(runner, "path: double.onnx", "path: double.onnx, providers: [CUDA]")
    done = runner.run({**INSTALLED, "devices": "  devices/*.yaml  "})
    assert done.code == 1
    assert [one for one in done.annotations if "unavailable-provider" in one] == done.annotations[:1]
    assert done.outputs["errors"] == str(len(done.annotations))
    assert "| plan | refused |" in done.summary
    why = "refused: unavailable-provider deployments/m.yaml:4"
    assert f"| devices/pi two.yaml | demo: run |  | {why} |" in done.summary


@pytest.mark.skipif(sys.platform != "linux", reason="names of files that other systems do not take")
def test_names_of_files_are_no_flags_and_no_markdown(runner: Runner) -> None:
    shutil.copy(runner.workspace / "deployments/double.onnx", runner.workspace)
    changed(runner, "path: double.onnx", "path: double.onnx, providers: [CUDA]")
    for name in ("--exclude=*.yaml", "--log-file=m.yaml", r"a\|`b`<i>.yaml"):
        shutil.copy(runner.workspace / "deployments/m.yaml", runner.workspace / name)
    done = runner.run({**INSTALLED, "manifests": "*.yaml", "devices": "devices/*.yaml"})
    assert (done.code, done.outputs["errors"]) == (1, "3")
    rows = [line for line in done.summary.splitlines() if line.startswith("| devices/pi one.yaml")]
    assert len(rows) == 3
    assert r"refused: unavailable-provider a\\\|\`b\`\<i\>.yaml:4 |" in rows[-1]
    assert {len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {6}


def test_flags_reach_the_commands(runner: Runner) -> None:
    done = runner.run({**INSTALLED, "flags": "--set=jobs.run.batch.size=0\n--quiet"})
    assert done.code == 1
    assert "at least 1 is allowed" in done.annotations[0]


def test_a_device_file_that_is_not_there_is_said(runner: Runner) -> None:
    done = runner.run({**INSTALLED, "devices": "devices/phone.yaml"})
    assert done.code == 1
    assert "devices/phone.yaml" in done.annotations[0]


def test_no_manifest_is_an_error(runner: Runner) -> None:
    done = runner.run({**INSTALLED, "manifests": "\n"})
    assert done.code == 1
    assert done.annotations == ["::error title=ortdeploy::The input manifests names nothing."]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, f"ortdeploy @ file://{REPOSITORY}"),
        ({"extras": "images,tables"}, f"ortdeploy[images,tables] @ file://{REPOSITORY}"),
        ({"version": "1.2.3", "extras": "images"}, "ortdeploy[images]==1.2.3"),
    ],
)
def test_what_is_installed(runner: Runner, given: Mapping[str, str], wanted: str) -> None:
    """`python3 -m venv` makes an environment whose pip notes what it is asked for; there is no network here."""
    python = runner.temp / "bin/python3"
    python.write_text(
        '#!/bin/bash\nmkdir -p "$3/bin"\n'
        'printf \'#!/bin/bash\\nprintf "%%s\\\\n" "$@" > "$RUNNER_TEMP/asked"\\n\' > "$3/bin/python"\n'
        f'cp "{runner.temp}/bin/ortdeploy" "$3/bin/"\nchmod +x "$3/bin/python"\n'
    )
    python.chmod(0o755)
    assert runner.run(given).code == 0
    assert (runner.temp / "asked").read_text().splitlines() == ["-m", "pip", "install", "--quiet", wanted]


def test_every_input_is_used_and_documented() -> None:
    text = (REPOSITORY / "action.yml").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8")
    for name, one in action()["inputs"].items():
        assert one["description"]
        assert f"inputs.{name}" in text
        assert f"| `{name}` |" in page
    assert set(action()["outputs"]) == {"errors", "warnings"}


BACKEND = """
import sys, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "ortdeploy-0-py3-none-any.whl", "ortdeploy-0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("the_program.py", open("the_program.py").read())
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\nortdeploy = the_program:main\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: ortdeploy\\nVersion: 0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PROGRAM = """
import os, sys

def main():
    os.environ["PYTHONPATH"] = {path!r}
    os.execv({python!r}, [{python!r}, "-m", "ortdeploy", *sys.argv[1:]])
"""


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    """A repository with the hooks of this one, and a package that can be installed without a network."""
    folder = tmp_path / "hooks"
    folder.mkdir()
    shutil.copy(REPOSITORY / ".pre-commit-hooks.yaml", folder)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "the_program.py").write_text(PROGRAM.format(path=str(REPOSITORY), python=sys.executable))
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "ortdeploy"\nversion = "0"\n'
    )
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "hooks"]):
        subprocess.run(["git", *who, *command], cwd=folder, check=True)  # noqa: S607
    return folder


def test_pre_commit_runs_the_hook(deployment: Path, tmp_path: Path, hooks: Path) -> None:
    pre_commit = shutil.which("pre-commit", path=str(Path(sys.executable).parent))
    if pre_commit is None:
        pytest.skip("pre-commit is not installed")
    work = tmp_path / "work"
    (work / "deployments").mkdir(parents=True)
    shutil.copy(deployment / "m.yaml", work / "deployments")
    (work / "other.yaml").write_text("no: manifest\n")
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)  # noqa: S607
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}

    def tried() -> subprocess.CompletedProcess[str]:
        subprocess.run(["git", "add", "-A"], cwd=work, check=True)  # noqa: S607
        command = [pre_commit, "try-repo", str(hooks), "ortdeploy-validate", "--all-files"]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, encoding="utf-8", check=False)

    done = tried()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout
    (work / "deployments/m.yaml").write_text("version: 1\njobs: {run: {bach: 1}}\n")
    done = tried()
    assert done.returncode == 1
    assert "deployments/m.yaml:2:" in done.stdout
    assert "other.yaml" not in done.stdout
