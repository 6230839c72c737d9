"""Results as JSON with a version: additions keep the version, any other change raises it."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.planning.differences import NOTHING

if TYPE_CHECKING:
    from ortdeploy.checks.run import CheckResult
    from ortdeploy.facts.models import AdapterFacts
    from ortdeploy.facts.variants import Choice
    from ortdeploy.ledger.backup import BroughtBack
    from ortdeploy.ledger.verification import VerifiedJob
    from ortdeploy.parts.compaction import CompactionResult
    from ortdeploy.plan.steps import Plan
    from ortdeploy.planning.devices.device_table import DeviceTable
    from ortdeploy.planning.differences import Difference
    from ortdeploy.planning.last_run import Changes
    from ortdeploy.planning.lock import Digested
    from ortdeploy.planning.refused_applies import Refusal
    from ortdeploy.planning.versions.installed import Installed
    from ortdeploy.planning.versions.pruning import PrunedState
    from ortdeploy.results.results import JobResult
    from ortdeploy.results.shares import Shares
    from ortdeploy.views.status_model import JobStatus

FORMAT_VERSION = 1


def render_check(diagnostics: Sequence[Diagnostic]) -> str:
    """Return the output of `validate`: diagnostics, and an empty plan."""
    return _dump({"diagnostics": _diagnostics(diagnostics), "steps": []})


def render_plan(diagnostics: Sequence[Diagnostic], plans: "Sequence[Plan]", changes: "Sequence[Changes]" = ()) -> str:
    """Return the output of `plan`: diagnostics, steps, what changed in jobs since their last runs, and profiles."""
    found = {"diagnostics": _diagnostics(diagnostics), "steps": _steps(plans), "changes": _changes(changes)}
    return _dump({**found, "profiles": _profiles({one.manifest: one.choice for one in plans})})


def render_devices(table: "DeviceTable") -> str:
    """Return the output of `plan` for devices: each finding once, and what each job does on each of them."""
    from ortdeploy.views.device_table import as_json  # noqa: PLC0415  only if asked for

    found = {"diagnostics": _diagnostics(table.findings), "steps": _steps(table.plans)}
    return _dump({**found, "devices": as_json(table.entries)})


def render_differences(differences: "Sequence[Difference]") -> str:
    """Return the differences between two documents. A value that one of them lacks is left out."""
    return _dump({"differences": _differences(differences)})


def render_changes(changes: "Sequence[Changes]") -> str:
    """Return what changed in jobs since their last runs."""
    return _dump({"changes": _changes(changes)})


def _changes(changes: "Sequence[Changes]") -> list[dict[str, Any]]:
    return [{"job": one.job, "run": one.run, "differences": _differences(one.differences)} for one in changes]


def _differences(differences: "Sequence[Difference]") -> list[dict[str, Any]]:
    return [
        {
            "path": one.path,
            **{key: value for key, value in (("old", one.old), ("new", one.new)) if value is not NOTHING},
        }
        for one in differences
    ]


def render_apply(diagnostics: Sequence[Diagnostic], plans: "Sequence[Plan]", results: "Sequence[JobResult]") -> str:
    """Return the output of `apply`: diagnostics, steps, and how each job ended."""
    jobs = [_ended(result) for result in results]
    found = {"diagnostics": _diagnostics(diagnostics), "steps": _steps(plans), "jobs": jobs}
    return _dump({**found, "profiles": _profiles({one.manifest: one.choice for one in plans})})


def _profiles(choices: "Mapping[str, Choice | None]") -> list[dict[str, Any]]:
    """Return the profiles of manifests that have some."""
    return [{"manifest": path, **to_builtins(one)} for path, one in choices.items() if one is not None]


def _ended(result: "JobResult") -> dict[str, Any]:
    return {
        "job": result.job,
        "status": result.status,
        "output": result.output,
        "committed": result.committed,
        "failed": result.failed,
        "skipped": result.skipped,
        "kept": result.kept,
        "seconds": round(result.seconds, 6),
        "reason": result.reason,
        "memory": list(result.memory),
        **_shares(result.shares),
    }


def _unread(job: "JobStatus") -> dict[str, Any]:
    return {} if job.unread is None else {"shares_unread": job.unread}


def _shares(shares: "Shares | None") -> dict[str, Any]:
    """Return how far the workers of a job are, if it has several."""
    return {} if shares is None else {"shares": to_builtins(shares)}


def render_tryout(
    diagnostics: Sequence[Diagnostic],
    results: "Sequence[JobResult]",
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    pictures: Sequence[str],
) -> str:
    """Return the output of `try`: diagnostics, how each job ended, its rows, and the paths of drawn pictures."""
    jobs = [
        {key: value for key, value in _ended(result).items() if key != "output"} | {"rows": rows.get(result.job, [])}
        for result in results
    ]
    return _dump({"diagnostics": _diagnostics(diagnostics), "jobs": jobs, "pictures": pictures})


_OF_REFUSALS = ("manifest", "since", "reason", "good", "runs")


def render_status(
    jobs: "Sequence[JobStatus]",
    refusals: "Sequence[Refusal]" = (),
    profiles: "Mapping[str, Choice]" = MappingProxyType({}),
    installed: "Installed | None" = None,
) -> str:
    """Return the output of `status`; `profiles` are those that manifests were last applied with."""
    document = {
        "jobs": [_status(one) for one in jobs],
        "refused": [{name: getattr(one, name) for name in _OF_REFUSALS} for one in refusals],
        "profiles": _profiles(profiles),
    }
    return _dump(document if installed is None else {**document, "versions": _versions(installed)})


def _versions(installed: "Installed") -> dict[str, Any]:
    return {
        "current": installed.current,
        "wanted": installed.wanted,
        "set_aside": installed.aside,
        "kept": [
            {"bundle": one.id, "number": one.number, "label": one.label, "state": installed.reached.get(str(one.id))}
            for one in installed.versions
        ],
        "refused": [
            {name: getattr(one, name) for name in ("id", "number", "label", "state", "reason", "since")}
            for one in installed.refused
        ],
    }


def _status(one: "JobStatus") -> dict[str, Any]:
    known: dict[str, Any] = {"job": one.job, "output": one.output, "status": one.state}
    record = one.record
    if record is None:
        return {**known, **_shares(one.shares), **_unread(one)}
    return {
        **known,
        "run": record.run,
        "started": record.started,
        "ended": record.ended,
        "reason": record.reason,
        "parts": len(record.parts),
        "live": dict(one.live) if one.live else None,
        "committed": record.committed,
        "failed": one.failed,
        "skipped": record.skipped,
        "kept": one.kept,
        "rerun": one.rerun,
        "leaving": one.leaving,
        "held_up_by": one.held_up_by,
        "damaged": dict(one.damaged),
        "memory": list(one.memory),
        **(
            {"read": [{"file": file.file, "needed_by": list(file.needed_by)} for file in one.delivered]}
            if one.delivered
            else {}
        ),
        **_shares(one.shares),
        **_unread(one),
    }


def render_verification(jobs: "Sequence[VerifiedJob]") -> str:
    """Return the result of `verify` for each part."""
    return _dump({"jobs": [to_builtins(one) for one in jobs]})


def render_state_copy(action: str, state: str, copy: str, done: "BroughtBack") -> str:
    """Return the paths of the state folder and of the copy, and which outputs it knows, as `BroughtBack` has them."""
    named = {"action": action, "state": state, "copy": copy, "outputs": done.outputs}
    return _dump({**named, "not_compared": list(done.not_compared), "may_repeat": list(done.may_repeat)})


def render_pruned(states: "Sequence[PrunedState]") -> str:
    """Return what was freed of each state folder, and what stays."""
    return _dump({"states": [{**to_builtins(one), "freed_bytes": one.freed_bytes} for one in states]})


def render_compaction(jobs: "Sequence[CompactionResult]") -> str:
    """Return how many parts each job had, and has now."""
    return _dump({"jobs": [to_builtins(one) for one in jobs]})


def render_checks(results: "Sequence[CheckResult]") -> str:
    """Return how each golden data set ended on each session."""
    return _dump({"checks": [to_builtins(result) for result in results]})


def render_adapter(adapter: "AdapterFacts") -> str:
    """Return an adapter's versions and parameters."""
    parameters = [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in adapter.parameters]
    versions = {"adapter_version": adapter.adapter_version, "model_version": adapter.model_version}
    return _dump({"path": adapter.path, **versions, "parameters": parameters})


