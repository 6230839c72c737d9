"""What each command may load: import time is most of what a command takes that has little to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

WATCHED = {
    "PIL", "asyncio", "base64", "concurrent.futures", "dataclasses", "email", "fsspec", "html", "importlib.metadata", "jsonschema",
    "locale", "logging", "numpy",
    "numpy.random", "onnx", "onnxruntime", "pyarrow", "socket", "sqlite3", "ssl", "statistics", "structlog",
    "rich", "tokenizers", "typing", "unicodedata", "uuid", "yaml",
    "zoneinfo",
    "bz2", "gzip", "lzma", "shutil", "subprocess", "tempfile", "zipfile",
    "ortdeploy.deployment.resolve", "ortdeploy.files.network_policy", "ortdeploy.manifest.document",
    "ortdeploy.pipelines.component", "ortdeploy.pipelines.compose", "ortdeploy.planning.probing.probe",
    "ortdeploy.planning.workflow", "ortdeploy.process.child", "ortdeploy.rules.protocol",
    "ortdeploy.sessions.cpu_comparison", "ortdeploy.sessions.fused", "ortdeploy.transforms.catalogue",
    "ortdeploy.tuning.batch_size", "ortdeploy.operations.nms", "ortdeploy.presets.stable_diffusion",
    "ortdeploy.reports.html", "ortdeploy.jobs.retry", "ortdeploy.sinks.csv", "ortdeploy.sources.csv",
    "ortdeploy.transforms.resize",
}  # fmt: skip
"""What takes its time: packages, modules of Python's own that bring many others, and formats and steps not asked for."""

TEXT = {
    "base64", "dataclasses", "typing", "uuid", "yaml", "ortdeploy.manifest.document", "ortdeploy.planning.workflow",
    "ortdeploy.rules.protocol",
}  # fmt: skip
"""What reads manifests may load; msgspec brings uuid."""
RUNNING = {"dataclasses", "typing", "numpy", "onnxruntime", "sqlite3", "uuid"}
PLANNING = TEXT | RUNNING | {
    "base64", "locale", "subprocess", "tempfile", "shutil", "bz2", "lzma", "ortdeploy.deployment.resolve", "ortdeploy.planning.probing.probe",
    "ortdeploy.process.child", "ortdeploy.transforms.catalogue", "ortdeploy.pipelines.component",
    "ortdeploy.sessions.cpu_comparison",
}  # fmt: skip

MAY_LOAD = {
    "--help": set(),
    "apply, nothing to do": set(),
    "status, as before": set(),
    "validate m.yaml": TEXT,
    "status m.yaml": TEXT | {"sqlite3"},
    "plan m.yaml": PLANNING,
    "apply m.yaml": PLANNING,
    "apply, only files have come": RUNNING,
}
"""By command, what it may load of them where the model is one that was planned with before."""

RARE = {
    "ortdeploy.tuning", "ortdeploy.cli.children.endings", "ortdeploy.cli.command_line.targets", "ortdeploy.files.in_place",
    "ortdeploy.files.object_store", "ortdeploy.files.shared_folder", "ortdeploy.ledger.transfer", "ortdeploy.ledger.letters",
    "ortdeploy.ledger.open_plans", "ortdeploy.pipelines.state", "ortdeploy.plan.part_table", "ortdeploy.results.shares",
    "ortdeploy.streaming.crashed_runs", "ortdeploy.jobs.finished_jobs", "ortdeploy.parts.left_over",
    "ortdeploy.reports.catalogue", "ortdeploy.reports.gallery", "ortdeploy.reports.html", "ortdeploy.reports.prometheus",
    "ortdeploy.streaming.bisect_failures", "ortdeploy.application.supervisor",
    "ortdeploy.sessions.row_axis_adapter", "ortdeploy.sessions.run_limit", "ortdeploy.sessions.bounded_runs", "ortdeploy.sinks.png",
    "ortdeploy.sources.prefetch", "ortdeploy.sources.rows", "ortdeploy.tensors.written_numbers",
}  # fmt: skip
"""What only stores, shards, children, failures, further reports, pipelines or formats of other rows need."""

