"""Which path of a step leads out of the tree: a saved plan may have been changed since it was checked."""

from collections.abc import Iterable
from itertools import chain

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.gate import Use, admit, require_inside
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, RunJob
from ortdeploy.sources.files import full_path


def leads_out(plan: Plan, step: OpenSession | LoadAdapter | RunJob) -> OrtdeployError | None:
    """Return why a step is not done: one of its paths leads out of the tree; None if none does."""
    paths = [step.output.path, *(one.path for one in _read_early(step))] if isinstance(step, RunJob) else [step.path]
    full = (full_path(plan.folder, path) for path in paths if path)  # op steps have no file
    try:
        require_inside(full, (plan.folder, *plan.roots))
        if isinstance(step, RunJob) and step.output.upload is not None:
            admit(step.output.upload, Use.WRITE)
    except OrtdeployError as error:
        return error
    return None


def _read_early(step: RunJob) -> Iterable[FileState]:
    """Return the input files of a job that something may read before the job looks at all of them, as it begins."""
    return chain(step.input.rerun, step.input.files if step.batching.auto or step.retry else ())
