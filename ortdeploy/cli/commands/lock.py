"""`ortdeploy lock`: write digests of models, adapters and presets into a manifest, or verify them."""

import argparse
import sys
from pathlib import Path

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import log_outcome, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, UsageError, has_errors
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.opening import read_whole
from ortdeploy.manifest.pipelines import CONSTANT
from ortdeploy.manifest.rewrite import set_beside
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.lock import Digested, probe_digests, probe_digests_of_profile
from ortdeploy.planning.remembered.graph_cache import remembered_in
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Lock each manifest, and print for each file whether its digest was written, matches or differs."""
    if not arguments.check and (arguments.profile or arguments.sets or arguments.overlays):
        raise UsageError("lock writes what stands in the manifest; --profile, --overlay, --set go with --check only")
    validated = validate(arguments.paths, load_options(arguments))
    diagnostics: tuple[Diagnostic, ...] = validated.diagnostics
    files: list[Digested] = []
    for spec in validated.specs if not has_errors(diagnostics) else ():
        with remembered_in(state_folder(spec.folder, None, spec.roots)):  # not of what files hold
            found, problems = probe_digests(spec)
            for variant in (one for one in validated.variants if one.path == spec.path):
                more, others = probe_digests_of_profile(variant, spec)
                found, problems = (*found, *more), (*problems, *others)
        diagnostics += problems
        files += found
        if not problems and not arguments.check:
            _write(spec, [file for file in found if file.state != "locked"])
    shown = [file if arguments.check else file.written() for file in files]
    if arguments.format == "json":
        sys.stdout.write(json.render_lock(diagnostics, shown))
    else:
        write_findings(diagnostics, arguments, sys.stderr)
        said = [file for file in shown if not arguments.quiet or file.state not in _GOOD]
        sys.stdout.write(text.render_lock(said))
    log_outcome(arguments, "digests.compared", check=arguments.check, files=len(files))
    open_files = arguments.check and any(file.state != "locked" for file in files)
    return EXIT_REJECTED if has_errors(diagnostics) or open_files else EXIT_OK


_GOOD = frozenset({"locked", "written"})


def _write(spec: Spec, files: list[Digested]) -> None:
    """Write digests into the manifest's text. Raises OrtdeployError."""
    if not files:
        return
    path = Path(spec.path)
    before = read_whole(path).decode("utf-8")
    digests = {file.at: file.sha256 for file in files}
    keys = ("path", CONSTANT, "from")
    beside = {file.at: next(key for key in keys if (*file.at, key) in spec.document.spans) for file in files}
    mark = "\ufeff" if before.startswith("\ufeff") else ""
    after = mark + set_beside(before.removeprefix("\ufeff"), spec.document, "sha256", beside, digests)
    try:
        mode = path.stat().st_mode
        with open_whole(path) as file:
            file.write(after.encode())
        path.chmod(mode)
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be written: {error.strerror}") from error
