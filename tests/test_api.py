"""The Python API: nouns instead of text, and a process of its own for all that runs models."""

import doctest
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, read_rows
from support.forks import programs_as_forks

from ortdeploy import api

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTDEPLOY_STATE_DIR", "/nowhere")
    monkeypatch.setenv("ORTDEPLOY_FORMAT", "sarif")


@pytest.fixture
def new_python() -> None:
    """For tests about how a program begins; the programs of others are forks."""


@pytest.fixture(autouse=True)
def _forks(request: pytest.FixtureRequest) -> Iterator[None]:
    if "new_python" in request.fixturenames:
        yield
        return
    with programs_as_forks():
        yield


def many_rows(folder: Path) -> Path:
    """A deployment whose job lasts long enough to be stopped."""
    np.save(folder / "data.npy", np.zeros((200_000, 4), np.float32))
    text = (folder / "m.yaml").read_text().replace("size: 8", "size: 1")
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def test_a_text_without_fault_has_no_findings(deployment: Path) -> None:
    assert api.validate(deployment / "m.yaml") == ()
    assert api.validate(deployment) == ()


def test_a_finding_says_where_what_why_and_what_to_do(deployment: Path) -> None:
    path = deployment / "m.yaml"
    path.write_text(path.read_text().replace("model: double", "model: doble"))
    (finding,) = api.validate(path)
    assert (finding.code, finding.severity, finding.job) == ("undefined-model", api.Severity.ERROR, "run")
    assert finding.where == api.Place(path=str(path), line=7, column=12)
    assert 'Did you mean "double"?' in finding.why
    assert finding.todo
    assert str(finding) == f"{path}:7:12: error[undefined-model]: {finding.what}\n  {finding.why}"


def test_what_a_plan_would_run(deployment: Path) -> None:
    plan = api.plan(deployment / "m.yaml", jobs=["r*"])
    assert not plan.refused
    (job,) = plan.jobs
    assert (job.job, job.model, job.rows, job.done, job.format) == ("run", "double", 20, 0, "jsonl")
    assert job.folder == deployment / "outbox/run"
    assert plan.sessions == (api.PlannedSession(name="double", model="double", chains=(("CPUExecutionProvider",),)),)


def test_a_plan_is_what_apply_does(deployment: Path) -> None:
    plan = api.plan(deployment / "m.yaml", settings={"jobs.run.output.path": "outbox/other"})
    outcome = api.apply(plan)
    assert outcome.done
    (result,) = outcome.jobs
    assert (result.status, result.committed, result.folder) == (api.Status.DONE, 20, deployment / "outbox/other")
    assert result.report()["rows"]["committed"] == 20
    assert len(read_rows(deployment / "outbox/other")) == 20


def test_what_is_told_of_memory_comes_with_the_result(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"job": "run", "output": "out", "status": "done", "reason": None, "memory": ["memory grows"]}
    ended = {**job, "committed": 20, "failed": 0, "skipped": 0, "kept": 0, "seconds": 1.0}
    monkeypatch.setattr("ortdeploy.api._run", lambda *_, **__: {"diagnostics": [], "steps": [], "jobs": [ended]})
    (result,) = api.apply(deployment / "m.yaml").jobs
    assert result.memory == ("memory grows",)


def test_what_is_finished_already_is_counted_as_it_was(deployment: Path) -> None:
    rows = np.zeros((20, 4), np.float32)
    rows[3] = np.nan
    np.save(deployment / "data.npy", rows)
    path = deployment / "m.yaml"
    path.write_text(path.read_text().rstrip() + "\n    errors: {max_failed: 1, on_nan: fail}\n")
    first, again = (api.apply(path).jobs[0] for _ in range(2))
    assert (again.status, again.committed, again.failed) == (api.Status.NOTHING_TO_DO, 19, 1)
    assert (first.committed, first.failed) == (19, 1)


