"""`ortdeploy cache prune`: free what nothing needs of the caches beside manifests."""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import start_logging, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, has_errors
from ortdeploy.manifest.loader import LoadOptions, find_manifests, load_manifest, load_variants
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.versions.pruning import PrunedState, prune
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Prune each state folder once. What a manifest needs that cannot be read stays. Raises OrtdeployError."""
    options = load_options(arguments)
    jobs, diagnostics = _jobs_of(arguments.paths, options)
    rejected = has_errors(diagnostics)
    write_findings(diagnostics if rejected else (), arguments, sys.stderr)
    states = [state_folder(str(Path(path).parent), arguments.state_dir, options.roots) for path in jobs]
    known = {path: names for path, names in jobs.items() if names is not None}
    with ExitStack() as stack:
        start_logging(arguments, stack)
        done = [_prune(state, known, dry_run=arguments.dry_run) for state in dict.fromkeys(states)]
    if arguments.format == "json":
        sys.stdout.write(json.render_pruned(done))
    elif not arguments.quiet:
        sys.stdout.write(text.render_pruned(done))
    return EXIT_REJECTED if rejected else EXIT_OK


def _jobs_of(paths: list[str], options: LoadOptions) -> tuple[dict[str, frozenset[str] | None], tuple[Diagnostic, ...]]:
    """Return the names of jobs by the manifests' full paths, with every profile; None if they cannot be read."""
    files, diagnostics = find_manifests(paths)
    found: dict[str, frozenset[str] | None] = {}
    for path in files:
        loaded = load_manifest(path, options)
        diagnostics += loaded.diagnostics
        specs = load_variants(path, options)
        names = frozenset(job.name for spec in specs for job in spec.jobs)
        full = os.path.abspath(path)  # noqa: PTH100  keeps links
        found[full] = names if specs else None
    return found, diagnostics


def _prune(state: Path, jobs: dict[str, frozenset[str]], *, dry_run: bool) -> PrunedState:
    try:
        return prune(state, jobs, dry_run=dry_run)
    except OSError as error:
        raise OrtdeployError(f"the caches of {state} cannot be pruned: {error.strerror}") from error
