"""`ortdeploy fleet`: show what devices have said of themselves, and which of them need somebody."""

import argparse
import sys
import time
from collections.abc import Sequence

from ortdeploy.cli.command_line.targets import Target, check_target
from ortdeploy.cli.commands.shared import terminal_width, use_color, write_file
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.listing import expand
from ortdeploy.files.names import is_folder, is_there
from ortdeploy.fleet.rows import Wish, read_fleet
from ortdeploy.views.fleet import render_fleet, render_fleet_json


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each deployment; 1 if something is wrong with one."""
    if arguments.report:
        check_target("--report", arguments.report, Target.PAGE, argparse.Namespace())
    for path in arguments.paths:
        if not is_there(path) and not expand(path):
            raise OrtdeployError(f"there is no folder {path}, and no file like it: name where the documents lie")
    now = time.time()
    wish = Wish(devices=_expected(arguments.expect), version=arguments.wanted, older=arguments.older)
    rows = read_fleet(arguments.paths, wish, now)
    shown = [row for row in rows if row.wrong] if arguments.quiet else rows
    if arguments.format == "json":
        sys.stdout.write(render_fleet_json(rows))
    elif shown or not arguments.quiet:
        sys.stdout.write(render_fleet(shown, color=use_color(arguments), width=terminal_width(sys.stdout)))
    if arguments.report:
        from ortdeploy.views.fleet_page import render_page  # noqa: PLC0415  only for a page

        write_file(arguments.report, render_page(rows, now), errors="replace")
    return EXIT_REJECTED if any(row.wrong for row in rows) else EXIT_OK


def _expected(paths: Sequence[str]) -> list[str]:
    """Return the names of the devices that device files describe. Raises OrtdeployError."""
    if not paths:
        return []
    from ortdeploy.planning.devices.device_file import name_of_device  # noqa: PLC0415  brings yaml

    files = [file for path in paths for file in (expand(path) or [path]) if not is_folder(path) or _is_yaml(file)]
    return [name_of_device(file) for file in files]


def _is_yaml(file: str) -> bool:
    return file.endswith((".yaml", ".yml"))
