"""`ortdeploy compact`: join small parts into larger ones."""

import argparse
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.cli.commands.shared import chosen_jobs, start_logging
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.files.urls import path_from_here
from ortdeploy.ledger import open_plans
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.ledger.records import output_key
from ortdeploy.manifest.job_order import readers_of
from ortdeploy.manifest.spec import ROW, JobSpec, Spec
from ortdeploy.parts.compaction import CompactionResult, CompactionTarget
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Put the parts of each job together."""
    jobs, rejected = chosen_jobs(arguments)
    with ExitStack() as stack:
        start_logging(arguments, stack)
        done = [_compact(spec, job, state_folder(spec.folder, arguments.state_dir, spec.roots)) for spec, job in jobs]
    if arguments.format == "json":
        sys.stdout.write(json.render_compaction(done))
    elif not arguments.quiet:
        folders = [spec.folder for spec, _ in jobs]
        done = [replace(one, output=path_from_here(at, one.output)) for at, one in zip(folders, done, strict=True)]
        sys.stdout.write(text.render_compaction(done))
    return EXIT_REJECTED if rejected else EXIT_OK


def _compact(spec: Spec, job: JobSpec, state: Path) -> CompactionResult:
    """Put the parts of one job together. Raises OrtdeployError, LockedError."""
    shown, folder = job.output.shown, Path(spec.folder) / job.output.path
    output, result = output_key(folder, state), partial(CompactionResult, job=job.name, output=shown)
    if job.output.url is not None:
        return result(why_not="it lies on an object store")
    readers = readers_of(job.name, spec.jobs)
    if readers:
        return result(why_not=f"job {readers[0]} reads its parts, and knows them by their names")
    if not state.is_dir():
        return result(why_not="no part is committed")
    with hold_output(state, output), open_ledger(state) as ledger:
        if (folder / open_plans.FOLDER).is_dir():
            return result(why_not="shards have made parts of it, whose numbers plans have")
        record = ledger.output(output)
        if record is None or (record.deployment, record.job) != (spec.name, job.name) or not record.parts:
            return result(why_not="no part is committed")
        if not folder.is_dir():
            return result(why_not="the folder is not there")
        small = CompactionTarget(
            ledger=ledger,
            output=output,
            folder=folder,
            shown=shown,
            format=job.output.format,
            rows_per_part=job.output.rows_per_part,
            removable=job.output.removable,
            exploded=bool(job.output.explode),
            has_row=job.output.removable or ROW in job.input.key,
        )
        try:
            before, after = small.compact()
        except (OSError, ValueError) as error:
            raise OrtdeployError(f"the parts of {shown} cannot be put together: {failure_at(folder, error)}") from error
    return result(before=before, after=after)
