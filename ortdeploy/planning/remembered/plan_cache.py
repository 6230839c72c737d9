"""Remembers a plan to which no rule objects, and completes it with a job's data while everything else is unchanged.

Everything that a plan depends on beside data is checked as in `nothing_to_do`: the command line, the environment, this
code, the machine and files. Data is looked at by the same code as in every plan: the content of inputs, the progress of
outputs, and whether the first rows can be fed. If a rule might object to what is found, or if the plan might become a
different one, the whole plan is made.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts, OutputFacts
from ortdeploy.facts.memory import MemoryForecast
from ortdeploy.facts.preflight import RowRoom
from ortdeploy.plan.batching import Batching
from ortdeploy.plan.made_by import made_by_digest
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.steps import Fact, Plan, PlannedFiles, RunJob
from ortdeploy.planning.make.arrived import fact_of_inputs, with_arrived
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.preflight.remembered_memory import for_rows
from ortdeploy.planning.preflight.row_sizes import RowSizes
from ortdeploy.planning.preflight.rows_of_job import dropped_below, look
from ortdeploy.planning.probing.data_places import DataPlaces, load_previous, look_at_input, look_at_output
from ortdeploy.planning.state_folder import state_folder

if TYPE_CHECKING:
    from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo

KIND = "plan"
"""The kind of the remembered plans, of the memo."""
_GOOD_STATES = ("absent", "empty", "part", "finished")


class CheckedForecast(Struct, frozen=True, kw_only=True):
    """The forecast of a job whose largest run has the rows of `row_sizes.batch`."""

    forecast: MemoryForecast
    row_sizes: RowSizes

    def is_for(self, batching: Batching, rows: int | None) -> bool:
        """Return whether it is the forecast of a number of rows, apart from what follows from that alone."""
        return batching.most_run(rows) == self.row_sizes.batch


class CheckedJob(Struct, frozen=True, kw_only=True):
    """A job of a checked plan, with everything that decides if other data makes a different plan.

    `input` is the digest of its input's facts, except its files and their number of rows. `identity` and `layout` are
    those of its output. Runs of `run_sizes` rows are known to fit the graph. Of the `forecasts`, the last one is first.
    `layout_by_rule` is the thread layout of a new output.
    """

    places: DataPlaces
    input: str
    identity: Mapping[str, str]
    layout: Mapping[str, Any]
    has_work: bool
    run_sizes: tuple[int, ...]
    forecasts: tuple[CheckedForecast, ...]
    layout_by_rule: str | None


class CheckedPlan(Struct, frozen=True, kw_only=True):
    """What is remembered: the plan as it was made, its jobs, the installed packages, and the manifest's text."""

    plan: Plan
    jobs: tuple[CheckedJob, ...]
    packages: frozenset[str]
    document: Any


class PlanMismatchError(Exception):
    """Something was found that requires the whole plan to be made."""


def recall_plan(
    recollection: "AnswerMemo", paths: Sequence[str], roots: Sequence[str], state_dir: str | None
) -> Planned | None:
    """Return the remembered plan, with the data as it is now; None if the whole plan has to be made.

    `paths`, `roots` and `state_dir` are those of the command line.
    """
    known = recollection.recall(KIND)
    if known is None:
        return None
    with suppress(ValueError, TypeError, KeyError, RecursionError, OSError, OrtdeployError, PlanMismatchError):
        checked = decode(CheckedPlan, known["told"])
        _require_place(checked, paths, tuple(str(Path(root).absolute()) for root in roots))
        plan = complete(checked, state_folder(checked.plan.folder, state_dir, checked.plan.roots))
        return Planned(plans=(plan,), diagnostics=(), documents={plan.manifest: checked.document})
    return None


def _require_place(checked: CheckedPlan, paths: Sequence[str], roots: tuple[str, ...]) -> None:
    """Raise PlanMismatchError if the plan reaches beyond the tree and the roots that this command line allows."""
    plan, manifest = checked.plan, Path(checked.plan.manifest)
    is_here = plan.folder == str(manifest.absolute().parent) and {str(manifest), str(manifest.parent)} & set(paths)
    is_fenced = plan.roots == roots and all(
        (job.places.input.folder, job.places.input.roots) == (plan.folder, plan.roots) for job in checked.jobs
    )
    if not is_here or not is_fenced:
        raise PlanMismatchError


