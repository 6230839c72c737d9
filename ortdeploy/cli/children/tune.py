"""The child of `ortdeploy tune`: runs a job with one setting for some seconds, and reports speed and memory."""

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.cli.output.streams import private_streams
from ortdeploy.diagnostics import OrtdeployError, errors_in
from ortdeploy.files.names import REPORT
from ortdeploy.files.opening import read_text
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.process.child import Asked
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.results.results import Status
from ortdeploy.views.progress import Silent


def main(asked: Asked) -> None:
    """Run the job of the request, and report its speed."""
    with private_streams(), closing(NativeOutput()) as native, native.taking():
        try:
            answer = _run(asked.request, native)
        except OrtdeployError as error:
            answer = {"refused": str(error)}
    asked.say(**answer)


def _run(request: Mapping[str, Any], native: NativeOutput) -> dict[str, Any]:
    """Return speed and memory of the job, which runs until its time is over. Raises OrtdeployError if it cannot run."""
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  not before the plan stands
    from ortdeploy.sessions.generated_models import make_model  # noqa: PLC0415  not before the plan stands

    folder = Path(request["folder"])
    plan = _plan_of(request, folder)
    rows, seconds, slowest, memory, passes = 0, 0.0, 0.0, 0, 0
    clock = _Clock(request["seconds"])
    with open_ledger(folder / "state") as ledger:
        while not clock.is_up():  # a small job is run several times
            out = folder / f"out{passes}"
            result = Execution(
                plan=_tried(plan, str(out)),
                run_id="tune",
                runtime=OrtRuntime(make_model=make_model),
                ledger=ledger,
                observer=clock,
                stop=clock.is_up,
                native_text=native.take,
            ).run()[0]
            if result.status in {Status.FAILED, Status.PAUSED}:
                raise OrtdeployError(result.reason or "")
            if not clock.has_rows:
                raise OrtdeployError("the input holds no row, so there is no speed")
            if result.status is Status.INTERRUPTED and not (out / REPORT).is_file():
                break  # the time was over before it began once more
            report = json.loads(read_text(out / REPORT))
            shutil.rmtree(out)
            rows, seconds, passes = rows + result.committed + result.kept, seconds + result.seconds, passes + 1
            slowest = max(slowest, report["session_run"]["p99"] or 0.0)
            memory = report["peak_memory_bytes"]
    speed = rows / seconds if seconds else 0.0
    return {"rows_per_second": speed, "p99": slowest, "memory": memory, "rows": _rows(plan)}


def _plan_of(request: Mapping[str, Any], folder: Path) -> Plan:
    """Return the plan of the job with the setting, whose overlay is in a folder. Raises OrtdeployError."""
    job = request["job"]
    options = LoadOptions(
        profile=request["profile"],
        sets=(*request["sets"], f"jobs.{job}.output.path={json.dumps(str(folder / 'out'))}"),
        roots=(*request["roots"], str(folder)),
        overlays=(*request["overlays"], str(folder / "overlay.yaml")),
    )
    planned = plan_manifests([request["manifest"]], options, state_dir=str(folder / "state"), jobs=[job])
    errors = errors_in(planned.diagnostics)
    if errors:
        raise OrtdeployError(f"{errors[0].rule}: {errors[0].detail}")
    return planned.plans[0]


class _Clock(Silent):
    """Measures from the first start of the job, so that opening sessions does not count.

    It is not up before rows are done, however long these take: a speed without any would be nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self.has_rows = False

    def job_started(self, job: str, done: int, total: int | None) -> None:  # noqa: ARG002  an observer is told
        """Start, unless it runs already."""
        self._end = self._end or time.perf_counter() + self._seconds

    def rows_done(self, done: int, failed: int) -> None:  # noqa: ARG002  an observer is told
        """Know that there is something to tell."""
        self.has_rows = self.has_rows or done > 0

    def is_up(self) -> bool:
        """Return whether the time is over and rows are done."""
        return self.has_rows and self._end is not None and time.perf_counter() > self._end


def _rows(plan: Plan) -> int | None:
    """Return how many rows the job has; None if that is not known."""
    return next((step.input.rows for step in plan.steps if isinstance(step, RunJob)), None)


def _tried(plan: Plan, output: str) -> Plan:
    """Return a plan that writes into a folder, and runs at any hour and for as long as the trial takes."""
    steps = (
        replace(
            step,
            output=replace(step.output, path=output),
            timing=replace(step.timing, hours=None, until=None),
        )
        if isinstance(step, RunJob)
        else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))
