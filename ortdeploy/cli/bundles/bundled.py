"""Commands on bundles and on what is installed from them, and what a policy refuses before a command runs.

`apply BUNDLE` takes a version from state to state (`installed`), and whatever ends that keeps the version that
runs. From then on the commands work as on a manifest, whose text and files come from the content store.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.bundles.layout import Bundle, open_bundle, signature_beside
from ortdeploy.bundles.policy import Policy, is_free, trust
from ortdeploy.cli.bundles.arriving_bundle import ArrivingBundle
from ortdeploy.cli.bundles.bundle_place import Options, Place, RefusedError, with_version
from ortdeploy.cli.command_line.manifest_options import Taken
from ortdeploy.cli.commands.shared import log_here, write_findings
from ortdeploy.cli.exit_codes import EXIT_LOCKED, EXIT_OK, EXIT_REJECTED, worst_of
from ortdeploy.diagnostics import LockedError, OrtdeployError, UsageError, has_errors
from ortdeploy.events import log
from ortdeploy.files.digests import signature
from ortdeploy.files.names import is_folder, names_bundle
from ortdeploy.ledger.ledger import now
from ortdeploy.manifest.loader import SUFFIXES, LoadOptions, find_manifests
from ortdeploy.planning.file_selection import Arrivals
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.versions import installed as record
from ortdeploy.planning.versions import recovery, taking_in
from ortdeploy.planning.versions.installed import Installed, running_version
from ortdeploy.planning.versions.policy_file import read_policies
from ortdeploy.planning.versions.version import Version
from ortdeploy.redaction import without_secrets
from ortdeploy.terminal_text import safe

Run = Callable[[argparse.Namespace], int]

_TAKE_BUNDLES = frozenset({"apply", "plan", "service", "watch"})
_TAKE_INSTALLED = _TAKE_BUNDLES | {"cache", "check", "compact", "retry", "rollback", "status", "verify"}
_RUN_MODELS = frozenset({"apply", "check", "plan", "retry"})
"""Commands that open what a version holds, so its trust is asked again."""
_PLAN_MANIFESTS = _RUN_MODELS | {"diff", "finish", "rollback", "service", "watch"}
"""Those, and what loads libraries that manifests name, or lets manifests run later."""
_NEVER_UNDER_A_POLICY = frozenset({"init", "try", "tune"})
_FLAGS = {"--set": "sets", "--overlay": "overlays", "--allow-root": "roots"}


def run_bundled(arguments: argparse.Namespace, run: Run) -> int:
    """Run a command under the policies that are in force, on bundles or installed versions if it names some."""
    paths: Sequence[str] = getattr(arguments, "paths", ())
    bundles = [path for path in paths if names_bundle(path) or _has_come_from(arguments, path)]
    try:
        policies = read_policies(getattr(arguments, "policy", None))
    except OrtdeployError:
        if arguments.command == "apply" and bundles:
            _Desk(arguments, (), run).report_stopped(bundles[0])
        raise
    _refuse_by_policy(arguments, policies, bundles)
    if arguments.command == "bundle" or not bundles:
        return run(arguments)
    _refuse_unfit(arguments, bundles[0])
    return _Desk(arguments, policies, run).serve(paths[0])


def _has_come_from(arguments: argparse.Namespace, path: str) -> bool:
    """Return whether an installed version lay where nothing is now, as on a stick that was pulled out."""
    if arguments.command not in _TAKE_BUNDLES or os.path.lexists(path):
        return False
    return record.name_from(_state_of(arguments, path), os.path.abspath(path)) is not None  # noqa: PTH100


def _root_of(arguments: argparse.Namespace, path: str) -> str:
    """Return the folder of inputs, outputs and state of what a path names, without following links."""
    beside = "." if path.startswith("@") else Path(path).absolute().parent
    given = getattr(arguments, "root", None)
    return os.path.abspath(given if given is not None else beside)  # noqa: PTH100


def _state_of(arguments: argparse.Namespace, path: str) -> Path:
    return state_folder(_root_of(arguments, path), arguments.state_dir, [])


def _refuse_by_policy(arguments: argparse.Namespace, policies: Sequence[Policy], bundles: Sequence[str]) -> None:
    """Refuse what would run something that nobody has signed. Raises OrtdeployError."""
    if not policies:
        return
    command = arguments.command
    converts = command == "adapter" and arguments.action == "convert"
    if command in _NEVER_UNDER_A_POLICY or converts:
        name = "adapter convert" if converts else command
        raise OrtdeployError(f"{policies[0].path} is in force, and {name} works on files that nobody has signed")
    if command not in _PLAN_MANIFESTS:
        return
    given = next((flag for flag, name in _FLAGS.items() if getattr(arguments, name)), None)
    if given is not None:
        raise OrtdeployError(f"{policies[0].path} is in force, and {given} changes what was signed")
    named = [path for path in arguments.paths if path not in bundles]
    if command == "diff":  # which may be of reports
        named = [path for path in named if path.endswith(SUFFIXES) or is_folder(path)]
    root = getattr(arguments, "root", None)
    for path in (*find_manifests(named)[0], *([os.path.join(root, "")] if root is not None and named else [])):  # noqa: PTH118
        if not is_free(policies, os.path.realpath(path) + (os.sep if path.endswith(os.sep) else "")):
            raise OrtdeployError(
                f"{policies[0].path} is in force, and {path} is in none of the folders whose manifests may run "
                "unsigned (manifests). Apply a signed bundle: ortdeploy apply BUNDLE"
            )


def _refuse_unfit(arguments: argparse.Namespace, path: str) -> None:
    """Raise UsageError for what cannot be done with a bundle, or with an installed version."""
    is_installed, command = path.startswith("@"), arguments.command
    if len(arguments.paths) > 1:
        raise UsageError(f"{path} goes alone: name one bundle or one installed deployment")
    if command not in (_TAKE_INSTALLED if is_installed else _TAKE_BUNDLES):
        what = f"@{path[1:]}, which is installed as it was signed" if is_installed else f"the bundle {path}"
        known = ", ".join(sorted(_TAKE_INSTALLED if is_installed else _TAKE_BUNDLES))
        hint = "" if is_installed else ". Apply it, and name it as @NAME"
        raise UsageError(f"{command} does not work on {what}; these do: {known}{hint}")
    for flag, name in (("--shard", "shard"), ("--engine", "engine"), ("--workers", "workers"), ("--out", "out")):
        if getattr(arguments, name, None) is not None:
            raise UsageError(
                f"{flag} is for plans of manifests: a bundle runs whole, on the device that it is applied to"
            )
    if getattr(arguments, "record", False):
        raise UsageError("--record writes golden outputs, and those of an installed deployment are as they were signed")
    if getattr(arguments, "devices", None):
        raise UsageError("--device is for manifests: ortdeploy bundle --device FILE says whether a device takes it")
    if is_installed and getattr(arguments, "tag", None) is not None:
        raise UsageError("--tag chooses in a layout, and an installed deployment has one version that runs")


class _Desk:
    """Where bundles are taken in and installed versions are looked up, for one command."""

    def __init__(self, arguments: argparse.Namespace, policies: tuple[Policy, ...], run: Run) -> None:
        self._arguments, self._run = arguments, run
        path = arguments.paths[0]
        given = getattr(arguments, "root", None)
        if given is not None and not is_folder(given):
            raise UsageError(f"--root: there is no folder {given}")
        self._place = Place(arguments, policies, _root_of(arguments, path), _state_of(arguments, path))

    def serve(self, path: str) -> int:
        """Run the command."""
        if self._arguments.command == "watch":
            self._take(None, path)
            return self._run(self._arguments)
        if path.startswith("@"):
            self._mend(path[1:])
            return self._run_installed(path[1:])
        with_last, source = self._arguments.command == "apply" and self._arguments.last_good, os.path.abspath(path)  # noqa: PTH100
        name = None
        try:
            with open_bundle(Path(path), getattr(self._arguments, "tag", None)) as bundle:
                if self._arguments.command == "service":
                    return self._run_on_texts(bundle, path)
                name, arriving = bundle.description.name, ArrivingBundle(self._place, bundle)
                self._require_same_name(name, source)
                self._mend(name)
                if self._arguments.command == "plan":
                    return arriving.plan(lambda version: self._take(version, f"@{name}"), self._run)
                code = arriving.install(source)
        except OrtdeployError as error:  # as if somebody is copying another one there, or brings one in meanwhile
            name = record.name_from(self._place.state, source) or name
            is_locked, runs = isinstance(error, LockedError), name and running_version(self._place.state, name)
            if name is None or not runs or self._arguments.command != "apply" or (is_locked and not with_last):
                raise
            code = EXIT_LOCKED if is_locked else EXIT_REJECTED
            is_noted = code == EXIT_REJECTED and os.path.lexists(path)  # else it is a stick that is away
            if not (is_noted and self._note_unreadable(name, str(error))):
                stays = f"ortdeploy: {error}. The version of {name} that runs stays.\n"
                sys.stderr.write(safe(without_secrets(stays)))
        installed = record.load_installed(self._place.state, name)
        if code == EXIT_OK or (with_last and installed.current is not None):
            return worst_of([code, self._run_installed(name)])
        self._report(installed)
        return code

    def _mend(self, name: str) -> None:
        """Write a damaged record anew, and say what is in it. Raises LockedError, OrtdeployError."""
        said = recovery.mend(self._place.state, name, now())
        if said is not None:
            sys.stderr.write(safe(f"ortdeploy: {said}.\n"))
            log_here(self._arguments, log.warning, "bundle.record_mended", deployment=name, reason=said)

    def _note_unreadable(self, name: str, reason: str) -> bool:
        """Remember that what lies in the place of a bundle is none for this device; on a full disk, nobody does.

        Return whether somebody who looks again and again has said the same before.
        """
        state = self._place.state
        with suppress(OrtdeployError), record.installing(state, name):
            installed = record.load_installed(state, name)
            before = installed.refusal("")
            record.save_installed(state, record.with_unreadable(installed, reason, now()))
            return before is not None and before.reason == reason and self._arguments.every is not None
        return False

    def _require_same_name(self, name: str, source: str) -> None:
        """Under a policy, keep what one deployment's path brings from being another one, which would run instead of it.

        Raises OrtdeployError.
        """
        before = record.name_from(self._place.state, source) if self._place.policies else None
        if before not in {None, name}:
            raise OrtdeployError(
                f"{source} is a bundle of {name}, and {before} came from there and runs. Give {name} another path"
            )

    def _run_on_texts(self, bundle: Bundle, path: str) -> int:
        """Run the command on what the manifest of a bundle says; nothing is written here, whoever runs it."""
        description = bundle.description
        trust(self._place.policies, description, bundle.id, bundle.signatures)
        kept = tuple(self._kept(record.load_installed(self._place.state, description.name)))
        own = taking_in.options_of_bundle(bundle, self._place.root)
        self._arguments.texts = own.texts
        self._name_again(path, partial(with_version, own), kept=kept)
        self._arguments.paths = [os.path.join(self._place.root, description.manifest)]  # noqa: PTH118  text
        return self._run(self._arguments)

    def watched(self, path: str) -> list[str]:
        """Return the files whose change may let a version come or go."""
        policies = [one.path for one in self._place.policies]
        if path.startswith("@"):
            return [str(record.record_of(self._place.state, path[1:])), *policies]
        return [path, os.path.join(path, "index.json"), signature_beside(path), *policies]  # noqa: PTH118

    def current_files(self, path: str) -> tuple[str, list[str], LoadOptions, str] | None:
        """Return the id, manifest and options of the version that runs of what a path names; None if none does.

        The last is a text that changes with each rollback, and is empty when its effect has ended.
        """
        with suppress(OrtdeployError):
            state = self._place.state
            name = path[1:] if path.startswith("@") else record.name_from(state, os.path.abspath(path))  # noqa: PTH100
            installed = record.load_installed(state, name or "")
            version = installed.version(installed.current)
            if version is not None:
                own = replace(self._place.options(version)(LoadOptions()), digest=False)
                rolled_back = f"{version.id} {installed.aside}" if installed.aside else ""
                return str(version.id), [self._place.manifest_of(version)], own, rolled_back
        return None

    def _run_installed(self, name: str) -> int:
        """Run the command on the version that is current."""
        if self._arguments.command == "rollback":
            return self._roll_back(name)
        installed = record.load_installed(self._place.state, name)
        version = installed.version(installed.current)
        if version is None:
            where, refused = f"@{name} in {self._place.root}", installed.wanted_refusal
            why = "Apply its bundle: ortdeploy apply BUNDLE --root DIR"
            if refused is not None:
                why = f"Version {refused.called} is not {refused.state} since {refused.since}: {refused.reason}"
            raise OrtdeployError(f"nothing is installed as {where}. {why}")
        try:
            passed = self._require_trust(installed, version)
        except LockedError:
            raise
        except OrtdeployError:
            if self._arguments.command == "apply":
                self._report(installed, "What is installed may not run any more")
            raise
        self._take(version, f"@{name}", installed, passed=passed)
        return self._run(self._arguments)

    def _require_trust(self, installed: Installed, version: Version) -> bool:
        """Ask again whether a version may run, and its golden checks if it is about to; return whether these passed.

        Raises OrtdeployError.
        """
        if self._arguments.command in _RUN_MODELS:
            try:
                record.trust_again(installed, version, self._place.state, self._place.read_policies())
            except OrtdeployError as error:
                raise OrtdeployError(f"{_named(installed.name, version)} may not run any more: {error}") from error
        is_run = self._arguments.command in {"apply", "retry"}
        return is_run and self._check_again(installed, version)

    def report_stopped(self, path: str) -> None:
        """Say in the status document that what is installed may not run, because nobody knows what the policy says."""
        with suppress(OrtdeployError):
            name = path[1:] if path.startswith("@") else record.name_from(self._place.state, os.path.abspath(path))  # noqa: PTH100
            if name is not None and (found := record.load_installed(self._place.state, name)).current is not None:
                self._report(found, "The policy cannot be used")

    def _report(self, installed: Installed, summary: str | None = None) -> None:
        """Say in the status document how a deployment is of which nothing runs now; `summary`: it is refused."""
        from ortdeploy.cli.output.self_report import Outcome, SelfReport  # noqa: PLC0415  only for apply

        self._take(None, f"@{installed.name}", installed)
        (manifest,) = self._arguments.paths
        ended = Outcome(manifest=manifest, state="current")
        if summary is not None:
            ended = replace(ended, state="refused", summary=summary, reached=record.DESCRIBED)
        SelfReport(self._arguments).write([ended])

    def _take(
        self, version: Version | None, path: str, installed: Installed | None = None, *, passed: bool = False
    ) -> None:
        """Let the command work on a version: its manifest, whose text and files are in the store."""
        arguments, place = self._arguments, self._place
        kept = tuple(self._kept(installed)) if arguments.command == "service" and installed is not None else ()
        options = (lambda given: given) if version is None else place.options(version)
        more = {"bundle": None if version is None else version.id, "passed": passed, "installed": installed}
        self._name_again(path, options, kept=kept, **more)
        arguments.paths = [
            os.path.join(place.root, "deployment.yaml") if version is None else place.manifest_of(version)  # noqa: PTH118
        ]
        if arguments.command == "check":  # golden sets lie in the store
            arguments.roots = [*arguments.roots, str(place.state)]

    def _name_again(self, path: str, options: Options, **more: Any) -> None:
        """Note how a command line names what it works on, and how that is loaded."""
        arguments, place = self._arguments, self._place
        tag, policy = getattr(arguments, "tag", None), getattr(arguments, "policy", None)
        flags = [f"--root={place.root}", *([] if tag is None else [f"--tag={tag}"])]
        flags += [] if policy is None else [f"--policy={os.path.abspath(policy)}"]  # noqa: PTH100
        arguments.taken = Taken(
            path=path if path.startswith("@") else os.path.abspath(path),  # noqa: PTH100
            flags=tuple(flags),
            options=options,
            arrivals=_Arrivals(self, path) if arguments.command == "watch" else None,
            **more,
        )
        arguments.root = None
        arguments.last_good = False  # the record of versions is the one that is gone back to

    def _kept(self, installed: Installed) -> Iterator[tuple[str, Options]]:
        """Yield the manifest of each version that is here, one that was refused too, and how it is loaded."""
        for version in installed.versions:
            with suppress(OrtdeployError):  # what is not whole does not run either
                yield self._place.manifest_of(version), self._place.options(version)

    def _check_again(self, installed: Installed, version: Version) -> bool:
        """Run the golden checks of a version if the facts are others than when they passed. Raises OrtdeployError.

        Return whether they have passed; if the version cannot be planned, the command says so.
        """
        place, id_ = self._place, str(version.id)
        facts = place.facts_key(version)
        if installed.passed.get(id_) == facts:
            return True
        planned = place.plan(version, self._arguments.jobs, self._arguments.excluded)
        if has_errors(planned.diagnostics):
            return False
        try:
            place.try_checks(version, planned)
        except RefusedError as error:
            what = f"{_named(installed.name, version)} is refused on this machine as it is now"
            raise OrtdeployError(f"{what}: {error.reason}") from error
        with suppress(OrtdeployError), record.installing(place.state, installed.name):  # else they run again next time
            now_known = record.load_installed(place.state, installed.name)
            record.save_installed(place.state, record.with_passed(now_known, id_, facts))
        return True

    def _roll_back(self, name: str) -> int:
        place = self._place
        with record.installing(place.state, name):
            installed = record.load_installed(place.state, name)
            if self._arguments.unpin:
                record.save_installed(place.state, replace(installed, aside=0))
                self._say(f"{name}: no version is set aside any more")
                return EXIT_OK
            changed, version = record.rolled_back(installed, self._arguments.to)
            record.trust_again(changed, version, place.state, place.policies)
            try:
                record.options_of(version, place.state, place.root)
            except OrtdeployError as error:
                what = f"{_named(name, version)} is not whole any more: {error}"
                raise OrtdeployError(f"{what}. Go back to another one with --to") from error
            changed = self._proven(changed, version)
            record.save_installed(place.state, changed)
        fields = {"version": version.number, "bundle": version.id}
        log_here(self._arguments, log.info, "bundle.rolled_back", deployment=name, **fields)
        self._say(f"{_named(name, version)} is current; versions up to {changed.aside} are set aside")
        return EXIT_OK

    def _proven(self, changed: Installed, version: Version) -> Installed:
        """Return the record of a rollback to a version that runs here: it is planned, and checked if the facts differ.

        Checks wait for the next apply if jobs run now. Raises OrtdeployError if the version would not run.
        """
        place, id_ = self._place, str(version.id)
        try:
            planned, facts = place.plan_to_run(changed.name, version), place.facts_key(version)
            if changed.passed.get(id_) != facts:
                with suppress(LockedError):
                    place.try_checks(version, planned)
                    return record.with_passed(changed, id_, facts)
        except RefusedError as error:
            write_findings(error.findings, self._arguments, sys.stderr)
            what = f"{_named(changed.name, version)} would not run here as it is now: not {error.state}: {error.reason}"
            if not self._arguments.force:
                stays = "The version that runs stays; --force goes back all the same"
                raise OrtdeployError(f"{what}. {stays}") from error
            sys.stderr.write(safe(without_secrets(f"ortdeploy: {what}.\n")))
        return changed

    def _say(self, text: str) -> None:
        if not self._arguments.quiet:
            sys.stdout.write(safe(f"{text}\n"))


class _Arrivals:
    """What `watch` looks at: the bundle, the policies, the record, and the files of the version that runs."""

    def __init__(self, desk: _Desk, path: str) -> None:
        self._desk, self._path = desk, path
        self._current: str | None = None
        self._inner: Arrivals | None = None
        self.look()

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs of the version that runs."""
        return () if self._inner is None else self._inner.jobs

    @property
    def stable_for(self) -> float:
        """The longest time for which a file must not have changed before a job takes it."""
        return 0.0 if self._inner is None else self._inner.stable_for

    def look(self) -> str:
        """Return a text that changes if there may be something to do."""
        places = self._desk.watched(self._path)
        states = "\n".join(f"{place} {_seen(place)}" for place in places)
        current = self._desk.current_files(self._path)
        if current is not None and current[0] != self._current:
            self._current, self._inner = current[0], Arrivals(current[1], current[2])
        rolled_back = "" if current is None else current[3]
        return states if self._inner is None else f"{states}\n{rolled_back}\n{self._inner.look()}"


def _named(name: str, version: Version) -> str:
    label = f" ({version.label})" if version.label else ""
    return f"{name} {version.number}{label}"


def _seen(path: str) -> str:
    """Return the state of a file or folder as text, by which a change shows."""
    try:
        return str(tuple(signature(os.stat(path)).values()))  # noqa: PTH116  text
    except (OSError, ValueError) as error:
        return type(error).__name__
