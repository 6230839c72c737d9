"""`ortdeploy bundle`: write a manifest with all that it names as one bundle, or show one."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortdeploy.bundles.description import dump, identity, shown
from ortdeploy.bundles.layout import Bundle, open_bundle, read_signature, write_bundle, write_files
from ortdeploy.bundles.policy import trust
from ortdeploy.bundles.statement import objection_to_files, read_envelope
from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import device_files, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, UsageError, has_errors
from ortdeploy.files.names import is_there
from ortdeploy.manifest.loader import find_manifests
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.planning.versions.bundling import Closure, close_over, needed_by
from ortdeploy.planning.versions.installed import DamagedRecordError, load_installed
from ortdeploy.planning.versions.policy_file import read_policies
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.shell import command
from ortdeploy.versions import package_version, release_numbers
from ortdeploy.views import bundles as view


def run(arguments: argparse.Namespace) -> int:
    """Make a bundle, and print what it is; or show one."""
    if arguments.paths[0] == "show":
        return _show(arguments)
    if arguments.output is None and arguments.files is None:
        raise UsageError("bundle needs -o FILE.tar or -o FOLDER, or --files FOLDER for a tool that signs folders")
    manifests, _ = find_manifests(arguments.paths)
    if len(manifests) != 1:
        raise UsageError(f"a bundle is of one manifest, and {len(manifests)} are named")
    _check_target(arguments.output)
    closure, diagnostics = _close(manifests[0], arguments)
    write_findings(diagnostics, arguments, sys.stderr)
    if closure is None or has_errors(diagnostics):
        return EXIT_REJECTED
    signatures = _signatures(arguments.signatures, closure)
    notes = [] if arguments.against is None else _compare(Path(arguments.against), closure)
    manifest_digest = _write(arguments, closure, signatures)
    raw = dump(closure.description)
    if arguments.format == "json":
        sys.stdout.write(view.render_json(closure.description, identity(raw), manifest_digest))
    elif not arguments.quiet:
        sys.stdout.write(view.render_made(closure.description, identity(raw), manifest_digest, notes))
    return EXIT_OK


def _check_target(output: str | None) -> None:
    """Refuse to write over an archive that is no bundle. Raises UsageError."""
    if output is None or not output.endswith(".tar") or not is_there(output):
        return
    try:
        with open_bundle(Path(output)):
            pass
    except OrtdeployError as error:
        raise UsageError(f"-o: {error}. It is there already, and is not overwritten") from error


def _close(manifest: str, arguments: argparse.Namespace) -> tuple[Closure | None, tuple[Diagnostic, ...]]:
    """Return what goes into the bundle; devices that would refuse it are among the findings."""
    options = load_options(arguments)
    validated = validate([manifest], options)
    if has_errors(validated.diagnostics):
        return None, validated.diagnostics
    closure, diagnostics = close_over(
        manifest,
        options,
        version=arguments.number,
        label=arguments.label or "",
        made_by=".".join(map(str, release_numbers(package_version("ortdeploy")))) or "0",
        state_dir=arguments.state_dir,
    )
    found = [*validated.diagnostics, *diagnostics]
    if closure is not None:
        for device in device_files(arguments.devices):
            planned = plan_manifests([manifest], options, state_dir=arguments.state_dir, device=device)
            found += planned.diagnostics
    return closure, tuple(dict.fromkeys(found))


def _signatures(paths: Sequence[str], closure: Closure) -> Mapping[str, bytes]:
    """Return signatures by name, each of which must list what is bundled. Raises OrtdeployError."""
    found: dict[str, bytes] = {}
    id_ = identity(dump(closure.description))
    for path in paths:
        name = Path(path).name
        try:
            raw = read_signature(path)
        except OSError as error:
            raise OrtdeployError(f"{path} cannot be read: {error.strerror}") from error
        wrong = objection_to_files(read_envelope(raw, path), closure.description, id_)
        if wrong is not None:
            raise OrtdeployError(
                f"{path} is no signature of this bundle: {wrong}. Sign the folder that --files writes with the same "
                "manifest, version and label"
            )
        if found.setdefault(name, raw) != raw or name in closure.sources:
            raise OrtdeployError(f"two files of the bundle would be called {name}; rename one")
    return found


def _write(arguments: argparse.Namespace, closure: Closure, signatures: Mapping[str, bytes]) -> str | None:
    try:
        if arguments.files is not None:
            write_files(Path(arguments.files), closure.description, closure.sources)
        if arguments.output is None:
            return None
        return write_bundle(Path(arguments.output), closure.description, closure.sources, signatures)
    except OSError as error:
        place = arguments.output or arguments.files
        raise OrtdeployError(f"the bundle cannot be written to {place}: {error.strerror}") from error


def _compare(old: Path, closure: Closure) -> list[str]:
    """Return what a device with an older bundle will notice. Raises OrtdeployError if it would not take the new one."""
    new = closure.description
    with open_bundle(old) as bundle:
        before, id_ = bundle.description, bundle.id
    if before.name != new.name:
        raise OrtdeployError(f"{old} is of {shown(before.name)}, and this is {shown(new.name)}")
    if before.version > new.version or (before.version == new.version and id_ != identity(dump(new))):
        raise OrtdeployError(
            f"{old} has version {before.version}, and this has {new.version}: devices take higher ones alone. "
            f"Give --version {before.version + 1}"
        )
    sizes = {file.sha256: file.size for file in new.files}
    fresh = sum(size for digest, size in sizes.items() if digest not in before.digests.values())
    notes = [f"{fresh:,} bytes are new against {os.fspath(old)}"]
    weights = [{file.sha256 for file in one.files if file.kind == "weight"} for one in (before, new)]
    if weights[0] != weights[1]:
        notes.append(
            "models or adapters are others: jobs whose output says on_upgrade: refuse, the default, will refuse this "
            "version while their outputs are there"
        )
    return notes


def _show(arguments: argparse.Namespace) -> int:
    if len(arguments.paths) != 2:  # noqa: PLR2004  show and the bundle
        raise UsageError("bundle show takes one bundle")
    if arguments.paths[1].endswith((".yaml", ".yml")):
        made = command("ortdeploy", "bundle", arguments.paths[1], "-o", "FILE.tar")
        raise UsageError(f"bundle show takes a bundle, and this is a manifest, of which one is made by {made}")
    with open_bundle(Path(arguments.paths[1]), arguments.tag) as bundle:
        trusted, why = _trust(bundle, arguments.policy)
        new = _news(bundle, arguments)
        if arguments.format == "json":
            more = {"trusted": trusted, "trust": why, "new": new}
            signatures = bundle.signatures
            shown = view.render_json(bundle.description, bundle.id, bundle.manifest_digest, signatures, **more)
        else:
            shown = view.render_shown(bundle, why, new, needed_by(bundle))
        sys.stdout.write(shown)
    return EXIT_OK


def _trust(bundle: Bundle, policy: str | None) -> tuple[bool, list[str]]:
    """Return whether this machine would trust a bundle, and why."""
    try:
        policies = read_policies(policy)
        why = list(trust(policies, bundle.description, bundle.id, bundle.signatures))
    except OrtdeployError as error:
        return False, [f"not trusted: {error}"]
    return True, [f"trusted: {one}" for one in why] or ["there is no policy here, so nobody's signature is asked for"]


def _news(bundle: Bundle, arguments: argparse.Namespace) -> list[str] | None:
    """Return the files that are not in the version that runs; None if none does."""
    root = os.path.abspath(arguments.root or os.path.dirname(os.path.abspath(bundle.path)))  # noqa: PTH100, PTH120  as of apply
    name = bundle.description.name
    try:
        installed = load_installed(state_folder(root, arguments.state_dir, []), name)
    except DamagedRecordError as error:
        places = {"--root": root, "--state-dir": arguments.state_dir}
        remedy = command(
            "ortdeploy", "status", f"@{name}", *(f"{flag}={path}" for flag, path in places.items() if path)
        )
        raise OrtdeployError(f"{error}. This writes it anew: {remedy}") from error
    version = installed.version(installed.current)
    if version is None:
        return None
    return [name for name, digest in bundle.description.digests.items() if version.files.get(name) != digest]