CONTINUING = {
    "ortdeploy.ledger.check", "ortdeploy.jobs.reconcile_inputs", "ortdeploy.parts.recovery",
    "ortdeploy.jobs.taking_up",
}  # fmt: skip
"""What only a job needs that goes on where an earlier run has ended."""

_SCRIPT = """\
import json, sys
import ortdeploy.planning.remembered.nothing_to_do as nothing_to_do
from ortdeploy.cli.main import main
nothing_to_do.RACY_NS = -10**18  # all files count as old
code = main(sys.argv[1:])
print(json.dumps([code, list(sys.modules)]))
"""


def _loaded(folder: Path, command: str) -> set[str]:
    """Run a command in a process of its own, and return what it loads of the watched modules."""
    return WATCHED.intersection(_modules(folder, command))


def _modules(folder: Path, command: str) -> list[str]:
    """Run a command in a process of its own, and return the modules that it loads, in the order in which they end."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *command.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stdout
    return list(modules)


@pytest.mark.parametrize("command", ["--help", "validate m.yaml"])
def test_what_needs_no_model_loads_little(deployment: Path, command: str) -> None:
    assert _loaded(deployment, command) <= MAY_LOAD[command]


def test_what_was_read_before_is_not_loaded_for_again(deployment: Path) -> None:
    modules = _modules(deployment, "apply -q m.yaml")
    assert "onnx" in modules
    assert modules.index("numpy") < modules.index("ortdeploy.cli.children.apply"), "before modules that import others"
    (deployment / "m.yaml").write_text((deployment / "m.yaml").read_text().replace("outbox/run", "outbox/other"))
    assert _loaded(deployment, "plan m.yaml") <= MAY_LOAD["plan m.yaml"]
    assert _loaded(deployment, "apply m.yaml") <= MAY_LOAD["apply m.yaml"]
    assert _loaded(deployment, "status m.yaml") <= MAY_LOAD["status m.yaml"]
    assert _loaded(deployment, "status m.yaml") == MAY_LOAD["status, as before"]
    assert "numpy" in _loaded(deployment, "apply m.yaml")
    assert _loaded(deployment, "apply m.yaml") == MAY_LOAD["apply, nothing to do"]


def test_where_only_files_have_come_no_manifest_and_no_rule_is_loaded(deployment: Path) -> None:
    text = (deployment / "m.yaml").read_text()
    (deployment / "inbox").mkdir()
    (deployment / "m.yaml").write_text(text.replace("path: data.npy", "path: inbox/*.npy"))
    shutil.copy(deployment / "data.npy", deployment / "inbox/a.npy")
    assert "yaml" in _loaded(deployment, "apply -q m.yaml")
    shutil.copy(deployment / "data.npy", deployment / "inbox/b.npy")
    modules = _modules(deployment, "apply -q m.yaml")
    assert WATCHED.intersection(modules) <= MAY_LOAD["apply, only files have come"]
    assert not RARE.intersection(modules)
    assert len(list((deployment / "outbox/run").glob("part-*"))) == 2


@pytest.mark.slow
def test_a_run_from_a_remembered_plan_loads_nothing_for_rare_cases(deployment: Path) -> None:
    for _ in range(2):  # the first makes the folder of the outputs
        _modules(deployment, "apply -q m.yaml")
        shutil.rmtree(deployment / "outbox/run")
    modules = _modules(deployment, "apply -q m.yaml")
    assert WATCHED.intersection(modules) <= MAY_LOAD["apply, only files have come"]
    assert not (RARE | CONTINUING).intersection(modules)
    assert len(list((deployment / "outbox/run").glob("part-*"))) == 1


def test_tables_do_without_pandas_where_it_is_installed(deployment: Path) -> None:
    pytest.importorskip("pyarrow", "18", reason="needs the extra tables")
    (deployment / "pandas").mkdir()
    (deployment / "pandas/__init__.py").write_text(f"open({str(deployment / 'imported')!r}, 'w').close()\n")
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text(text.replace("jsonl", "parquet"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(deployment), str(REPOSITORY)])}
    command = [sys.executable, "-m", "ortdeploy", "apply", "-q", "m.yaml"]
    subprocess.run(command, cwd=deployment, env=environment, check=True)
    assert len(list((deployment / "outbox/run").glob("*.parquet"))) == 1
    assert not (deployment / "imported").exists()
