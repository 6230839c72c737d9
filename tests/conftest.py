"""Fixtures: the program as a user calls it, and small deployments to call it on."""

import gc
import importlib.util
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from support import forks, markers, s3, shell_programs
from support.effort import effort
from support.models import scale_model

from ortdeploy.cli import tryouts
from ortdeploy.cli.command_line import arguments
from ortdeploy.cli.command_line.parser import columns
from ortdeploy.cli.main import main
from ortdeploy.deployment.threads import SPINNING
from ortdeploy.events import log
from ortdeploy.files import gate
from ortdeploy.ledger import versions
from ortdeploy.planning.preflight import openings
from ortdeploy.planning.remembered import graph_cache, nothing_to_do
from ortdeploy.process import memory
from ortdeploy.process.child import Answer
from ortdeploy.process.cores import usable_cores
from ortdeploy.process.fork import Messages
from ortdeploy.runtime import probe, session, supported_versions, trial_opening, trial_run
from ortdeploy.state import memo
from ortdeploy.tuning import batch_size, thread_layout

REPOSITORY = Path(__file__).parent.parent
IN_MEMORY = Path("/dev/shm")  # noqa: S108  files of tests are in a folder of their own there
ROOM = 2 * 1024**3
count_shared_pages = memory.proportional_memory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that writes golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="write what is printed now to golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written."""
    return bool(request.config.getoption("--update-golden"))


gc.set_threshold(50_000, 20, 50)  # so many objects are made that Python would look for cycles all the time
settings.register_profile("ortdeploy", max_examples=effort(15, 100), deadline=None)  # no test is timed
settings.load_profile("ortdeploy")
with suppress(ImportError):
    # Hypothesis would parse every module of the project that is loaded, for constants to draw: a second in each worker,
    # and which examples a seed draws would depend on which tests ran before.
    providers = importlib.import_module("hypothesis.internal.conjecture.providers")
    providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]  # noqa: SLF001


def pytest_configure() -> None:
    """Keep the tests' files in memory if there is room: thousands of them are synced to disk, one after the other.

    Bytecode is written even if the environment says otherwise: programs that tests start would compile every module.
    """
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored, and programs that tests start would too
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    platform.platform()  # which starts `uname -p` once
    if hasattr(os, "statvfs") and os.access(IN_MEMORY, os.W_OK):
        room = os.statvfs(IN_MEMORY)
        if room.f_bavail * room.f_frsize > ROOM and not room.f_flag & os.ST_NOEXEC:  # some tests load libraries
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Let one worker more than there are cores run: tests wait for processes and disks, and unit tests do not.

    Each collects all tests, and reads what they need first: five seconds or more. A second one more takes a tenth more
    processor time, and as long in all, also where something else takes a core.
    """
    return usable_cores() + (0 if config.option.markexpr == "unit" else 1)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin to collect at another file: in a new checkout, each compiles some and finds the others'."""
    report = yield
    if isinstance(collector, pytest.Dir) and (worker := getattr(collector.config, "workerinput", None)):
        begins = int(worker["workerid"].removeprefix("gw")) * len(report.result) // worker["workercount"]
        report.result = [*report.result[begins:], *report.result[:begins]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests before -m chooses among them; all workers have them in the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parts)
    chosen = config.getoption("lf", default=False) or any("::" in argument for argument in config.args)
    markers.mark(items, are_all=not chosen)


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at the tests themselves: hundreds of thousands of objects, all kept."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let workers send no keywords of a test, three times each, to the process that counts: it looks at none."""
    data = yield
    if data is not None and "keywords" in data:
        data["keywords"] = {}
    return data


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a unit or job test to its marker in its fixtures."""
    with markers.held(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a unit or job test to its marker; no later test logs to where this one had its events sent."""
    try:
        with markers.held(item):
            return (yield)
    finally:
        log.send_to(None)


