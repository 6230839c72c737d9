"""Jobs inside of a real control group: the plan reads its limit, and a run keeps to it instead of being killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import run_fork
from onnx import TensorProto, helper
from support.models import save_model
from support.waiting import wait_for

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.plan_file import encode
from ortdeploy.planning.workflow import plan_manifests

MIB = 1024 * 1024
ROOTS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


class Group:
    """A control group with a limit of memory, of version 1 or 2."""

    def __init__(self, folder: Path, limit: Path) -> None:
        self.folder, self._limit = folder, limit

    def run(
        self, limit: int, *arguments: str, cwd: Path, module: tuple[str, ...] = ("-m", "ortdeploy")
    ) -> "subprocess.CompletedProcess[str]":
        """Call ortdeploy inside, or a script that uses it."""
        self._limit.write_text(str(limit))
        inside = f'echo $$ > {self.folder}/cgroup.procs && exec "$0" "$@"'
        command = ["bash", "-c", inside, sys.executable, *module, *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """Remove it when the last process has left it: the watcher of a process ends after the process itself."""
        wait_for(self._is_removed)

    def _is_removed(self) -> bool:
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


@pytest.fixture
def group() -> Iterator[Group]:
    for root, name in ROOTS:
        folder = Path(root) / f"ortdeploy-test-{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)  # one that a killed run left is as good
        except OSError:
            continue
        limit = folder / name
        if limit.is_file() and os.access(limit, os.W_OK):
            made = Group(folder, limit)
            yield made
            made.remove()
            return
        folder.rmdir()
    pytest.skip("this user may not make a control group with a limit of memory")


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """128 MiB of activations for a batch of 512 rows, twice that with the memory pattern."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["y"], axes=[1], keepdims=1),
    ]
    weights = {"times": np.array([1, 64], dtype=np.int64)}
    takes, makes = {"x": (TensorProto.FLOAT, ["n", 512])}, {"y": (TensorProto.FLOAT, ["n", 1])}
    save_model(tmp_path / "wide.onnx", nodes, takes, makes, weights, opset=12)  # type: ignore[arg-type]  # names and sizes
    np.save(tmp_path / "data.npy", np.ones((1024, 512), dtype=np.float32))
    (tmp_path / "m.yaml").write_text(
        """\
version: 1
models: {wide: {path: wide.onnx}}
jobs:
  run: {model: wide, input: {path: data.npy}, batch: {size: 512}, output: {path: out, format: npy, rows_per_part: 512}}
"""
    )
    return tmp_path


@pytest.mark.slow
def test_the_plan_knows_the_groups_limit(wide: Path, group: Group) -> None:
    refused = group.run(160 * MIB, "plan", "--measure", "m.yaml", cwd=wide)
    assert refused.returncode == 1
    assert "control group of this process, has 160 MiB" in " ".join(refused.stdout.split())
    assert group.run(600 * MIB, "plan", "--measure", "m.yaml", cwd=wide).returncode == 0


@pytest.mark.slow
def test_a_plan_that_was_made_where_there_was_more_memory_is_refused(wide: Path, group: Group) -> None:
    assert run_fork(["plan", "m.yaml", "--out", "plan.json"], cwd=wide).code == 0
    done = group.run(160 * MIB, "apply", "plan.json", cwd=wide)
    assert done.returncode == 1, done.stderr
    assert "there are 160 MiB for it" in " ".join(done.stdout.split())
    assert not (wide / "out").exists()


RUN = """
import json, sys
from argparse import Namespace
from pathlib import Path
from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.signals import StopFlag
from ortdeploy.plan.plan_file import decode
from ortdeploy.plan.steps import Plan

plan = decode(Plan, json.loads(Path("planned.json").read_text()))
(result,) = run_plan(plan, Path(".ortdeploy").absolute(), "r", Namespace(quiet=True), StopFlag())
sys.exit(result.status != "done")
"""


@pytest.mark.parametrize("limit", [150, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (260, 200, 130))])
def test_a_run_in_a_group_that_is_too_small_is_never_killed(wide: Path, group: Group, limit: int) -> None:
    """A group that others fill up after the plan was made: the run alone has to get along."""
    (plan,) = plan_manifests([str(wide / "m.yaml")], LoadOptions(), state_dir=None).plans
    (wide / "planned.json").write_text(json.dumps(encode(plan)))
    done = group.run(limit * MIB, "-c", RUN, cwd=wide, module=())
    assert done.returncode in {0, 1}, f"killed: {done.returncode}"
    assert "Traceback" not in done.stdout + done.stderr
    if done.returncode == 0:
        assert json.loads((wide / "out/_run.json").read_text())["rows"]["committed"] == 1024
    else:
        again = run_fork(["apply", "m.yaml"], cwd=wide)
        assert again.code == 0, again.out
    rows = np.concatenate([np.load(path) for path in sorted((wide / "out").glob("part-*"))])
    np.testing.assert_allclose(rows.ravel(), np.full(1024, 512 * 64 * np.sin(1.0)), rtol=1e-3)
