"""`ortdeploy validate`: check text only; safe in editors and in CI, imports neither onnxruntime nor numpy."""

import argparse
import sys

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import log_outcome, terminal_width, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import has_errors
from ortdeploy.manifest.loader import find_manifests, find_unchecked
from ortdeploy.planning.validation import validate
from ortdeploy.terminal_text import safe
from ortdeploy.views import text


def run(arguments: argparse.Namespace) -> int:
    """Check manifests and print what is wrong with them."""
    validated = validate(arguments.paths, load_options(arguments, digest=False), devices=True)
    if arguments.format == "json":
        from ortdeploy.views import json  # noqa: PLC0415  only if asked for

        sys.stdout.write(json.render_check(validated.diagnostics))
    else:
        write_diagnostics(validated.diagnostics, arguments)
    if arguments.format == "text" and not arguments.quiet:
        files, _ = find_manifests(arguments.paths)
        sys.stdout.write(safe("".join(f"{path}\n" for path in files if arguments.verbose)))
        sys.stdout.write(text.summarize(validated.diagnostics, validated.manifests, validated.devices))
        left = find_unchecked(arguments.paths)
        sys.stdout.write(text.render_unchecked(left, terminal_width(sys.stdout)))
    log_outcome(arguments, "manifests.checked", paths=arguments.paths, diagnostics=len(validated.diagnostics))
    return EXIT_REJECTED if has_errors(validated.diagnostics) else EXIT_OK
