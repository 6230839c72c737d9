"""Writes what this device says of its deployments: a status document each, and metrics if they are asked for.

An apply writes them when it begins to run something and when it ends, also if a manifest is refused for its text. If
nothing has changed but the time, only the time is set. What cannot be written keeps no apply from its work.
"""

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import device_name, labels_of
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.facts.variants import KEPT, Fact
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.disk import make_folders
from ortdeploy.files.gate import outside
from ortdeploy.files.json_text import read_json
from ortdeploy.files.listing import expand
from ortdeploy.files.names import relative
from ortdeploy.files.opening import read_whole
from ortdeploy.files.urls import is_url
from ortdeploy.fleet.document import (
    FORMAT_VERSION,
    Document,
    Job,
    Profile,
    Refused,
    State,
    Version,
    Versions,
    Wanted,
)
from ortdeploy.fleet.metrics import render_metrics
from ortdeploy.fleet.this_device import commit_of, this_clock, this_device
from ortdeploy.ledger.integrity import damages
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.selection import output_paths, run_jobs
from ortdeploy.plan.steps import OpenSession, Plan, PlannedFiles, RunJob
from ortdeploy.planning.devices.kept_choices import last_choice
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.process.leaks import GROWTH
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.results.results import JobResult, Status
from ortdeploy.state.looks import FOLDER, MOST_BYTES, key_of, moment_of, replace_file, times_of, touch
from ortdeploy.versions import package_version, runtime_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ortdeploy.manifest.spec import JobSpec, Spec
    from ortdeploy.planning.versions.installed import Wanted as WantedBundle

_TIMES = ("sequence", "last_look", "next_look")
"""What differs between two documents that say the same; the times are the last of a document."""
_LONGEST, _MOST_FACTS = 300, 100
_WELL = ("current", "paused")
"""States of a version that runs which say less than that the one that is wanted is refused."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How an apply of a manifest ended, or `running` while it has not; with its `plan` and `spec`, if there are.

    `reached` is the state that the wanted version reached. With a `diagnostic`, or a `summary` of no rule, it is
    refused.
    """

    manifest: str
    state: State
    plan: Plan | None = None
    spec: "Spec | None" = None
    document: Any = None
    results: Sequence[JobResult] = ()
    diagnostic: Diagnostic | None = None
    summary: str | None = None
    reached: str = "current"


