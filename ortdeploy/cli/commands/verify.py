"""`ortdeploy verify`: read committed parts again and compare them with the ledger; change nothing."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.cli.commands.shared import chosen_jobs, log_outcome
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.files.urls import path_from_here
from ortdeploy.ledger.integrity import GONE_FILE
from ortdeploy.ledger.records import output_key
from ortdeploy.ledger.verification import (
    PartState,
    VerifiedJob,
    VerifiedPart,
    columns_of_files,
    rows_with_results,
    verify_parts,
)
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Print for each job which parts have changed."""
    chosen, rejected = chosen_jobs(arguments)
    jobs = [_verify(spec, job, arguments.state_dir) for spec, job in chosen]
    if arguments.format == "json":
        sys.stdout.write(json.render_verification(jobs))
    else:
        folders = [spec.folder for spec, _ in chosen]
        jobs = [replace(one, output=path_from_here(at, one.output)) for at, one in zip(folders, jobs, strict=True)]
        sys.stdout.write(text.render_verification(jobs, quiet=arguments.quiet))
    damaged = sum(len(one.damaged) for one in jobs)
    log_outcome(arguments, "parts.verified", parts=sum(one.count for one in jobs), damaged=damaged)
    return EXIT_REJECTED if rejected or damaged else EXIT_OK


def _verify(spec: Spec, job: JobSpec, state_dir: str | None) -> VerifiedJob:
    """Compare the parts of one job with the ledger."""
    state, folder = state_folder(spec.folder, state_dir, spec.roots), Path(spec.folder) / job.output.path
    key, owner = output_key(folder, state), (spec.name, job.name)
    parts = [*verify_parts(state, key, owner, folder, url=job.output.url, removable=job.output.removable)]
    if job.output.files and job.output.url is None and not job.output.removable:
        written = columns_of_files(state, key)
        suffixes = {name: suffix for name, suffix in job.output.files.items() if name in written}
        parts += _lost_files(folder, suffixes, partial(rows_with_results, state, key, owner))
    return VerifiedJob(job=job.name, output=job.output.shown, parts=tuple(parts))


def _lost_files(folder: Path, suffixes: Mapping[str, str], rows: Callable[[], Sequence[int]]) -> Iterator[VerifiedPart]:
    """Yield the images and recordings of rows that are gone; `rows` reads anew what a live run changes meanwhile."""
    from ortdeploy.sinks.row_files import lost_files  # noqa: PLC0415  few jobs write images

    lost = {*lost_files(folder, suffixes, rows())}
    for file in lost_files(folder, suffixes, rows()) if lost else ():
        if file in lost:
            yield VerifiedPart(file=file, bytes=0, state=PartState.DAMAGED, damage=GONE_FILE)
