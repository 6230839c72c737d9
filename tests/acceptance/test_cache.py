"""`ortdeploy cache prune`: what nothing needs goes, and what jobs, last good versions and live runs need stays."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from support.memo_files import memo_files
from support.models import scale_model

from ortdeploy.files.content_store import LOCK
from ortdeploy.ledger.output_lock import shared_use
from ortdeploy.state import memo

MANIFEST = """
version: 1
name: prune
models: {double: {path: double.onnx, providers: [CPU], cache: true}}
jobs:
  run:
    model: double
    input: {path: data.npy}
    output: {path: out}
"""


@pytest.fixture
def job(deployment: Path, cli: Cli) -> Path:
    """A manifest whose job has run, with a last good version and a compiled model."""
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    assert cli("apply", manifest, "--last-good").code == 0
    return manifest


def stored(folder: Path) -> set[str]:
    return {path.name for path in (folder / ".ortdeploy/store/files").iterdir()}


def pruned(cli: Cli, path: Path, *flags: str) -> dict[str, Any]:
    """Prune, and return what is said of each cache."""
    result = cli("cache", "prune", path, "--format", "json", *flags)
    assert result.code == 0, result
    (state,) = result.json["states"]
    assert state["freed_bytes"] == sum(one["freed_bytes"] for one in state["caches"])
    return {one["cache"]: one for one in state["caches"]}


def everything(folder: Path) -> dict[str, bytes]:
    state = folder / ".ortdeploy"
    return {str(path.relative_to(state)): path.read_bytes() for path in sorted(state.rglob("*")) if path.is_file()}


def test_what_a_job_needs_stays_and_is_used_again(cli: Cli, deployment: Path, job: Path) -> None:
    before = everything(deployment)
    caches = pruned(cli, job)
    assert not [name for name, one in caches.items() if one["freed"]]
    assert everything(deployment) == before
    assert (caches["store"]["kept"], caches["cache"]["kept"]) == (
        2,
        1,
    )  # the model, the manifest's text; its compilation
    assert caches["store"]["kept_bytes"] == sum((deployment / "double.onnx", job)[at].stat().st_size for at in (0, 1))
    assert cli("cache", "prune", job).out.startswith(f"{deployment}/.ortdeploy: 0 bytes freed\n")


@pytest.mark.slow
def test_the_files_of_a_manifest_that_is_gone_are_freed(cli: Cli, deployment: Path, job: Path) -> None:
    other = deployment / "other.yaml"
    scale_model(deployment / "triple.onnx", factor=3)
    other.write_text(MANIFEST.replace("double", "triple").replace("path: out", "path: elsewhere"), encoding="utf-8")
    assert cli("apply", other, "--last-good").code == 0
    digest = hashlib.sha256((deployment / "triple.onnx").read_bytes()).hexdigest()
    assert digest in stored(deployment)
    assert not pruned(cli, job)["store"]["freed"]  # another manifest needs it, which this was not asked about
    other.unlink()
    would = pruned(cli, job, "--dry-run")
    assert digest in stored(deployment)
    before = everything(deployment)
    assert pruned(cli, job, "--dry-run") == would
    assert everything(deployment) == before
    assert "would be freed" in cli("cache", "prune", job, "--dry-run").out
    assert pruned(cli, job) == would
    assert [would[name]["freed"] for name in ("last-good", "store", "cache", "manifests")] == [1, 2, 1, 0]
    assert digest not in stored(deployment)
    assert len(stored(deployment)) == 2
    assert "nothing to do" in cli("apply", job).words
    assert not any(one["freed"] for one in pruned(cli, job).values())


@pytest.mark.slow
def test_a_job_that_a_manifest_has_no_more_needs_nothing(cli: Cli, deployment: Path, job: Path) -> None:
    job.write_text(MANIFEST.replace("  run:", "  renamed job:").replace("path: out", "path: new"), encoding="utf-8")
    scale_model(deployment / "double.onnx", factor=5)
    old = stored(deployment)
    assert cli("apply", job, "--last-good").code == 0
    assert pruned(cli, job)["store"]["freed"] == 2
    assert not stored(deployment) & old
    assert len(stored(deployment)) == 2


def test_a_last_good_version_stays_while_its_manifest_is_refused(cli: Cli, deployment: Path, job: Path) -> None:
    before = stored(deployment)
    job.write_text("version: 1\nmodels: [broken\n", encoding="utf-8")
    (deployment / "double.onnx").unlink()
    references = deployment / ".ortdeploy/store/references"
    for path in references.iterdir():
        old = time.time() - 90 * 24 * 3600
        os.utime(path, (old, old))
    result = cli("cache", "prune", job)
    assert result.code == 1  # the manifest is refused; all the same, the rest is done
    assert "m.yaml" in result.err
    assert stored(deployment) == before
    assert cli("apply", job, "--last-good").code == 1
    assert (deployment / "out/_run.json").is_file()


@pytest.mark.slow
def test_nothing_is_freed_beside_a_live_run(cli: Cli, deployment: Path, job: Path) -> None:
    shutil.rmtree(deployment / ".ortdeploy/last-good")
    before = everything(deployment)
    with shared_use(deployment / ".ortdeploy", LOCK):
        result = cli("cache", "prune", job)
        assert (result.code, result.out.splitlines()[0]) == (
            0,
            f"{deployment}/.ortdeploy: 0 bytes freed; a run is using it, so nothing is",
        )
        assert all(one["freed"] == 0 for one in pruned(cli, job).values())
    assert everything(deployment) == before
    assert pruned(cli, job)["store"]["freed"] == 1  # the text of the manifest, for no record names it


def test_notes_of_what_is_gone_go(cli: Cli, deployment: Path, job: Path) -> None:
    state = deployment / ".ortdeploy"
    (state / "told").mkdir()
    (state / "told/0.txt").write_text(f"digest\n{job}\n", encoding="utf-8")
    (state / "told/1.txt").write_text(f"digest\n{deployment}/gone.yaml\n", encoding="utf-8")
    for folder in ("manifests", "live"):
        (state / folder).mkdir(exist_ok=True)
        (state / folder / "0123456789abcdef.json").write_text("{}", encoding="utf-8")
    gone = json.dumps({"manifest": f"{deployment}/gone.yaml"})
    (state / "last-good" / f"{'0' * 64}.json").write_text(gone, encoding="utf-8")
    (state / "cache/.0123456789abcdef.77.making").mkdir()
    (state / "cache/.0123456789abcdef.77.making/model.onnx").write_bytes(b"begun")
    (state / "cache/mine").mkdir()
    caches = pruned(cli, job)
    freed = {name: (one["freed"], one["kept"]) for name, one in caches.items() if one["freed"]}
    assert freed == {"told": (1, 1), "manifests": (1, 1), "live": (1, 0), "last-good": (1, 1), "cache": (1, 1)}
    assert (state / "cache/mine").is_dir()
    assert (state / "told/0.txt").is_file()


@pytest.mark.reads_graphs
def test_looking_up_what_was_read_in_a_graph_keeps_it(cli: Cli, deployment: Path, job: Path) -> None:
    entries = memo_files(deployment / ".ortdeploy", "graph")
    for path in entries:
        old = time.time() - 31 * 24 * 3600
        os.utime(path, (old, old))
    assert cli("plan", job, "--new-run", "--set", "jobs.run.batch.size=7").code == 0
    looked_up = {path for path in entries if path.stat().st_mtime > time.time() - 3600}
    assert looked_up
    pruned(cli, job)
    assert {path for path in entries if path.exists()} == looked_up


def test_what_was_remembered_goes_where_nobody_looks_it_up(cli: Cli, deployment: Path, job: Path) -> None:
    memo.put(deployment / ".ortdeploy", "plan", "a command line", {})
    path = memo_files(deployment / ".ortdeploy", "plan")[-1]
    old = time.time() - 31 * 24 * 3600
    os.utime(path, (old, old))
    assert pruned(cli, job)["memo"]["freed"] == 1
    assert not path.exists()


OF_EARLIER_VERSIONS = (
    "checked-plans.json", "choices.json", "graphs", "known-digests.json", "nothing-to-do.json", "opened-models.json",
    "future-files.json", "row-index", "tune",
)  # fmt: skip


def test_what_earlier_versions_have_remembered_goes(cli: Cli, deployment: Path, job: Path) -> None:
    state = deployment / ".ortdeploy"
    for name in OF_EARLIER_VERSIONS:
        (state / name).write_text("{}")
    assert (pruned(cli, job)["earlier"]["freed"], pruned(cli, job)["earlier"]["kept"]) == (len(OF_EARLIER_VERSIONS), 0)
    assert not {path.name for path in state.iterdir()}.intersection(OF_EARLIER_VERSIONS)


def test_without_a_state_folder_there_is_nothing(cli: Cli, deployment: Path) -> None:
    assert cli("cache", "prune", deployment).out == f"{deployment}/.ortdeploy: 0 bytes freed\n"
    assert not (deployment / ".ortdeploy").exists()


def test_a_damaged_ledger_keeps_everything(cli: Cli, deployment: Path, job: Path) -> None:
    (deployment / ".ortdeploy/state.db").write_bytes(b"no ledger" * 100)
    before = everything(deployment)
    result = cli("cache", "prune", job)
    assert result.code == 1
    assert "state.db" in result.words
    assert everything(deployment) == before


def length_of(name: str, content: bytes) -> int:
    """The length of a file. A status document has numbers of rows, and what a job took has more digits some day."""
    if name.startswith("status/"):
        return 0
    return len(content) // 128 if name.startswith("memo/memory/") else len(content)


@pytest.mark.parametrize("applies", [pytest.param(6, id="quick"), pytest.param(40, marks=pytest.mark.slow, id="days")])
def test_beside_the_ledger_nothing_grows_with_the_number_of_applies(cli: Cli, deployment: Path, applies: int) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("data.npy", "inbox/*.npy"), encoding="utf-8")
    (deployment / "inbox").mkdir()
    seen = []
    for number in range(applies):
        np.save(deployment / f"inbox/{number:05}.npy", np.ones((3, 4), dtype=np.float32))
        assert cli("apply", manifest, "--last-good").code == 0
        if number + 1 in {2, applies}:
            seen.append(
                {
                    name: length_of(name, content)
                    for name, content in everything(deployment).items()
                    if "state.db" not in name
                }
            )
    assert seen[0] == seen[1]
    assert not any(one["freed"] for one in pruned(cli, manifest).values())
