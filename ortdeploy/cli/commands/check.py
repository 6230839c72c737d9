"""`ortdeploy check`: golden inputs and outputs, on every session that a model may get on this machine."""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ortdeploy.checks.run import ERROR, PASSED, CheckResult, result_of
from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import live_line, log_outcome, terminal_width, use_color, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import UsageError, has_errors
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import recording
from ortdeploy.plan.steps import PlannedCheck
from ortdeploy.planning.golden_checks import plan_checks
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.process.child import Child, how_it_ended
from ortdeploy.redaction import without_secrets
from ortdeploy.views import json
from ortdeploy.views.checks import ChecksLine, render_checks


def run(arguments: argparse.Namespace) -> int:
    """Run the checks, and print how each data set ended."""
    if arguments.leaks and arguments.record:
        raise UsageError("--leaks looks at memory and --record writes outputs: choose one of the two")
    checks, diagnostics = plan_checks(
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        only_model=arguments.model,
        leak_runs=arguments.runs if arguments.leaks else 0,
    )
    rejected = has_errors(diagnostics)
    write_findings(diagnostics, arguments, sys.stderr)
    chosen = recording(checks) if arguments.record else checks
    results = [] if rejected else _run_with_line(chosen, arguments)
    if arguments.format == "json":
        sys.stdout.write(json.render_checks(results))
    elif not rejected:
        color, width = use_color(arguments), terminal_width(sys.stdout)
        sys.stdout.write(render_checks(results, color=color, quiet=arguments.quiet, width=width))
    log_outcome(arguments, "checks.finished", rejected=rejected, checks=len(results))
    return EXIT_REJECTED if rejected or any(result.status != PASSED for result in results) else EXIT_OK


def _run_with_line(checks: Sequence[PlannedCheck], arguments: argparse.Namespace) -> list[CheckResult]:
    """Run the checks; on a terminal, a live line shows how many have ended."""
    line = ChecksLine(checks)
    with live_line(arguments, line.pieces):
        return [line.end(result) for result in run_checks(checks, arguments.state_dir, arguments.roots)]


def show_warning(category: str, text: str, place: str) -> None:
    """Show a warning of a library in the child, as if it came from this process."""
    path, _, line = place.rpartition(":")
    warnings.showwarning(text, type(category, (UserWarning,), {}), path, int(line))


UNATTENDED = 3600.0
"""Seconds after which checks end that nobody watches: compiling takes minutes, and a driver that hangs, for ever."""


def run_checks(
    checks: Sequence[PlannedCheck],
    state_dir: str | None,
    roots: Sequence[str],
    stopped: StopFlag | None = None,
    *,
    seconds: float | None = None,
) -> Iterator[CheckResult]:
    """Run checks in a child; after a session that crashes it, or takes all `seconds`, continue in another child.

    Models are opened from the content store in `state_dir`, by default the one of each check's manifest. A signal that
    is `stopped` ends the child, and nothing more is opened.
    """
    left = list(checks)
    while left and not (stopped is not None and stopped()):
        ended = 0
        requests = [
            {
                "check": encode(check),
                "state_dir": str(state_folder(check.root, state_dir, roots)),
                "roots": [os.path.abspath(root) for root in roots],  # noqa: PTH100  keeps links
            }
            for check in left
        ]
        module = "ortdeploy.cli.children.check"
        with Child(module, requests, keeps_stderr=True, seconds=seconds, on_warning=show_warning) as child:
            if stopped is not None:
                stopped.forward = child.send_signal
            for message in child.messages():
                if "result" in message:
                    result = CheckResult(**message["result"])
                    yield replace(result, message=without_secrets(result.message or "") or None)
                else:
                    ended = message["ended"]
            code = child.wait()
        if ended < len(left) and not (stopped is not None and stopped()):
            ended_by = f"was ended after {seconds:.0f} seconds" if child.late else how_it_ended(code)
            reason = f"the process that ran it {ended_by}"
            yield result_of(left[ended], ", ".join(left[ended].folders), ERROR, reason)
        left = left[ended + 1 :]