class SelfReport:
    """The documents and metrics that one apply writes, twice if it runs something."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._before: dict[str, Document | None] = {}

    def write(self, outcomes: Iterable[Outcome]) -> list[str] | None:
        """Write what is said of deployments; return the paths of the files, None if one could not be written."""
        written: list[str] = []
        whole = True
        for outcome in outcomes:
            folder = place = Path(outcome.manifest).parent
            roots = outcome.plan.roots if outcome.plan else tuple(map(os.path.abspath, self._arguments.roots))
            try:
                place = state_folder(str(folder), self._arguments.state_dir, roots)
                one = _Report(outcome, self._arguments, place)
                one.before = self._before.setdefault(outcome.manifest, one.before)
                written += one.write()
            except (OrtdeployError, OSError, ValueError) as error:
                log.warning("status.not_written", manifest=outcome.manifest, reason=failure_at(place, error))
                whole = False
        return written if whole else None


class _Report:
    """The document of one deployment, made of its outcome and of the document `before` this apply."""

    def __init__(self, outcome: Outcome, arguments: argparse.Namespace, state_dir: Path) -> None:
        self._outcome, self._arguments, self._state_dir = outcome, arguments, state_dir
        self._folder = Path(outcome.manifest).parent
        self._installed = getattr(getattr(arguments, "taken", None), "installed", None)
        name = outcome.manifest if self._installed is None else self._installed.name
        self._key = key_of(name, str(self._folder))
        self._path = state_dir / FOLDER / f"{self._key}.json"
        self._now = time.time()
        self._every = None if outcome.state == "running" else arguments.every  # when a run ends is not known
        self.before = self._last = _read(self._path)

    def write(self) -> list[str]:
        """Write the document and the metrics, or set their times; return their paths. Raises OSError."""
        said = self._document()
        paths = [str(self._path)]
        metrics = None if self._arguments.metrics is None else Path(self._arguments.metrics) / self._metrics_file(said)
        if metrics is not None:
            paths.append(str(metrics))
        same = self._last is not None and _lasting(said) == _lasting(self._last)
        if same and touch(paths, self._every, said.state):
            return paths
        make_folders(self._path.parent)
        replace_file(str(self._path), _text(said, self._now, self._every), synced=True)
        if metrics is not None:
            for other in metrics.parent.glob(f"ortdeploy-*-{self._key}.prom"):
                if other != metrics:  # the deployment had another name
                    other.unlink(missing_ok=True)
            replace_file(str(metrics), render_metrics(said, self._key))
        return paths

    def _asked(self) -> Version:
        """Return the version that is to run: the installed one, or the manifest as it is."""
        current = None if self._installed is None else self._installed.version(self._installed.current)
        if current is not None:
            return Version(bundle=current.id, number=current.number, label=current.label or None)
        if self._installed is not None:
            return Version()
        return Version(commit=commit_of(self._folder), text_digest=self._text_digest())

    def _bundle(self) -> "WantedBundle | None":
        """Return the bundle that was asked for last, if it is not the one that runs; None for a manifest."""
        if self._installed is None:
            return None
        from ortdeploy.planning.versions.installed import wanted_version  # noqa: PLC0415  only for bundles

        found = wanted_version(self._state_dir, self._installed.name)
        return None if found is None or found.same else found

    def _metrics_file(self, said: Document) -> str:
        return f"ortdeploy-{re.sub(r'[^A-Za-z0-9_.-]', '-', said.deployment[:100])}-{self._key}.prom"

    def _document(self) -> Document:
        outcome, before, now = self._outcome, self.before, moment_of(self._now)
        every = self._every
        asked = self._asked()
        is_refused = outcome.state == "refused"
        running = (before.version if before else Version()) if is_refused else asked
        wanted = Wanted(same=not is_refused, state_reached=outcome.reached)
        refusal, bundle = self._refusal(now) if is_refused else None, self._bundle()
        if bundle is not None:
            wanted = Wanted(same=False, state_reached=bundle.reached)
            refusal = refusal or _refusal_of(bundle)
        return Document(
            format_version=FORMAT_VERSION,
            deployment=self._name(),
            device=this_device(device_name(), labels_of(self._arguments.labels)),
            version=running,
            wanted=replace(wanted, commit=asked.commit, text_digest=asked.text_digest) if is_refused else wanted,
            profile=self._profile(now),
            state="refused" if refusal is not None and outcome.state in _WELL else outcome.state,
            refusal=refusal,
            jobs=tuple(self._jobs()),
            versions=self._versions(),
            clock=this_clock(self._now),
            sequence=self._last.sequence + 1 if self._last else 1,
            last_look=now,
            next_look=None if every is None else moment_of(self._now + every),
        )

    def _name(self) -> str:
        outcome = self._outcome
        known = outcome.spec.name if outcome.spec else outcome.plan.deployment if outcome.plan else None
        name = known or (self.before.deployment if self.before else Path(outcome.manifest).stem)
        name = name if self._installed is None else self._installed.name
        return os.fsencode(name).decode(errors="replace")[:_LONGEST]

    def _text_digest(self) -> str | None:
        """Return the digest of the text that is wanted: what was planned, or the files as they are now."""
        plan = self._outcome.plan
        if plan is not None and self._outcome.diagnostic is None:
            return next((one.value for one in plan.facts if one.kind == "manifest"), None)
        import hashlib  # noqa: PLC0415  only for what is refused

        with suppress(OSError):
            texts = map(read_whole, (self._outcome.manifest, *self._arguments.overlays))
            return hashlib.sha256(b"".join(texts)).hexdigest()
        return None

    def _profile(self, now: str) -> Profile:
        """Return the profile that this apply runs with; if it is refused, that of the last one."""
        outcome = self._outcome
        if outcome.plan is not None and outcome.diagnostic is None:
            if outcome.state == "refused" and self.before is not None:  # by a check or the machine: it has not run
                return self.before.profile
            choice = outcome.plan.choice
        else:
            last = last_choice(outcome.manifest, self._state_dir)
            choice = None if last is None else replace(last, reason=KEPT)
        if choice is not None:
            return Profile(name=choice.name, reason=choice.reason, facts=_cut(choice.facts), since=choice.since or now)
        before = self.before.profile if self.before else None
        return Profile(name=None, reason=None, facts={}, since=before.since if before and not before.reason else now)

    def _refusal(self, now: str) -> Refused:
        since = self.before.refusal.since if self.before and self.before.refusal else now
        found = self._outcome.diagnostic
        if found is None:
            return Refused(summary=(self._outcome.summary or "It cannot run here")[:_LONGEST], since=since)
        path = os.path.abspath(found.span.path)  # noqa: PTH100  keeps links
        own = {self._outcome.manifest, *map(os.path.abspath, self._arguments.overlays)}
        is_text = path in own and not outside(path, (str(self._folder),))
        return Refused(
            summary=found.summary[:_LONGEST],
            since=since,
            rule=found.rule,
            path=relative(path, self._folder)[:_LONGEST] if is_text else None,
            line=found.span.line if is_text else None,
        )

    def _jobs(self) -> Iterator[Job]:
        """Yield the jobs that are known; those that this apply left out are as they were."""
        before = {job.name: job for job in self.before.jobs} if self.before else {}
        if self._outcome.state == "running" and self._outcome.plan is not None:
            begun = {step.job: _begun(step, before.get(step.job)) for step in run_jobs(self._outcome.plan)}
            yield from {**before, **begun}.values()
            return
        found: dict[str, Job] = {}
        with suppress(OrtdeployError), read_ledger(self._state_dir) as ledger:  # a damaged one is what is refused
            digest = DigestCache(self._state_dir).digest
            for place in _places(self._outcome):
                found[place.job] = _job(place, ledger, self._outcome, digest)
        if self._outcome.spec is None or self._outcome.state == "refused":  # what runs may have other jobs
            found = {**before, **found}
        yield from found.values()

    def _versions(self) -> Versions:
        plan, runtime = self._outcome.plan, runtime_version()
        names = {
            (provider.name, provider.device is not None)
            for step in (plan.steps if plan else ())
            if isinstance(step, OpenSession)
            for session in step.candidates
            for provider in session.providers
        }
        before = self.before.versions.providers if self.before else {}
        providers = {name: _version_of(name) if plugin else runtime for name, plugin in sorted(names)}
        python = platform.python_version()
        ours = package_version("ortdeploy")
        return Versions(ortdeploy=ours, onnxruntime=runtime, python=python, providers=providers or before)


def _refusal_of(bundle: "WantedBundle") -> Refused | None:
    """Return why a bundle is refused, without the words, which `status` has on the device."""
    found = bundle.refused
    if found is None:
        return None
    what = f"Version {found.called}" if bundle.bundle else "What lies in the place of the bundle"
    return Refused(summary=f"{what} is not {found.state}", since=found.since, rule=found.rule)


def _cut(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return as many facts as a document has room for, none of them longer than it may be."""
    kept = list(facts.items())[:_MOST_FACTS]
    return {name[:_LONGEST]: value[:_LONGEST] if isinstance(value, str) else value for name, value in kept}