def test_a_plan_keeps_the_tables_that_lie_beside_it(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: str, arguments: list[str], *_: Any) -> dict[str, Any]:
        file = Path(arguments[arguments.index("--out") + 1] if command == "plan" else arguments[0])
        for name in (file.name, "saved-plan.files-0123.gz"):
            if command == "plan":
                file.with_name(name).write_bytes(name.encode())
            assert file.with_name(name).read_bytes() == name.encode()
        return {"diagnostics": [], "steps": [], "jobs": []}

    monkeypatch.setattr(api, "_run", run)
    plan = api.plan(deployment / "m.yaml")
    assert plan.saved is not None
    assert list(plan.saved.tables) == ["saved-plan.files-0123.gz"]
    assert api.apply(plan).done


def test_a_plan_is_refused_when_its_model_is_another(deployment: Path) -> None:
    plan = api.plan(deployment / "m.yaml")
    np.save(deployment / "data.npy", np.zeros((5, 4), np.float32))
    outcome = api.apply(plan)
    assert outcome.refused
    assert outcome.jobs == ()
    assert {one.code for one in outcome.findings} == {"moved-fact"}


def test_a_plan_keeps_its_folders_in_another_working_directory(
    deployment: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path_factory.mktemp("data")
    shutil.move(deployment / "data.npy", data)
    monkeypatch.chdir(data)
    settings = {"jobs.run.input.path": str(data / "data.npy")}
    plan = api.plan(deployment / "m.yaml", settings=settings, roots=["."], state_dir="state")
    monkeypatch.chdir(deployment)
    assert api.apply(plan).done
    assert (data / "state/state.db").exists()
    assert not (deployment / "state").exists()


def test_a_refused_plan_runs_nothing(deployment: Path) -> None:
    plan = api.plan(deployment / "m.yaml", settings={"models.double.path": "gone.onnx"})
    assert plan.refused
    assert plan.saved is None
    assert api.apply(plan) == api.Outcome(findings=plan.findings, jobs=())


def test_options_of_a_plan_are_its_own(deployment: Path) -> None:
    plan = api.plan(deployment / "m.yaml")
    with pytest.raises(api.UsageError, match="give them to plan"):
        api.apply(plan, settings={"jobs.run.batch.size": 1})


def test_no_jobs_are_not_all_jobs(deployment: Path) -> None:
    with pytest.raises(api.UsageError, match="jobs is empty"):
        api.apply(deployment / "m.yaml", jobs=[])


def test_rows_that_fail_can_be_read(deployment: Path) -> None:
    (deployment / "data.npy").unlink()
    lines = [{"x": [1, 2, 3, 4], "id": 1}, {"x": [1, 2], "id": 2}]
    (deployment / "data.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    settings = {"jobs.run.input": {"path": "data.jsonl", "key": ["id"]}, "jobs.run.errors": {"max_failed": 1}}
    (result,) = api.apply(deployment / "m.yaml", settings=settings).jobs
    assert (result.status, result.committed, result.failed) == (api.Status.DONE, 1, 1)
    assert [one["key"] for one in result.failures()] == [{"id": 2}]


def test_text_among_the_settings_stays_text(deployment: Path) -> None:
    (finding,) = api.validate(deployment / "m.yaml", settings={"models.double.sha256": "0" * 64, "version": "1"})
    assert finding.where.path == "--set version"


def test_events_come_to_the_caller(deployment: Path) -> None:
    events: list[api.Event] = []
    api.apply(deployment / "m.yaml", on_event=events.append)
    assert events[0]["event"] == "run.started"
    assert {"part.committed", "job.finished"} <= {str(one["event"]) for one in events}


@pytest.mark.parametrize("ignored", [False, True])
def test_a_run_that_is_stopped_goes_on_later(deployment: Path, *, ignored: bool) -> None:
    """Also where SIGINT is ignored, as it is by what a shell starts in the background."""
    stop = threading.Event()
    manifest = many_rows(deployment)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        outcome = api.apply(
            manifest, stop=stop, on_event=lambda one: stop.set() if one["event"] == "job.started" else None
        )
    finally:
        signal.signal(signal.SIGINT, before)
    (result,) = outcome.jobs
    assert result.status is api.Status.INTERRUPTED
    assert not outcome.done
    assert result.committed + result.kept < 200_000


def test_an_exception_of_the_caller_ends_the_run_first(deployment: Path) -> None:
    def refuse(event: api.Event) -> None:
        if event["event"] == "job.started":
            raise RuntimeError("enough")

    manifest = many_rows(deployment)
    with pytest.raises(RuntimeError, match="enough"):
        api.apply(manifest, on_event=refuse)
    with pytest.raises(RuntimeError, match="enough"):
        api.apply(manifest, on_event=refuse)  # nobody holds the state any more


def test_a_run_that_is_stopped_too_early_says_so(deployment: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(api.OrtdeployError, match="stopped before any job began"):
        api.apply(many_rows(deployment), stop=stop)
    assert not (deployment / "out").exists()


@pytest.mark.slow
def test_two_runs_of_one_output_are_refused(deployment: Path) -> None:
    raised: list[Exception] = []
    manifest = many_rows(deployment)
    stop = threading.Event()

    def second(event: api.Event) -> None:
        if event["event"] == "job.started":
            try:
                api.apply(manifest)
            except api.LockedError as error:
                raised.append(error)
            stop.set()

    api.apply(manifest, stop=stop, on_event=second)
    assert len(raised) == 1


def test_wrong_usage_is_raised(deployment: Path) -> None:
    with pytest.raises(api.UsageError, match=r'there is no job "walk". Did you mean|Known: run'):
        api.plan(deployment / "m.yaml", jobs=["walk"])
    with pytest.raises(api.UsageError, match="is a folder"):
        api.apply(deployment)


@pytest.mark.usefixtures("new_python")
def test_it_works_in_a_thread_and_prints_nothing(deployment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[api.Outcome] = []
    thread = threading.Thread(target=lambda: found.append(api.apply(deployment / "m.yaml")))
    thread.start()
    thread.join()
    assert found[0].done
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("new_python")
def test_modules_of_the_current_folder_are_not_taken(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (deployment / "json.py").write_text("raise RuntimeError('a stranger')\n")
    monkeypatch.chdir(deployment)
    assert api.apply("m.yaml").done


LIGHT = {"numpy", "onnx", "onnxruntime", "yaml", "jsonschema", "sqlite3", "asyncio", "ortdeploy.planning.workflow"}


BRINGS = {
    "import ortdeploy": LIGHT | {"json", "subprocess"},
    "from ortdeploy import api": LIGHT,
    "assert api.apply('m.yaml').done": LIGHT,
    "api.validate('m.yaml')": LIGHT - {"yaml", "ortdeploy.planning.workflow"},
}
"""What a program says to Python, one line after the other, and what must not be loaded behind it."""


def test_what_importing_it_brings(deployment: Path) -> None:
    steps = "; ".join(f"{step}; loaded.append(list(sys.modules))" for step in BRINGS)
    code = f"import sys; loaded = []; {steps}; import json; print(json.dumps(loaded))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=deployment,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    for (step, banned), loaded in zip(BRINGS.items(), json.loads(done.stdout), strict=True):
        assert banned.intersection(loaded) == set(), step


def test_every_public_name_is_documented() -> None:
    assert set(api.__all__) <= set(vars(api))
    assert all(vars(api)[name].__doc__ for name in api.__all__)
    assert {one.name for one in fields(api.Finding)} >= {"code", "where", "what", "why"}


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore = shutil.ignore_patterns("outbox", ".ortdeploy", "gallery", "embeddings")
    shutil.copytree(REPOSITORY / "deployments", tmp_path / "deployments", ignore=ignore)
    monkeypatch.chdir(tmp_path / "deployments")
    text = (REPOSITORY / "docs/python.md").read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text.replace("\n```\n", "\n\n"), {}, "python.md", "docs/python.md", 0)
    said: list[str] = []
    ended = doctest.DocTestRunner().run(test, out=said.append)
    assert ended.attempted > 15
    assert not ended.failed, "".join(said)