@pytest.fixture(autouse=True, scope="session")
def quick_looks() -> Iterator[None]:
    """Let no command look for milliseconds at what is much here and stays as it is.

    Shared pages are counted over all that is loaded, the limits of control groups are in several files, each of a
    thousand loaded modules is a file that an answer rests on, packages are looked for in a folder of hundreds, ONNX
    Runtime refuses models to tell what it takes, and a new ledger gets its tables by way of all versions. Batch sizes
    and layouts of threads run for a while each. The flags of a command are the same each time. Threads of sessions
    sleep when they wait: they would spin for longer than all else in a job of a few rows.
    """
    find_limits = cache(lambda _: supported_versions.find_limits())
    read_limit = memory._limit_in  # noqa: SLF001
    known_limit = cache(read_limit)
    find_extra = cache(lambda name, find: find(name))
    make_options = session.session_options
    parsers = cache(lambda only, _width: arguments.build_parser(only))

    def limit_in(group: Path) -> int | None:
        return known_limit(group) if str(group).startswith("/sys/") else read_limit(group)  # not where a test plays one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "proportional_memory", memory.resident_memory)
        patch.setattr(batch_size, "_RUN_SECONDS", 0.0)
        patch.setattr(thread_layout, "_SECONDS", 0.0)
        patch.setattr(memory, "_limit_in", limit_in)
        patch.setattr("ortdeploy.cli.main.build_parser", lambda only=None: parsers(only, columns()))
        patch.setattr(nothing_to_do, "code_files", lambda: [nothing_to_do.__file__])
        patch.setattr(versions, "_NEW", tables_of_a_new_ledger())
        patch.setattr(probe, "_EXTRAS", tuple(filter(importlib.util.find_spec, probe._EXTRAS)))  # noqa: SLF001
        patch.setattr(probe, "runtime_packages", cache(probe.runtime_packages))
        patch.setattr(probe, "find_limits", lambda: find_limits(os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY")))
        patch.setattr(probe, "find_spec", lambda name: find_extra(name, importlib.util.find_spec))
        patch.setattr(
            session,
            "session_options",
            lambda options: make_options({**options, "config": {SPINNING: "0", **options.get("config", {})}}),
        )
        yield


def tables_of_a_new_ledger() -> str:
    """Return the statements that make the tables at once that a new ledger gets."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as ledger:
        versions.bring_up_to_date(ledger)
        return ";".join(sql for (sql,) in ledger.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


@pytest.fixture(autouse=True)
def models_are_opened_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let each model be opened and its graph read once in all tests, which have the same few, and in this process.

    A fork of it takes longer than all else in a plan of a small model. A test is marked `opens_models` or
    `reads_graphs` if it is about that.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("opens_models"):
            patch.setattr(openings, "memo", KnownByAll)
            for module in (trial_opening, trial_run, tryouts):
                patch.setattr(module, "ask_fork", answer_here)
        if not request.node.get_closest_marker("reads_graphs"):
            patch.setattr(graph_cache, "memo", KnownByAll)
        patch.setattr(memo, "_waiting", {})
        yield


def answer_here(messages: Messages, *, seconds: float) -> Answer:  # noqa: ARG001  as `ask_fork`
    """Answer in this process what a fork of it would answer, in a tenth of the time."""
    said: list[Any] = []
    with suppress(Exception):
        said += (json.loads(json.dumps(message)) for message in messages())
        return Answer(said, 0, late=False, printed="")
    return Answer(said, 1, late=False, printed="")


class KnownByAll:
    """The memo, with what any test has found out under the same key; each state folder gets it as if found out anew."""

    values: ClassVar[dict[tuple[str, str], str]] = {}

    @classmethod
    def get(cls, state_dir: Path, kind: str, key: str) -> Any:
        found = memo.get(state_dir, kind, key)
        if found is None and (kind, key) in cls.values:
            found = json.loads(cls.values[kind, key])
            memo.put(state_dir, kind, key, found)
        return found

    @classmethod
    def put(cls, state_dir: Path, kind: str, key: str, value: Any) -> None:
        cls.values[kind, key] = json.dumps(value)
        memo.put(state_dir, kind, key, value)


@dataclass(frozen=True, slots=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """What was printed, without line ends: where these are depends on how long a path is."""
        return " ".join(f"{self.out} {self.err}".split())


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call ortdeploy in this process. The children that it starts are forks of it."""

    def call(*arguments: str | Path) -> Result:
        capsys.readouterr()
        try:
            with forks.children_as_forks():
                code = main([str(argument) for argument in arguments])
        finally:
            log.send_to(None)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def run_process(arguments: Sequence[str | Path], *, cwd: Path, env: dict[str, str] | None = None) -> Result:
    """Call ortdeploy in a process of its own."""
    command = [sys.executable, "-m", "ortdeploy", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, encoding="utf-8", check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run_fork(arguments: Sequence[str | Path], *, cwd: Path, env: dict[str, str] | None = None) -> Result:
    """Call ortdeploy in a process of its own that is a fork of this one, where how it begins is of no account."""
    with forks.start_program(
        arguments,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        out, err = process.communicate()
    return Result(process.returncode, out, err)


@pytest.fixture(scope="session")
def shell_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a program `ortdeploy` for shells, which is a fork of this process each time that it is called."""
    with shell_programs.shell_program(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


MANIFEST = """\
version: 1
name: demo
models:
  double: {path: double.onnx}
jobs:
  run:
    model: double
    input: {path: data.npy, key: [row]}
    batch: {size: 8}
    output: {path: outbox/run, format: jsonl}
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A deployment that works: 20 rows of 4 numbers, each doubled."""
    deploy(tmp_path)
    return tmp_path


def deploy(folder: Path) -> None:
    scale_model(folder / "double.onnx")
    np.save(folder / "data.npy", np.arange(80, dtype=np.float32).reshape(20, 4))
    (folder / "m.yaml").write_text(MANIFEST, encoding="utf-8")


@pytest.fixture
def store() -> Iterator[Any]:
    """An empty store in memory, which tests alone let through: what lies there is gone with the process."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gate.SCHEMES, "memory", gate.Scheme(package="fsspec", has_user=True, decides=True))
        yield system
    system.store.clear()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of an S3 server, which starts with the first test that needs one."""
    if not all(map(importlib.util.find_spec, ("s3fs", "moto"))):
        pytest.skip("needs s3fs and moto[server]")
    with s3.server() as port:
        yield port


@pytest.fixture
def bucket(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Store]:
    """An empty bucket on the S3 server, which this process and its children reach through a proxy."""
    with s3.bucket(s3_port, monkeypatch) as bucket:
        yield bucket


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of all JSON-lines parts, in order."""
    parts = sorted(folder.glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
