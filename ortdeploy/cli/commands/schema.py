"""`ortdeploy schema [NAME]`: print a JSON Schema, for editors and other tools."""

import argparse
import sys

from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.diagnostics import UsageError, did_you_mean
from ortdeploy.schemas import bundled_schema, schema_names


def run(arguments: argparse.Namespace) -> int:
    """Print the schema of that name."""
    if arguments.name not in schema_names():
        raise UsageError(f'there is no schema "{arguments.name}". {did_you_mean(arguments.name, schema_names())}')
    sys.stdout.write(bundled_schema(arguments.name))
    return EXIT_OK
