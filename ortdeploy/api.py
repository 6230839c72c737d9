"""The Python API: `validate`, `plan` and `apply` for a program that embeds ortdeploy. docs/python.md describes it.

`validate` runs in this process, because it only reads text. `plan` and `apply` run the program in a process of its own:
native code that crashes, its prints, its memory and the program's handling of signals stay out of the caller's process.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ortdeploy.diagnostics import Certainty, Diagnostic, LockedError, OrtdeployError, Severity, UsageError
from ortdeploy.files.opening import open_regular, read_whole
from ortdeploy.process.child import how_it_ended, program_command
from ortdeploy.results.results import Status

__all__ = [
    "Certainty",
    "Finding",
    "JobResult",
    "LockedError",
    "OrtdeployError",
    "Outcome",
    "Place",
    "Plan",
    "PlannedJob",
    "PlannedSession",
    "SavedPlan",
    "Severity",
    "Status",
    "UsageError",
    "apply",
    "plan",
    "validate",
]

_SAVED = "saved-plan.json"
Event = Mapping[str, Any]
"""A log event, as docs/events.md lists them: its name under `event`, and its fields."""

_Path = str | os.PathLike[str]
_LOCKED, _USAGE = 4, 64
_LAST_LINES = 20
_STOPPED_EARLY = "it was stopped before any job began"
_LOOK_SECONDS = 0.1  # how often a thread asks whether a run is over that it may have to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding is: a file, or the flag that stands for an argument; line and column count from 1."""

    path: str
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or that a warning is about.

    `code` is the name of the rule and `what` its fixed text; `why` says in full sentences what is wrong in this case.
    """

    code: str
    severity: Severity
    certainty: Certainty
    where: Place
    what: str
    why: str
    model: str | None
    job: str | None

    @property
    def todo(self) -> str:
        """How such findings are fixed in general; empty if `why` says all there is to say."""
        from ortdeploy.rules.pages import remedy_of  # noqa: PLC0415  many look no further than at the code

        return remedy_of(self.code)

    def __str__(self) -> str:
        """Return it as one line that editors can follow, and a second line with the reason."""
        place = f"{self.where.path}:{self.where.line}:{self.where.column}"
        return f"{place}: {self.severity}[{self.code}]: {self.what}\n  {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """The sessions of a model, or of op steps: the chains of providers, by full names, that are tried or all used."""

    name: str
    model: str
    chains: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that would run; `rows` are those of its input, None if nobody has counted them.

    `done` of them are in committed parts, those that have failed or were skipped too; the others are left to run.
    `output` is the folder or URL as the manifest says it, `folder` is where its parts are written on this machine.
    """

    job: str
    model: str
    rows: int | None
    done: int
    output: str
    folder: Path
    format: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """The text of a plan file, and the flags that it was made with; for `apply`. `tables` lie beside it, by name."""

    text: bytes = field(repr=False)
    flags: tuple[str, ...]
    tables: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run for a manifest. Jobs that have nothing to run are left out; `saved` is None if it is refused."""

    manifest: Path
    findings: tuple[Finding, ...]
    sessions: tuple[PlannedSession, ...]
    jobs: tuple[PlannedJob, ...]
    saved: SavedPlan | None

    @property
    def refused(self) -> bool:
        """Whether a finding stops it."""
        return _refuses(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended, with the rows that are committed, failed and skipped over all its runs.

    `kept` rows are through of a part that is not committed yet. `seconds` are those of this run. `folder` is None if
    the output is a URL and nothing was run. `memory` says that memory grew with the rows, or exceeded its forecast.
    """

    job: str
    status: Status
    output: str
    folder: Path | None
    committed: int
    failed: int
    skipped: int
    kept: int
    seconds: float
    reason: str | None
    memory: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """Read the report of the job's last run, `_run.json`; empty if the folder has none."""
        path = None if self.folder is None else self.folder / "_run.json"
        if path is None or not path.is_file():
            return {}
        report: dict[str, Any] = json.loads(read_whole(path))
        return report

    def failures(self) -> Iterator[dict[str, Any]]:
        """Read the rows without a result, line by line of `_failed.jsonl`."""
        path = None if self.folder is None else self.folder / "_failed.jsonl"
        if path is not None and path.is_file():
            with open_regular(path) as lines:
                yield from map(json.loads, lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of `apply`: findings, and how each job ended; no job has run if the manifest was refused."""

    findings: tuple[Finding, ...]
    jobs: tuple[JobResult, ...]

    @property
    def refused(self) -> bool:
        """Whether a finding stopped it before anything ran."""
        return _refuses(self.findings)

    @property
    def done(self) -> bool:
        """Whether nothing was refused and every job is done, or had nothing to do."""
        return not self.refused and all(one.status in {Status.DONE, Status.NOTHING_TO_DO} for one in self.jobs)


def validate(
    *paths: _Path,
    profile: str | None = None,
    overlays: Sequence[_Path] = (),
    settings: Mapping[str, object] | None = None,
    roots: Sequence[_Path] = (),
) -> tuple[Finding, ...]:
    """Check the text of manifests, or of folders of them; no model, data or device is looked at.

    `overlays` are files that are merged into the manifests, and `settings` replace single values by their dotted keys.
    `roots` are folders beside the manifest's own that paths may lead into.
    """
    from ortdeploy.manifest.loader import LoadOptions  # noqa: PLC0415  many embed apply alone
    from ortdeploy.planning import validation  # noqa: PLC0415  as above

    options = LoadOptions(
        digest=False,
        profile=profile,
        sets=tuple(_settings(settings)),
        roots=tuple(os.fspath(root) for root in roots),
        overlays=tuple(os.fspath(overlay) for overlay in overlays),
    )
    validated = validation.validate([os.fspath(path) for path in paths], options, devices=True)
    return tuple(map(_finding, validated.diagnostics))


def plan(
    manifest: _Path,
    *,
    profile: str | None = None,
    overlays: Sequence[_Path] = (),
    settings: Mapping[str, object] | None = None,
    roots: Sequence[_Path] = (),
    state_dir: _Path | None = None,
    jobs: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    device: _Path | None = None,
    new_run: bool = False,
) -> Plan:
    """Look at this machine, the models and the data, and return what would run, or why it cannot; nothing is run.

    `jobs` and `exclude` are names or globs of jobs. `device` is a file that describes another machine to plan for.
    `new_run`: jobs whose result is unfinished, or made from something else, start over. The other parameters are those
    of `validate`. Raises UsageError, LockedError and OrtdeployError.
    """
    path = _one_manifest(manifest)
    asked = [*_manifest_flags(profile, overlays, settings), *_choice_flags(jobs, exclude, new_run=new_run)]
    kept = _folder_flags(roots, state_dir)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _SAVED
        saving = ["--out", str(file), "--root", path.anchor, *_flag("--device", device)]
        answer = _run("plan", [str(path), *asked, *kept, *saving])
        text = read_whole(file) if file.exists() else None
        tables = {one.name: read_whole(one) for one in file.parent.iterdir() if one != file}
    return Plan(
        manifest=path,
        findings=_findings(answer),
        sessions=tuple(_planned_session(one) for one in answer["steps"] if one["step"] == "open-session"),
        jobs=tuple(_planned_job(one, path.parent) for one in answer["steps"] if one["step"] == "run-job"),
        saved=None if text is None else SavedPlan(text=text, flags=tuple(kept), tables=tables),
    )


def apply(
    what: _Path | Plan,
    *,
    profile: str | None = None,
    overlays: Sequence[_Path] = (),
    settings: Mapping[str, object] | None = None,
    roots: Sequence[_Path] = (),
    state_dir: _Path | None = None,
    jobs: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    new_run: bool = False,
    on_event: Callable[[Event], None] | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Plan a manifest and run its jobs; or run a plan, which is refused if anything that it rests on has changed.

    A `Plan` brings its own options, so only `jobs` and `exclude` go with it. `on_event` gets each log event in this
    thread. If `stop` is set, the run commits what it has and ends, as it does before KeyboardInterrupt is raised; the
    next call goes on behind it. If no job had begun, that is an OrtdeployError. The other parameters are those of
    `plan`. Raises UsageError, LockedError and OrtdeployError.
    """
    chosen = _choice_flags(jobs, exclude, new_run=new_run)
    if not isinstance(what, Plan):
        path = _one_manifest(what)
        options = [*_manifest_flags(profile, overlays, settings), *chosen, *_folder_flags(roots, state_dir)]
        return _outcome(_run("apply", [str(path), *options], on_event, stop), path.parent)
    if profile or overlays or settings or roots or state_dir or new_run:
        raise UsageError("a plan has been made with its own options: give them to plan, not to apply")
    if what.saved is None:
        return Outcome(findings=what.findings, jobs=())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _SAVED
        file.write_bytes(what.saved.text)
        for name, table in what.saved.tables.items():
            file.with_name(name).write_bytes(table)
        flags = [*chosen, *what.saved.flags, "--root", what.manifest.anchor]
        return _outcome(_run("apply", [str(file), *flags], on_event, stop), what.manifest.parent)


def _one_manifest(path: _Path) -> Path:
    found = Path(os.path.abspath(path))  # noqa: PTH100  without following links
    if found.is_dir():
        raise UsageError(f"{path} is a folder; name one manifest in it")
    return found


def _flag(name: str, value: _Path | None) -> list[str]:
    return [] if value is None else [f"{name}={os.fspath(value)}"]


def _flags(name: str, values: Iterable[_Path]) -> list[str]:
    return [flag for value in values for flag in _flag(name, value)]


def _folder_flags(roots: Sequence[_Path], state_dir: _Path | None) -> list[str]:
    """Return them absolute: a plan may be applied from another working directory."""
    state = [] if state_dir is None else [state_dir]
    return [*_flags("--allow-root", map(os.path.abspath, roots)), *_flags("--state-dir", map(os.path.abspath, state))]


def _settings(settings: Mapping[str, object] | None) -> list[str]:
    """Return settings as the command line takes them: JSON is YAML, and keeps text apart from numbers."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (settings or {}).items()]


def _manifest_flags(profile: str | None, overlays: Sequence[_Path], settings: Mapping[str, object] | None) -> list[str]:
    return [*_flag("--profile", profile), *_flags("--overlay", overlays), *_flags("--set", _settings(settings))]


def _choice_flags(jobs: Sequence[str] | None, exclude: Sequence[str], *, new_run: bool) -> list[str]:
    if jobs is not None and not jobs:
        raise UsageError("jobs is empty, so there is nothing to run: leave it out for all jobs")
    return [*_flags("--job", jobs or ()), *_flags("--exclude", exclude), *(["--new-run"] if new_run else [])]


def _run(
    command: str,
    arguments: Sequence[str],
    on_event: Callable[[Event], None] | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Run a command in a process of its own, and return the JSON document that it prints. Raises what it ended with."""
    if stop is not None and stop.is_set():
        raise OrtdeployError(_STOPPED_EARLY)
    said: list[str] = []
    with _started(command, arguments) as process:
        printed: list[bytes] = []
        reader = threading.Thread(target=lambda: printed.append(_pipe(process.stdout).read()))
        reader.start()
        if stop is not None:
            threading.Thread(target=_stop_when, args=(stop, process), daemon=True).start()
        for line in _pipe(process.stderr):
            event = _event(line)
            if event is None:
                said = [*said, line.decode(errors="replace").rstrip()][-_LAST_LINES:]
            elif on_event is not None:
                on_event(event)
        reader.join()
        code = process.wait()
    try:
        answer: dict[str, Any] = json.loads(printed[0])
    except ValueError:
        if stop is not None and stop.is_set():
            raise OrtdeployError(_STOPPED_EARLY) from None
        raise _failure(code, "\n".join(said)) from None
    return answer


@contextmanager
def _started(command: str, arguments: Sequence[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the program. If the block fails, let it commit what it has, and wait for its end."""
    options = ["--format=json", "--log-format=json", "--color=never"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORTDEPLOY_")}
    process = subprocess.Popen(  # noqa: S603  our own program
        [*program_command(), command, *options, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a terminal's signals reach it only through the caller
    )
    try:
        yield process
    except BaseException:
        _ask_to_stop(process)
        process.communicate()
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            _pipe(pipe).close()


def _ask_to_stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask the program to commit what it has and end. Windows can only end it, which loses no committed row either.

    SIGINT would not do: what a shell starts in the background ignores it, and so do its children.
    """
    if process.poll() is None:
        process.terminate()


def _stop_when(stop: threading.Event, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        if stop.wait(_LOOK_SECONDS):
            _ask_to_stop(process)
            return


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("a pipe was asked for")
    return stream


def _event(line: bytes) -> Event | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _failure(code: int, said: str) -> Exception:
    """Return the exception for a program that ended without a result."""
    words = said.removeprefix("ortdeploy: ").removesuffix(".") or f"ortdeploy {how_it_ended(code)}"
    if code == _USAGE:
        return UsageError(words)
    if code == _LOCKED:
        return LockedError(words)
    return OrtdeployError(words)


def _refuses(findings: Sequence[Finding]) -> bool:
    return any(one.severity is Severity.ERROR for one in findings)


def _finding(one: Diagnostic) -> Finding:
    return Finding(
        code=one.rule,
        severity=one.severity,
        certainty=one.certainty,
        where=Place(path=one.span.path, line=one.span.line, column=one.span.column),
        what=one.summary,
        why=one.detail,
        model=one.model,
        job=one.job,
    )


def _findings(answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code=one["rule"],
            severity=Severity(one["severity"]),
            certainty=Certainty(one["certainty"]),
            where=Place(path=one["path"], line=one["line"], column=one["column"]),
            what=one["summary"],
            why=one["detail"],
            model=one["model"],
            job=one["job"],
        )
        for one in answer["diagnostics"]
    )


def _planned_session(step: Mapping[str, Any]) -> PlannedSession:
    chains = (tuple(provider["name"] for provider in one["providers"]) for one in step["candidates"])
    return PlannedSession(name=step["session"], model=step["model"], chains=tuple(chains))


def _planned_job(step: Mapping[str, Any], folder: Path) -> PlannedJob:
    output = step["output"]
    return PlannedJob(
        job=step["job"],
        model=step["model"],
        rows=step["input"]["rows"],
        done=output["committed_rows"],
        output=output["upload"] or output["path"],
        folder=folder / output["path"],
        format=output["format"],
        columns=tuple(output["columns"]),
    )


def _outcome(answer: Mapping[str, Any], folder: Path) -> Outcome:
    paths = {one["job"]: one["output"]["path"] for one in answer["steps"] if one["step"] == "run-job"}
    return Outcome(
        findings=_findings(answer),
        jobs=tuple(_job_result(one, paths.get(one["job"]), folder) for one in answer["jobs"]),
    )


def _job_result(one: Mapping[str, Any], path: str | None, folder: Path) -> JobResult:
    local = path or (None if "://" in one["output"] else one["output"])
    same = {
        name: one[name] for name in ("job", "output", "committed", "failed", "skipped", "kept", "seconds", "reason")
    }
    place = None if local is None else folder / local
    return JobResult(**same, status=Status(one["status"]), memory=tuple(one["memory"]), folder=place)