def _version_of(provider: str) -> str:
    known = find_provider(provider)
    return package_version(known.plugin.package) if known and known.plugin else "unknown"


def _begun(step: RunJob, before: Job | None) -> Job:
    """Return a job that begins; the ledger is not read for it."""
    name = step.job[:_LONGEST]
    times = [file.mtime_ns for file in step.input.files]
    left = None if step.input.rows is None else max(step.input.rows - step.output.committed_rows, 0)
    oldest = moment_of(min(times) / 1e9) if times else None
    known = before or Job(name=name, status="running")
    return replace(known, status="running", left=left, waiting=len(times), oldest_waiting=oldest)


class _Place(Struct, frozen=True, kw_only=True):
    """A job, the folder of its output, and the rows that a plan has it run.

    `files` yields the files that it reads, by path from the manifest, and when each has changed, in nanoseconds; None:
    they are not known.
    """

    job: str
    output: Path
    may_be_gone: bool
    files: Callable[[], Iterable[tuple[str, int]]] | None
    rows: int | None = None


def _places(outcome: Outcome) -> Iterator[_Place]:
    """Yield the jobs of a plan and, if there is a spec, those that are not in the plan."""
    plan, spec, may_be_gone = outcome.plan, outcome.spec, _may_be_gone(outcome)
    specs = {job.name: job for job in spec.jobs} if spec else {}
    paths: dict[str, str] = {}
    if plan is not None:
        paths = output_paths(plan)
        files = {one.job: partial(_planned, one) for one in plan.inputs}
        rows = {step.job: step.input.rows for step in run_jobs(plan)}
        for job, path in paths.items():
            is_gone = may_be_gone.get(job, True)  # finished, in a plan without its manifest: nothing is missed in vain
            output = Path(plan.folder) / path
            yield _Place(job=job, output=output, may_be_gone=is_gone, files=files.get(job), rows=rows.get(job))
    for name, one in specs.items():
        if name not in paths and spec is not None:
            output, files_here = Path(spec.folder) / one.output.path, partial(_files_there, spec, one)
            is_local = bool(one.input.paths) and not any(map(is_url, one.input.paths))
            files_of = files_here if is_local else None
            yield _Place(job=name, output=output, may_be_gone=may_be_gone[name], files=files_of)


def _planned(files: PlannedFiles) -> Iterator[tuple[str, int]]:
    return ((file.path, file.mtime_ns) for file in files.files)


def _files_there(spec: "Spec", job: "JobSpec") -> Iterator[tuple[str, int]]:
    """Yield the input files of a job that was not planned."""
    from ortdeploy.manifest.named_paths import pattern_from_manifest  # noqa: PLC0415  loaded with the spec

    for pattern in job.input.paths:
        for path in expand(pattern_from_manifest(spec, pattern)):
            with suppress(OSError):
                yield relative(path, spec.folder), os.stat(path).st_mtime_ns  # noqa: PTH116  of thousands of files


