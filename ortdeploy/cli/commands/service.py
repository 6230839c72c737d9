"""`ortdeploy service`: print systemd unit files that watch manifests, or apply them at intervals."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ortdeploy.cli.command_line.manifest_options import Taken, load_options
from ortdeploy.cli.commands.shared import write_file, write_findings
from ortdeploy.cli.commands.watch import apply_arguments
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import UsageError, has_errors
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.job_names import select_jobs
from ortdeploy.planning.service import needs_of
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.redaction import secret_setting
from ortdeploy.terminal_text import safe
from ortdeploy.views import systemd


def run(arguments: argparse.Namespace) -> int:
    """Print the units, or write them into a folder."""
    validated = validate(arguments.paths, load_options(arguments))
    write_findings(validated.diagnostics, arguments, sys.stderr)
    if has_errors(validated.diagnostics) or not validated.specs:
        return EXIT_REJECTED
    secret = secret_setting(arguments.sets)
    if secret is not None:
        raise UsageError(
            f"--set {secret} holds a secret, and everybody on the machine may read a unit. Write it into a file for "
            "--overlay"
        )
    select_jobs(arguments.jobs, arguments.excluded, [job.name for spec in validated.all_specs for job in spec.jobs])
    folders = [state_folder(spec.folder, arguments.state_dir, spec.roots) for spec in validated.specs]
    full = _with_full_paths(arguments)
    service = systemd.Service(
        command=_command(full),
        user=_owner(folders[0].parent),
        program_folders=(sys.prefix, sys.base_prefix, str(Path(__file__).parents[3])),
        every=arguments.every,
    )
    specs = (*validated.all_specs, *_kept_specs(arguments))
    units = systemd.render_units(service, needs_of(specs, full.state_dir, full.metrics))
    if arguments.output is None:
        sys.stdout.write(safe("\n".join(f"# /etc/systemd/system/{name}\n{unit}" for name, unit in units.items())))
        return EXIT_OK
    for name, unit in units.items():
        write_file(Path(arguments.output) / name, unit)
    return EXIT_OK


def _kept_specs(arguments: argparse.Namespace) -> Iterator[Spec]:
    """Yield the specs of all versions of a deployment that are here: the service may run each of them."""
    taken: Taken | None = getattr(arguments, "taken", None)
    for manifest, options in () if taken is None else taken.kept:
        plain = load_options(argparse.Namespace(**{**vars(arguments), "taken": None}))
        yield from validate([manifest], options(plain)).all_specs


def _with_full_paths(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with absolute paths, as a service starts in another folder."""
    full = {**vars(arguments)}
    for name in ("paths", "overlays", "roots"):
        full[name] = [os.path.abspath(one) for one in full[name]]  # noqa: PTH100  keeps links
    for name in ("state_dir", "log_file", "metrics"):
        full[name] = None if full[name] is None else os.path.abspath(full[name])  # noqa: PTH100
    return argparse.Namespace(**full)


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of the service."""
    given = apply_arguments(argparse.Namespace(**{**vars(arguments), "color": None, "format": None}))
    program = Path(sys.prefix) / "bin" / "ortdeploy"
    begin = [str(program)] if program.is_file() else [sys.executable, "-m", "ortdeploy"]
    if arguments.every is not None:
        return [*begin, *given]
    return [*begin, "watch", *(one for one in given[1:] if one != "--last-good")]


def _owner(folder: Path) -> str | None:
    """Return the owner of a folder, who may write into it; None for root. Raises UsageError if it is unknown."""
    try:
        name = folder.owner()
    except (OSError, KeyError, NotImplementedError) as error:
        raise UsageError(f"who owns {folder} cannot be told, and a service runs as somebody: {error}") from error
    return None if name == "root" else name