def complete(checked: CheckedPlan, state_dir: Path) -> Plan:
    """Return a plan with the data as it is now. Raises PlanMismatchError, OrtdeployError and OSError."""
    plan = checked.plan
    steps = {step.job: step for step in plan.steps if isinstance(step, RunJob)}
    finished = {job.job: job for job in plan.finished}
    facts: dict[str, Fact] = {}
    present: dict[str, PlannedFiles] = {}
    for job in checked.jobs:
        name = job.places.job
        before = load_previous(job.places, state_dir)
        source = look_at_input(job.places, checked.packages, before, state_dir)
        output = look_at_output(job.places, checked.packages, before, state_dir)
        _require_same(job, source, output)
        if job.has_work:
            steps[name] = _completed(job, steps[name], source, output, state_dir)
        else:
            finished[name] = replace(
                finished[name],
                rows=output.rows,
                committed=output.committed,
                failed=output.failed,
                skipped=output.skipped,
            )
        fact = fact_of_inputs(name, job.places.input.patterns, source)
        facts[fact.name] = fact
        present[name] = PlannedFiles(job=name, files=source.present)
    return replace(
        plan,
        facts=tuple(facts.get(one.name, one) if one.kind == "inputs" else one for one in plan.facts),
        steps=tuple(steps[step.job] if isinstance(step, RunJob) else step for step in plan.steps),
        finished=tuple(finished[job.job] for job in plan.finished),
        inputs=tuple(present[one.job] for one in plan.inputs),
    )


def digest_of_input(facts: InputFacts) -> str:
    """Return a digest of an input's facts, except its files, their number of rows, and the number of the first row."""
    rows = None if facts.rows is None else 0
    differing = dict.fromkeys(facts.differing, "")
    lasting = replace(facts, files=(), states=(), present=(), digest="", rows=rows, first_row=0, differing=differing)
    return hashlib.sha256(json.dumps(encode(lasting), sort_keys=True).encode()).hexdigest()


def _require_same(job: CheckedJob, source: InputFacts, output: OutputFacts) -> None:
    """Raise PlanMismatchError if an input or output may lead to other findings, or to another kind of plan."""
    trouble = output.problem or output.read_only or output.missing_package or output.shards
    is_settled = not (trouble or output.left_over)
    is_own = all(output.identity.get(name, value) == value for name, value in job.identity.items())
    made_here = not output.made or output.made[-1][0] == made_by_digest(job.identity, job.layout)
    has_work = bool(source.states) or output.state != "finished"
    fits = is_settled and output.state in _GOOD_STATES and is_own and made_here and has_work == job.has_work
    if not fits or digest_of_input(source) != job.input:
        raise PlanMismatchError


def _completed(job: CheckedJob, step: RunJob, source: InputFacts, output: OutputFacts, state_dir: Path) -> RunJob:
    """Return a job with its data. Raises PlanMismatchError unless the data is clearly good."""
    is_laid_out = step.thread_layout == output.layout_or(job.layout_by_rule)
    if not is_laid_out or not set(step.batching.sizes_run(source.rows)).issubset(job.run_sizes):
        raise PlanMismatchError
    step = replace(
        step,
        input=with_arrived(step.input, source),
        output=replace(step.output, committed_rows=output.rows, upgraded_at=output.made[-1][1] if output.made else 0),
    )
    least = dropped_below(step.pipeline.steps) if step.pipeline else {}
    found = look(step, source.files, job.places.input.folder, source.rows, dict, least)
    if found.rows == 0 or found.refused or found.not_finite or found.windowless or found.narrowed or found.stopped:
        raise PlanMismatchError
    forecast = _forecast(job, step, source, output, found.room, state_dir)
    return replace(step, limits=replace(step.limits, forecast=forecast))


def _forecast(
    job: CheckedJob, step: RunJob, source: InputFacts, output: OutputFacts, room: RowRoom, state_dir: Path
) -> MemoryForecast:
    """Return the forecast for these rows, the first of which take this room.

    Raises PlanMismatchError if they take more memory or disk than there is.
    """
    known = next((one for one in job.forecasts if one.is_for(step.batching, source.rows)), None)
    if known is None:
        raise PlanMismatchError
    disk = known.row_sizes.disk(source.first_row, source.rows, output.rows)
    found = for_rows(known.forecast, known.row_sizes.of_rows(room), state_dir, source.rows)
    rooms = [size for size in (step.limits.disk, output.free_bytes) if size is not None]
    if found.is_too_much or (disk is not None and any(disk > room for room in rooms)):
        raise PlanMismatchError
    return replace(found, disk=disk)
