"""`ortdeploy rollback`: go back to an older version of what is installed; `cli.bundles.bundled` does it."""

import argparse

from ortdeploy.diagnostics import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Refuse what is not installed: for manifests, git is the way back. Raises UsageError."""
    raise UsageError(f"rollback is for installed deployments, as in @NAME, and {arguments.paths[0]} is none")
