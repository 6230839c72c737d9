"""Compares a plan file with the plan that is made here: the facts that it rested on, and what it would run."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ortdeploy.deployment.resolved import Deployment
from ortdeploy.diagnostics import Certainty, Diagnostic, Severity, Span
from ortdeploy.facts.data import FileState
from ortdeploy.facts.host import DeviceFacts, HostFacts, RuntimeFacts
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.pages import SUMMARIES
from ortdeploy.plan.steps import Plan, PlannedFiles
from ortdeploy.planning.differences import NOTHING
from ortdeploy.planning.make.facts import OF_MACHINE, PROVIDERS, VERSION, plan_facts
from ortdeploy.planning.make.plan import plan_inputs
from ortdeploy.planning.plan_file.plan_writing import digest_of, made
from ortdeploy.planning.plan_file.saved_plan import INPUTS, OPEN, SavedPlan, shown
from ortdeploy.planning.plan_file.saved_tables import SavedFile

_SEVERAL = frozenset({INPUTS, "providers", "labels"})  # kinds of facts whose name is a plural

_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,6})?([-+.a-z][-+.0-9A-Za-z]{0,40})?")
"""The version of an ONNX Runtime, as the schema of device files has it."""


def planned_host(saved: SavedPlan, here: HostFacts) -> HostFacts:
    """Return the machine that a plan was made for, as the plan tells, for a process that makes no results itself.

    So `finish` may run on a machine without the devices, and workers are held against what they have.
    """
    told = {fact.kind: fact.value for fact in saved.facts}
    sessions = [one for step in saved.made["steps"] for one in step.get("candidates", ())]
    chosen = [one for session in sessions for one in session["providers"] if one["device"] is not None]
    devices = {
        (one["name"], one["device"]["index"]): DeviceFacts(provider=one["name"], library="", **one["device"])
        for one in chosen
    }
    version = told.get(VERSION, "")
    runtime = RuntimeFacts(
        version=version if _VERSION.fullmatch(version) else here.runtime.version,
        available_providers=tuple(told.get(PROVIDERS, "").split(", ")),
        max_ir_version=None,
        max_opsets={},
        packages=here.runtime.packages,
        devices=tuple(devices.values()),
    )
    return HostFacts(runtime=runtime, machine=None)


def moved_facts(saved: SavedPlan, now: Deployment, *, computes: bool) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each fact of a saved plan that has changed.

    Facts of the machine count only for a process that `computes`. Of an open plan, only the files that it names do.
    """
    facts = plan_facts(now, saved.jobs)
    then = {(fact.kind, fact.name): fact.value for fact in saved.facts}
    present = {(fact.kind, fact.name): fact.value for fact in facts if fact.kind != INPUTS}
    keys = dict.fromkeys([*then, *present])
    moved = [
        (kind, name)
        for kind, name in keys
        if (computes or kind not in OF_MACHINE) and then.get((kind, name)) != present.get((kind, name))
    ]
    named = {fact.name.partition(": ")[0]: fact.name for fact in facts if fact.kind == INPUTS}
    inputs = [
        (INPUTS, f"{named.get(f'job {one.job}', one.job)}: {change}")
        for one in plan_inputs(now, saved.jobs)
        if (change := _change_of_input(saved, one, now.spec.folder))
    ]
    return tuple(moved_fact(saved, kind, name) for kind, name in (*moved, *inputs))


def moved_fact(saved: SavedPlan, kind: str, name: str) -> Diagnostic:
    """Return the diagnostic for one fact that has changed."""
    verb = "are" if kind in _SEVERAL else "is"
    of_device = " with --device and the file that ortdeploy device writes on this machine"
    how = of_device if saved.kind == OPEN and kind in OF_MACHINE else ""
    return Diagnostic(
        rule="moved-fact",
        severity=Severity.ERROR,
        summary=SUMMARIES["moved-fact"],
        detail=f"The {kind} {verb} not what the plan was made from: {name}. Make the plan again{how}.",
        span=Span(path=saved.manifest, line=1, column=1),
        certainty=Certainty.MACHINE,
    )


