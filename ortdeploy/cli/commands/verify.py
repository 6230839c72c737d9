"""`ortdeploy verify`: read committed parts again and compare them with the ledger; change nothing."""

import argparse
import sys
from pathlib import Path

from ortdeploy.cli.commands.shared import load_options, log_outcome, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import has_errors
from ortdeploy.ledger.records import output_key
from ortdeploy.ledger.verification import VerifiedJob, verify_parts
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.workflow import select_jobs, validate
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Print for each job which parts have changed. A manifest that is refused does not hide the others."""
    validated = validate(arguments.paths, load_options(arguments))
    rejected = has_errors(validated.diagnostics)
    write_findings(validated.diagnostics if rejected else (), arguments, sys.stderr)
    names = [job.name for spec in validated.specs for job in spec.jobs]
    wanted = select_jobs(arguments.jobs, arguments.excluded, names) if names else ()
    jobs = [one for spec in validated.specs for one in _verify(spec, wanted, arguments.state_dir)]
    if arguments.format == "json":
        sys.stdout.write(json.render_verification(jobs))
    else:
        sys.stdout.write(text.render_verification(jobs, quiet=arguments.quiet))
    damaged = sum(len(one.damaged) for one in jobs)
    log_outcome(arguments, "parts.verified", parts=sum(len(one.parts) for one in jobs), damaged=damaged)
    return EXIT_REJECTED if rejected or damaged else EXIT_OK


def _verify(spec: Spec, wanted: tuple[str, ...], state_dir: str | None) -> list[VerifiedJob]:
    state = state_folder(spec.folder, state_dir, spec.roots)
    found = []
    for job in spec.jobs:
        if job.name in wanted:
            folder = Path(spec.folder) / job.output.path
            owner = (spec.name, job.name)
            key = output_key(folder, state)
            parts = verify_parts(state, key, owner, folder, url=job.output.url, removable=job.output.removable)
            found.append(VerifiedJob(job=job.name, output=job.output.shown, parts=tuple(parts)))
    return found
