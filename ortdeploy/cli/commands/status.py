"""`ortdeploy status`: show what the ledger knows of a manifest's jobs; reads only, also beside a live run."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ortdeploy.cli.commands.shared import load_options, log_outcome, use_color
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.streams import overheard
from ortdeploy.diagnostics import has_errors
from ortdeploy.ledger.ledger import output_key, read_outputs
from ortdeploy.ledger.live_progress import read_live
from ortdeploy.ledger.output_lock import is_live
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.nothing_to_do import Recollection
from ortdeploy.planning.rests_on import text_rests_on
from ortdeploy.planning.workflow import state_folder, validate
from ortdeploy.views import json, text
from ortdeploy.views.job_status import JobStatus


def run(arguments: argparse.Namespace) -> int:
    """Print each job with its state; remember what was printed where no job runs.

    A manifest that is refused does not hide the others.
    """
    recollection = Recollection(arguments)
    with overheard() as said:
        specs, jobs, code = _show(arguments)
    if code == EXIT_OK and specs and all(job.record is None or job.record.status not in _MOVING for job in jobs):
        state_dir = state_folder(specs[0].folder, arguments.state_dir, specs[0].roots)
        recollection.keep(text_rests_on(specs, arguments.paths, state_dir), str(state_dir), said.text())
    return code


_MOVING = frozenset({"running", "stopped"})
"""States that follow from who holds an output now."""


def _show(arguments: argparse.Namespace) -> tuple[tuple[Spec, ...], list[JobStatus], int]:
    validated = validate(arguments.paths, load_options(arguments))
    rejected = has_errors(validated.diagnostics)
    if rejected:
        sys.stderr.write(text.render_diagnostics(validated.diagnostics, color=use_color(arguments)))
    if rejected and not validated.specs:
        return (), [], EXIT_REJECTED
    records = [record for spec in validated.specs for record in _records(spec, arguments.state_dir)]
    if arguments.format == "json":
        sys.stdout.write(json.render_status(records))
    else:
        sys.stdout.write(text.render_status(records, verbose=arguments.verbose))
    log_outcome(arguments, "status.shown", jobs=len(records))
    return validated.specs, records, EXIT_REJECTED if rejected else EXIT_OK


def _records(spec: Spec, state_dir: str | None) -> list[JobStatus]:
    folder = state_folder(spec.folder, state_dir, spec.roots)
    known = {
        record.output: record
        if record.status != "running" or is_live(folder, record.output)
        else replace(record, status="stopped")
        for record in read_outputs(folder)
    }
    found = []
    for job in spec.jobs:
        record = known.get(output_key(Path(spec.folder) / job.output.path, folder))
        ours = record is not None and (record.deployment, record.job) == (spec.name, job.name)
        live = read_live(folder, record.output) if ours and record and record.status == "running" else None
        found.append(JobStatus(job=job.name, output=job.output.shown, record=record if ours else None, live=live))
    return found