def render_fit(problems: Sequence[str], left_out: Sequence[str]) -> str:
    """Return why an adapter does not fit a model, and which inputs keep their defaults."""
    return _dump({"fits": not problems, "problems": list(problems), "left_out": list(left_out)})


def render_tuning(trials: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, overlay: str | None) -> str:
    """Return the trials, the best one, and the path of the overlay; null if none is written."""
    return _dump({"trials": list(trials), "best": best, "overlay": overlay if best else None})


def render_lock(diagnostics: Sequence[Diagnostic], files: "Sequence[Digested]") -> str:
    """Return the files whose digests a manifest may pin, and why other files have no digest."""
    shown = [{"name": f.name, "path": f.path, "sha256": f.sha256, "state": f.state} for f in files]
    return _dump({"diagnostics": _diagnostics(diagnostics), "files": shown})


def _diagnostics(diagnostics: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    return [
        {
            "rule": diagnostic.rule,
            "severity": diagnostic.severity,
            "certainty": diagnostic.certainty,
            "summary": diagnostic.summary,
            "detail": diagnostic.detail,
            "path": diagnostic.span.path,
            "line": diagnostic.span.line,
            "column": diagnostic.span.column,
            "model": diagnostic.model,
            "job": diagnostic.job,
            **({"devices": list(diagnostic.devices)} if diagnostic.devices else {}),
        }
        for diagnostic in diagnostics
    ]


def _steps(plans: "Sequence[Plan]") -> list[dict[str, Any]]:
    if not plans:
        return []
    from ortdeploy.plan.masked import masked_step  # noqa: PLC0415  only for plans
    from ortdeploy.plan.plan_file import encode  # noqa: PLC0415

    return [
        {"deployment": plan.deployment, "manifest": plan.manifest, **encode(masked_step(step))}
        for plan in plans
        for step in plan.steps
    ]


def _dump(document: dict[str, Any]) -> str:
    return json.dumps({"format_version": FORMAT_VERSION, **document}, indent=2) + "\n"
