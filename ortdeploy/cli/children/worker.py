"""The process in which a worker of an engine makes parts: it plans again, opens its sessions, and does as it is told.

It is held against the plan before it gets a part: the facts of the plan, its steps, and the golden checks that gate it.
What it logs goes to the driver with its answers.
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from ortdeploy.application.supervisor import result_message
from ortdeploy.cli.applying.runner import refused_by_gates
from ortdeploy.cli.children.apply import execute
from ortdeploy.cli.children.endings import told_to_the_parent
from ortdeploy.cli.output.log import configure_logging, log_warning
from ortdeploy.cli.output.streams import private_streams
from ortdeploy.cli.plans import load_plan_file
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import OrtdeployError, errors_in
from ortdeploy.jobs.environment_check import facts_of_this_worker
from ortdeploy.parts.assigned_parts import AssignedParts
from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.part_table import PlannedPart, bound_digest
from ortdeploy.plan.selection import keep_jobs, run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.process.child import Asked, Say
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.streaming.crashed_runs import decode_crashed_runs
from ortdeploy.views.progress import Silent


def main(asked: Asked) -> None:
    """Be the worker: make the parts that the parent names, and answer each."""
    with told_to_the_parent(asked.say, "refused"):
        _serve(asked, asked.native_output())


class _Lines:
    """A stream of log lines that the parent gets as messages."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def write(self, text: str) -> int:
        self._say(kind="log", line=text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each message is sent at once."""

    def isatty(self) -> bool:
        return False


def _serve(asked: Asked, native: NativeOutput) -> None:
    request, stopped = asked.request, StopFlag()
    with ExitStack() as stack:
        stack.enter_context(private_streams())
        stack.enter_context(native.taking())
        stack.enter_context(stopped.installed())
        configure_logging(form="json", stream=_Lines(asked.say), level=request["log_level"], color=False)
        stack.enter_context(warnings_to(log_warning))
        plan = _plan_of(request)
        state_dir = state_folder(plan.folder, request["state_dir"], plan.roots)
        gated = refused_by_gates(plan, request["state_dir"])
        if gated is not None:
            raise OrtdeployError(gated[0].reason or "")
        told = AssignedParts(
            request["name"],
            _numbers(asked),
            on_ready=lambda: asked.say(kind="ready", facts=facts_of_this_worker(plan, *run_jobs(plan))),
            answer=lambda part, receipt, made_here: asked.say(**_answer(part, receipt, made_here=made_here)),
        )
        for result in execute(
            plan,
            state_dir,
            request["run"],
            observer=Silent(),
            stopped=stopped,
            native=native,
            shard=told,
            fatal=decode_crashed_runs(request["fatal"]),
            cores=request.get("cores"),
            on_run=(lambda _job, rows: asked.say(kind="running", rows=list(rows))) if request["closely"] else None,
        ):
            asked.say(**result_message(result))
            if result.stuck:  # a thread is left in native code; the end of this process ends it
                return


def _plan_of(request: Mapping[str, Any]) -> Plan:
    """Make the plan again, and return what of it is the job that the driver means. Raises OrtdeployError."""
    arguments = argparse.Namespace(
        paths=[request["plan_file"]],
        root=request["root"],
        roots=request["roots"],
        state_dir=request["state_dir"],
        jobs=None,
        excluded=[],
    )
    planned = load_plan_file(arguments, in_shards=True)
    if planned is None:
        raise OrtdeployError(f"there is no plan file {request['plan_file']} that this machine can read")
    plan = _meant(planned, request)
    if plan is not None:
        return plan
    errors = errors_in(planned.diagnostics)
    if not errors:
        raise OrtdeployError(f"{request['plan_file']} is not the plan that the driver runs")
    raise OrtdeployError("; ".join(f"[{one.rule}] {one.detail.rstrip('.')}" for one in errors))


def _meant(planned: Planned, request: Mapping[str, Any]) -> Plan | None:
    for plan in planned.plans:
        for step in run_jobs(plan):
            if step.job == request["job"] and bound_digest(plan, step) == request["digest"]:
                return keep_jobs(plan, [step.job])
    return None


def _numbers(asked: Asked) -> Iterator[int]:
    for message in asked.told():
        yield int(message["make"])


def _answer(part: PlannedPart, receipt: Receipt, *, made_here: bool) -> dict[str, Any]:
    seconds = float(receipt.statistics["seconds"]) if made_here else None
    return {
        "kind": "decided", "part": part.number, "rows": receipt.part.rows, "failed": receipt.part.failed,
        "seconds": seconds, "made_here": made_here,
    }  # fmt: skip