def _may_be_gone(outcome: Outcome) -> dict[str, bool]:
    """Return by job whether a part that is not there may have been carried away, or is on a store.

    A remembered plan has its manifest's text and no spec, a plan that is made has the spec.
    """
    texts = outcome.document.get("jobs", {}) if isinstance(outcome.document, dict) else {}
    outputs = {job: one["output"] for job, one in texts.items()}
    found = {job: bool(one.get("removable")) or is_url(one["path"]) for job, one in outputs.items()}
    steps = run_jobs(outcome.plan) if outcome.plan is not None else ()
    found |= {step.job: step.output.removable or step.output.upload is not None for step in steps}
    specs = outcome.spec.jobs if outcome.spec else ()
    return found | {job.name: job.output.removable or job.output.url is not None for job in specs}


def _job(place: _Place, ledger: Ledger | None, outcome: Outcome, digest: Callable[[Path], str]) -> Job:
    """Return what the ledger and this apply know of a job."""
    result = next((one for one in reversed(outcome.results) if one.job == place.job), None)
    key = ledger.key(place.output) if ledger else ""
    record = ledger.output(key) if ledger else None
    record = record if record is not None and record.job == place.job else None
    is_done = result is not None and result.status is Status.DONE
    waiting = () if is_done else _waiting(place, ledger, key, record)
    damaged: Iterable[tuple[str, str]] = ()
    if record is not None and outcome.state in {"refused", "failed"}:  # the plan has just looked at all parts
        gone = place.may_be_gone
        damaged = damages(place.output, record.parts, digest, rewrites=record.rewrites, removable=gone)
    return Job(
        name=place.job[:_LONGEST],
        status=_status(result, record),
        committed=record.committed if record else 0,
        failed=record.all_failed if record else 0,
        skipped=record.skipped if record else 0,
        left=_left(place, record, waiting),
        last_row=_last_row(record),
        waiting=None if waiting is None else len(waiting),
        oldest_waiting=moment_of(min(waiting) / 1e9) if waiting else None,
        damaged_parts=len({file for file, _ in damaged}),
        memory_growth=int(record.statistics.get(GROWTH, {}).get("bytes_per_1000_rows", 0)) if record else 0,
    )


def _status(result: JobResult | None, record: OutputRecord | None) -> str:
    if result is not None and result.status is not Status.NOTHING_TO_DO:
        return str(result.status)
    return "never-run" if record is None else record.status


def _left(place: _Place, record: OutputRecord | None, waiting: Sequence[int] | None) -> int | None:
    """Return the rows that the plan has and that are not committed; None if they are not counted."""
    if waiting is not None and not waiting:
        return 0
    return None if place.rows is None else max(place.rows - (record.rows if record else 0), 0)


def _waiting(place: _Place, ledger: Ledger | None, output: str, record: OutputRecord | None) -> Sequence[int] | None:
    """Return when the files changed, in nanoseconds, of which not all rows are accounted for; None: not known."""
    if place.files is None:
        return None
    known = ledger.inputs(output, spans=False) if ledger and record else ()
    done = {one.state.path for one in known if one.done}
    return [when for path, when in place.files() if path not in done]


def _last_row(record: OutputRecord | None) -> str | None:
    """Return when the last part was written."""
    if record is None or not record.parts:
        return None
    newest = max((file.mtime_ns or 0 for file in record.parts[-1].files), default=0)
    return moment_of(newest / 1e9) if newest else record.ended


def _read(path: Path) -> Document | None:
    """Return the document before; None if there is none, or none that this version can read."""
    with suppress(OSError, ValueError):  # of msgspec too
        found = convert(read_json(read_whole(path)), Document)
        return found if found.format_version == FORMAT_VERSION else None
    return None


def _lasting(said: Document) -> dict[str, Any]:
    plain = to_builtins(replace(said, clock=replace(said.clock, now="", uptime=None)))
    return {name: value for name, value in plain.items() if name not in _TIMES}


def _text(said: Document, now: float, every: float | None) -> str:
    """Return a document as JSON, without the last jobs if it would be too large."""
    while True:
        plain = to_builtins(said)
        del plain["last_look"], plain["next_look"]
        text = f"{json.dumps(plain)[:-1]}, {times_of(now, every)}}}\n"
        if len(text) <= MOST_BYTES or not said.jobs:
            return text
        keep = len(said.jobs) * 3 // 4
        left_out = said.jobs_left_out + len(said.jobs) - keep
        said = replace(said, jobs=said.jobs[:keep], jobs_left_out=left_out)
