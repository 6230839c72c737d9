"""`ortdeploy plan`: join manifests with facts, refuse what cannot work, say what would run."""

import argparse
import sys
from pathlib import Path

from ortdeploy.cli.commands.shared import load_options, log_outcome, use_color, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_CHANGES, EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError, has_errors
from ortdeploy.files.atomic import open_whole
from ortdeploy.plan.plan_file import dump_plans
from ortdeploy.planning.workflow import Planned, plan_manifests
from ortdeploy.versions import package_version
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Plan and print; save the plan when asked to and nothing speaks against it."""
    planned = plan_manifests(
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        only_job=arguments.job,
        device=arguments.device,
        new_run=arguments.new_run,
    )
    rejected = has_errors(planned.diagnostics)
    if arguments.format == "json":
        sys.stdout.write(json.render_check(planned.diagnostics, planned.plans))
    else:
        write_diagnostics(planned.diagnostics, arguments)
    if arguments.format == "text" and not rejected and not arguments.quiet:
        sys.stdout.write(text.render_plan(planned.plans, color=use_color(arguments), verbose=arguments.verbose))
    changes = any(plan.steps for plan in planned.plans)
    log_outcome(arguments, "plan.made", rejected=rejected, changes=changes, diagnostics=len(planned.diagnostics))
    if rejected:
        return EXIT_REJECTED
    if arguments.out:
        _save(planned, Path(arguments.out))
    return EXIT_CHANGES if changes and arguments.detailed_exitcode else EXIT_OK


def _save(planned: Planned, path: Path) -> None:
    try:
        with open_whole(path) as file:
            file.write(dump_plans(planned.plans, package_version("ortdeploy")).encode())
    except OSError as error:
        raise OrtdeployError(f"the plan cannot be written to {path}: {error.strerror}") from error
