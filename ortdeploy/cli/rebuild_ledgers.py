"""Makes lost ledgers again before a plan file is planned anew: what is planned follows from what the ledger knows."""

from collections.abc import Sequence

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.files.gate import decides, outside
from ortdeploy.jobs.rebuild import rebuild
from ortdeploy.ledger.open_plans import FOLDER
from ortdeploy.ledger.opening import open_ledger, read_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.ledger.records import output_key
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.parts.shared_place import place_of
from ortdeploy.planning.plan_file.planning_again import options_of
from ortdeploy.planning.plan_file.saved_plan import SavedPlan
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.sinks.catalogue import SINKS


def make_lost_ledgers(saved: Sequence[SavedPlan], roots: Sequence[str], state_dir: str | None) -> None:
    """Make the ledger know the outputs of the plans' jobs that shards have made and that it does not know.

    A manifest may be a stranger's: nothing is done for one that is refused, or whose places lie elsewhere by a link.
    Planning says what is wrong with it. Raises OrtdeployError, LockedError.
    """
    for one in saved:
        for spec in validate([one.manifest], options_of(one, LoadOptions(roots=tuple(roots)))).specs:
            for job in spec.jobs:
                if one.jobs is None or job.name in one.jobs:
                    _make_lost_ledger(spec, job, state_dir)


def _make_lost_ledger(spec: Spec, job: JobSpec, state_dir: str | None) -> None:
    folder = path_from_manifest(spec, job.output.path)
    try:
        state = state_folder(spec.folder, state_dir, spec.roots)
    except OrtdeployError:
        return
    if outside(str(folder), (spec.folder, *spec.roots)):
        return
    output = output_key(folder, state)
    with read_ledger(state) as ledger:
        if ledger is not None and ledger.output(output) is not None:
            return
    if job.output.url is not None and not decides(job.output.url):
        return
    place = place_of(job.output.url, folder, (spec.folder, *spec.roots))
    try:
        if not any(place.names(FOLDER)):
            return
        with hold_output(state, output), open_ledger(state) as ledger:
            rebuild(place, ledger, output, suffix=SINKS[job.output.format].SUFFIX, removable=job.output.removable)
    except OSError as error:
        raise OrtdeployError(failure_at(place, error)) from error