def _change_of_input(saved: SavedPlan, now: PlannedFiles, folder: str) -> str | None:
    """Return which input file of a job changed or went; None if none did."""
    then, files = saved.inputs.get(now.job, ()), now.files
    if saved.kind == OPEN:
        named = {file.path for file in then}
        files = [state for state in files if state.path in named]
    elif now.job not in saved.inputs:
        return "the plan names none of its files"
    return None if _are_same(then, files, folder) else _change(then, files, folder)


def _are_same(then: Sequence[SavedFile], now: Sequence[FileState], folder: str) -> bool:
    """Return whether all files are as they were, in their order; a million of them are never all objects at once."""
    return len(then) == len(now) and all(
        file.path == state.path and not _is_changed(file, state, folder) for file, state in zip(then, now, strict=True)
    )


def _change(then: Sequence[SavedFile], now: Sequence[FileState], folder: str) -> str | None:
    """Return which file of a plan changed or went; None if none did. Times may differ, contents may not.

    `now` has none that arrived later.
    """
    present = {state.path: state for state in now}
    gone = [file.path for file in then if file.path not in present]
    changed = [file.path for file in then if file.path in present and _is_changed(file, present[file.path], folder)]
    told = [f"{path} {what}" for paths, what in ((gone, "is gone"), (changed, "changed")) for path in paths]
    if not told:
        moved = [file.path for file in then] != [state.path for state in now]
        return "their order changed" if moved else None
    more = f", and {len(told) - 1} more of {len(then)}" if len(told) > 1 else ""
    return f"{told[0]}{more}"


def _is_changed(then: SavedFile, now: FileState, folder: str) -> bool:
    if then.size != now.size:
        return True
    if then.mtime_ns == now.mtime_ns:
        return False
    if then.sha256 is None or is_url(now.path):
        return True
    return digest_of(now, folder) != then.sha256


def compare(saved: SavedPlan, plan: Plan) -> Diagnostic | None:
    """Return the first difference between a saved plan and the one that was made here, or None."""
    ours = made(plan)
    listed = [done["job"] for done in ours["finished"]]
    found = next(
        (
            f"finished[{index}]: the plan file says that job {_shown(done['job'])} is finished, and here it is not"
            for index, done in enumerate(saved.made["finished"])
            if done["job"] not in listed
        ),
        None,
    ) or difference(saved.made, ours)
    if found is None:
        return None
    detail = f"{saved.at}.{found}. Nothing was run. Make the plan again with ortdeploy plan --out, and read it."
    return stage_diagnostic("edited-plan", detail, saved.span)


def difference(saved: Any, ours: Any, at: str = "") -> str | None:
    """Return the first place where two JSON values differ, in words; None if they do not."""
    if isinstance(saved, dict) and isinstance(ours, dict):
        inner = (
            difference(saved.get(key, NOTHING), ours.get(key, NOTHING), f"{at}.{key}" if at else key)
            for key in dict.fromkeys([*ours, *saved])
        )
        return next((found for found in inner if found), None)
    if isinstance(saved, list) and isinstance(ours, list):
        return next(_differences_of_lists(saved, ours, at), None)
    if type(saved) is type(ours) and saved == ours:
        return None
    return f"{at}: the plan file says {_shown(saved)}, the manifest gives {_shown(ours)}"


def _differences_of_lists(saved: list[Any], ours: list[Any], at: str) -> Iterator[str]:
    for index, (one, other) in enumerate(zip(saved, ours, strict=False)):
        found = difference(one, other, f"{at}[{index}]")
        if found:
            yield found
    if len(saved) != len(ours):
        yield f"{at}: the plan file has {len(saved)}, the manifest gives {len(ours)}"


def _shown(value: Any) -> str:
    return "nothing" if value is NOTHING else shown(value)
