"""Compares two machines' versions and processors before anything runs, because parts must be equal in bytes."""

import json
import platform
from collections.abc import Callable, Mapping
from typing import Any

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.events import log
from ortdeploy.files.shared_place import GIVEN_UP
from ortdeploy.parts.commit_log import CommitLog, WithdrawnError
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.plan.thread_layout import BY_RULE
from ortdeploy.runtime.machine import probe_machine
from ortdeploy.versions import package_version, versions

FIRST = "first-worker.json"
"""The file in a plan's folder with the facts of the process that began the plan."""

_WITHDRAWN = json.loads(GIVEN_UP)
"""What stands there if that process found the output in use."""

_MADE_BEFORE = "made_before"
"""Names the number of the plan's parts that were in the ledger of that process."""

_OF_PARTS = ("pyarrow", "pillow", "soxr", "tokenizers")
"""Packages of extras that decode rows or write parts; pyarrow writes its version into each Parquet file."""


def facts_of_this_worker(plan: Plan, step: RunJob) -> dict[str, Any]:
    """Return the versions and the processor that decide whether this machine writes the same bytes, as JSON.

    The number of cores counts if it decides how many threads a session of the job has; else `cores` is None.
    """
    machine = probe_machine()
    found = {name: version for name, version in versions().items() if name not in {"platform", "python"}}
    packages = {**found, **{name: package_version(name) for name in _OF_PARTS}}
    python = ".".join(machine.python.split(".")[:2])
    sessions = openings_of(plan, step)
    is_by_rule = step.thread_layout == BY_RULE.name
    has_threads = is_by_rule or all(int(one.options.get("intra_op_num_threads", 0)) for one in sessions)
    return {
        "host": platform.node(),
        "versions": {**packages, "python": python, "architecture": machine.architecture},
        "processor": sorted(machine.cpu_flags),
        "cores": None if has_threads else machine.cores,
    }


def why_refused(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return which versions of another worker differ from those here, in words; None if none does."""
    wanted, found = ours["versions"], theirs["versions"]
    others = [
        f"{name} is {found.get(name, 'not installed')} there and {wanted.get(name, 'not installed')} here"
        for name in dict.fromkeys([*wanted, *found])
        if wanted.get(name) != found.get(name)
    ]
    return "; ".join(others) or None


def has_other_processor(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether ONNX Runtime may choose other kernels there, whose results may differ in the last digits."""
    return processor_of(ours) != processor_of(theirs)


def processor_of(facts: Mapping[str, Any]) -> str:
    """Return a worker's processor in words, as receipts and reports have it."""
    cores = "" if facts["cores"] is None else f", {facts['cores']} cores"
    return f"{facts['versions']['architecture']} with {' '.join(facts['processor']) or 'no features'}{cores}"


def has_begun(decisions: CommitLog) -> bool:
    """Return whether a process may make parts of a plan, or all are made. Raises OrtdeployError, OSError."""
    if not decisions.is_begun():
        return False
    return decisions.settled(FIRST) not in (None, _WITHDRAWN) or decisions.is_closed()


def compare_with_first(
    decisions: CommitLog, ours: Mapping[str, Any], worker: str, look: Callable[[], None], made_before: int
) -> None:
    """Hold this process against the one that began the plan; if it is the first, note its facts for the others.

    Before it notes them, it calls `look`, because a run on one machine may have begun as the plan did: from then on,
    such a run finds the plan, and stops. If `look` raises, the plan is withdrawn, and nobody makes parts of it.
    `made_before`: how many parts the ledger here had then. A process whose ledger has fewer would make some again.

    Raises RefusedError if versions or ledgers differ, WithdrawnError if that has happened, OrtdeployError, OSError.
    """

    def look_once_more() -> None:
        try:
            look()
        except OrtdeployError:
            decisions.withdraw(FIRST)
            raise

    first = decisions.settle(FIRST, {**ours, _MADE_BEFORE: made_before}, look_once_more)
    if first == _WITHDRAWN:
        decisions.withdraw(FIRST)
        raise WithdrawnError(f"{decisions.shown(FIRST)} says that this plan was withdrawn. Run the shard again")
    try:
        differs, is_other = why_refused(ours, first), has_other_processor(ours, first)
        host, lacking = str(first["host"]), int(first.get(_MADE_BEFORE, 0)) - made_before
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise OrtdeployError(f"{decisions.shown(FIRST)} is damaged ({error!r}). Restore it from a copy") from error
    if differs is not None:
        raise RefusedError(
            f"parts would not be those of {host}, where this plan was begun: {differs}. Install the same versions on "
            "all machines"
        )
    if lacking > 0:
        raise RefusedError(
            f"a run on one machine has made parts of this plan, and the ledger here lacks {lacking} of them; the "
            f"one on {host} does, where this plan was begun. Run the shard with that ledger, or a copy (--state-dir)"
        )
    if is_other:
        log.warning("worker.differs", worker=worker, processor=processor_of(ours), first=processor_of(first))
