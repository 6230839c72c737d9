"""`ortdeploy diff`: show what differs between two files of one kind, or in a manifest since its last run."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.command_line.targets import Target, check_target
from ortdeploy.cli.commands.shared import log_outcome, use_color, write_file, write_findings
from ortdeploy.cli.exit_codes import EXIT_CHANGES, EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, UsageError, has_errors
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import read_whole
from ortdeploy.planning.diff_sources import MANIFEST, REPORT, Comparable, read_comparable
from ortdeploy.planning.differences import Difference, find_differences
from ortdeploy.planning.workflow import compare_with_last_run
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; with --detailed-exitcode, the exit code tells whether there are any."""
    folder = next(filter(is_folder, arguments.paths), None)
    if folder is not None:
        raise UsageError(f"{folder} is a folder; diff compares files")
    match arguments.paths:
        case [path]:
            _check_no_page(arguments, f"{path} alone is compared with its last run")
            different = _since_last_run(path, arguments)
        case [old, new]:
            different = _between(old, new, arguments)
        case _:
            raise UsageError("diff compares two files, or one manifest with its last run")
    if different is None:
        return EXIT_REJECTED
    log_outcome(arguments, "files.compared", differences=different)
    return EXIT_CHANGES if different and arguments.detailed_exitcode else EXIT_OK


def _since_last_run(path: str, arguments: argparse.Namespace) -> int | None:
    """Return the number of differences; None if the manifest is refused."""
    changes, diagnostics = compare_with_last_run(path, load_options(arguments), arguments.state_dir)
    if has_errors(diagnostics):
        _write(diagnostics, arguments)
        return None
    if arguments.format == "json":
        sys.stdout.write(json.render_changes(changes))
    elif not arguments.quiet:
        sys.stdout.write(text.render_changes(changes, color=use_color(arguments)))
    return sum(one.run is None or bool(one.differences) for one in changes)


def _between(old: str, new: str, arguments: argparse.Namespace) -> int | None:
    """Return the number of differences; None if a file is refused. Raises UsageError."""
    if arguments.report:
        check_target("--report", arguments.report, Target.PAGE, arguments)
    options = load_options(arguments, digest=False)
    before, after = read_comparable(old, options), read_comparable(new, options)
    if before.value is None or after.value is None:
        _write((*before.diagnostics, *after.diagnostics), arguments)
        return None
    _check_kinds((old, before), (new, after), arguments)
    found = list(find_differences(before.value, after.value))
    if arguments.format == "json":
        sys.stdout.write(json.render_differences(found))
    elif not arguments.quiet and before.kind == REPORT:
        _write_reports((old, new), found, arguments)
    elif not arguments.quiet:
        sys.stdout.write(text.render_differences(found, color=use_color(arguments)))
    if arguments.report:
        _write_page((old, new), found, arguments.report)
    return len(found)


def _write_reports(paths: tuple[str, str], found: Sequence[Difference], arguments: argparse.Namespace) -> None:
    """Print two reports side by side; of one that lacks some numbers, only the differences."""
    from ortdeploy.reports.comparison import Figure, figures  # noqa: PLC0415  only for reports
    from ortdeploy.views.report_diff import render_report_diff  # noqa: PLC0415

    told: Sequence[Figure] = ()
    if found:
        with suppress(*_NO_REPORT):
            told = figures((_read_report(paths[0]), _read_report(paths[1])))
    color, verbose = use_color(arguments), arguments.verbose
    sys.stdout.write(render_report_diff(paths, told, found, color=color, verbose=verbose))


_NO_REPORT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a damaged report raises."""


def _write_page(paths: tuple[str, str], found: Sequence[Difference], target: str) -> None:
    """Write two reports side by side. Raises OrtdeployError."""
    from ortdeploy.reports.comparison import render  # noqa: PLC0415  only for a page

    old, new = (_read_report(path) for path in paths)
    differences = [(one.path, text.shown_value(one.old), text.shown_value(one.new)) for one in found]
    try:
        page = render((old, new), paths, differences)
    except _NO_REPORT as error:
        what = f"{type(error).__name__}: {error}"
        raise OrtdeployError(f"{paths[0]} or {paths[1]} is not a report as a run leaves it ({what})") from error
    write_file(target, page, errors="backslashreplace")


def _read_report(path: str) -> Mapping[str, Any]:
    try:
        report: Mapping[str, Any] = read_json(read_whole(path))
    except (OSError, ValueError) as error:
        raise OrtdeployError(f"{path} cannot be read: {error}") from error
    return report


def _check_no_page(arguments: argparse.Namespace, why: str) -> None:
    """Refuse --report where no two reports are compared. Raises UsageError."""
    if arguments.report:
        raise UsageError(f"--report writes a page of two reports, and {why}")


def _check_kinds(old: tuple[str, Comparable], new: tuple[str, Comparable], arguments: argparse.Namespace) -> None:
    """Refuse to compare files of different kinds, and flags that would have no effect. Raises UsageError."""
    kinds = old[1].kind, new[1].kind
    if kinds[0] != kinds[1]:
        raise UsageError(f"{old[0]} is {kinds[0]} and {new[0]} is {kinds[1]}; diff compares files of one kind")
    if kinds[0] != MANIFEST and (arguments.profile or arguments.overlays or arguments.sets):
        raise UsageError(f"--profile, --overlay and --set change manifests, and {old[0]} is {kinds[0]}")
    if kinds[0] != REPORT:
        _check_no_page(arguments, f"{old[0]} is {kinds[0]}")


def _write(diagnostics: Sequence[Diagnostic], arguments: argparse.Namespace) -> None:
    write_findings(diagnostics, arguments, sys.stderr)
