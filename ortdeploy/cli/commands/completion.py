"""`ortdeploy completion SHELL`: a completion script, made by shtab (the extra `completion`)."""

import argparse
import sys

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.shell import pip_install


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab  # noqa: PLC0415  an extra
    except ImportError as error:
        raise OrtdeployError(f"completion needs shtab. Install it: {pip_install('ortdeploy[completion]')}") from error
    sys.stdout.write(shtab.complete(build_parser(), shell=arguments.shell) + "\n")
    return EXIT_OK
