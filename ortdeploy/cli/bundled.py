"""Commands on bundles and on what is installed from them, and what a policy refuses before a command runs.

`apply BUNDLE` takes a version from state to state (`planning.installed`), and whatever ends that keeps the version that
runs. From then on the commands work as on a manifest, whose text and files come from the content store.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.bundles.layout import Bundle, open_bundle
from ortdeploy.bundles.policy import Policy, is_free, trust
from ortdeploy.cli.commands.shared import write_findings
from ortdeploy.cli.exit_codes import EXIT_CHANGES, EXIT_OK, EXIT_REJECTED, worst_of
from ortdeploy.cli.manifest_options import Taken, load_options
from ortdeploy.diagnostics import Diagnostic, LockedError, OrtdeployError, Severity, UsageError, has_errors
from ortdeploy.events import log
from ortdeploy.files.content_store import NotKeptError
from ortdeploy.files.digests import signature
from ortdeploy.files.names import is_folder, names_bundle
from ortdeploy.ledger.damage import FILE as LEDGER
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.output_lock import hold_outputs
from ortdeploy.ledger.records import output_key
from ortdeploy.manifest.loader import SUFFIXES, LoadOptions, find_manifests
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.planning import installed as record
from ortdeploy.planning.arrivals import Arrivals
from ortdeploy.planning.installed import CHECKED, DESCRIBED, PLANNED, TRUSTED, WHOLE, Installed, Refused
from ortdeploy.planning.policy_file import keep_of, key_of, read_policies
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.versions import Version
from ortdeploy.planning.workflow import plan_checks, plan_manifests, probe_host, validate
from ortdeploy.redaction import without_secrets
from ortdeploy.terminal_text import safe
from ortdeploy.versions import package_version, release_numbers, versions

Run = Callable[[argparse.Namespace], int]

_TAKE_BUNDLES = frozenset({"apply", "plan", "watch"})
_TAKE_INSTALLED = _TAKE_BUNDLES | {"cache", "check", "compact", "retry", "rollback", "service", "status", "verify"}
_RUN_MODELS = frozenset({"apply", "check", "plan", "retry"})
"""Commands that open what a version holds, so its trust is asked again."""
_PLAN_MANIFESTS = _RUN_MODELS | {"diff", "finish", "service", "watch"}
"""Those, and what loads libraries that manifests name, or lets manifests run later."""
_NEVER_UNDER_A_POLICY = frozenset({"init", "try", "tune"})
_FLAGS = {"--set": "sets", "--overlay": "overlays", "--allow-root": "roots"}


def run_bundled(arguments: argparse.Namespace, run: Run) -> int:
    """Run a command under the policies that are in force, on bundles or installed versions if it names some."""
    policies = read_policies(getattr(arguments, "policy", None))
    _refuse_by_policy(arguments, policies)
    paths: Sequence[str] = getattr(arguments, "paths", ())
    if arguments.command == "bundle" or not any(map(names_bundle, paths)):
        return run(arguments)
    _refuse_unfit(arguments)
    return _Desk(arguments, policies, run).serve(paths[0])


def _refuse_by_policy(arguments: argparse.Namespace, policies: Sequence[Policy]) -> None:
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
    named = [path for path in arguments.paths if not names_bundle(path)]
    if command == "diff":  # which may be of reports
        named = [path for path in named if path.endswith(SUFFIXES) or is_folder(path)]
    root = getattr(arguments, "root", None)
    for path in (*find_manifests(named)[0], *([os.path.join(root, "")] if root is not None and named else [])):  # noqa: PTH118
        if not is_free(policies, os.path.realpath(path) + (os.sep if path.endswith(os.sep) else "")):
            raise OrtdeployError(
                f"{policies[0].path} is in force, and {path} is in none of the folders whose manifests may run "
                "unsigned (manifests). Apply a signed bundle: ortdeploy apply BUNDLE"
            )


def _refuse_unfit(arguments: argparse.Namespace) -> None:
    """Raise UsageError for what cannot be done with a bundle, or with an installed version."""
    path = next(filter(names_bundle, arguments.paths))
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
    if getattr(arguments, "device", None) is not None:
        raise UsageError("--device is for manifests: ortdeploy bundle --device FILE says whether a device takes it")
    if is_installed and getattr(arguments, "tag", None) is not None:
        raise UsageError("--tag chooses in a layout, and an installed deployment has one version that runs")


class _RefusedError(OrtdeployError):
    """A version does not reach a state."""

    def __init__(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        super().__init__(reason)


class _Desk:
    """Where bundles are taken in and installed versions are looked up, for one command."""

    def __init__(self, arguments: argparse.Namespace, policies: tuple[Policy, ...], run: Run) -> None:
        self._arguments, self._policies, self._run = arguments, policies, run
        path = arguments.paths[0]
        given = getattr(arguments, "root", None)
        if given is not None and not is_folder(given):
            raise UsageError(f"--root: there is no folder {given}")
        beside = "." if path.startswith("@") else Path(path).absolute().parent
        self._root = os.path.abspath(given if given is not None else beside)  # noqa: PTH100  without following links
        self._state = state_folder(self._root, arguments.state_dir, [])
        self._facts: str | None = None

    def serve(self, path: str) -> int:
        """Run the command."""
        if self._arguments.command == "watch":
            return self._watch(path)
        if path.startswith("@"):
            return self._run_installed(path[1:])
        source = os.path.abspath(path)  # noqa: PTH100  keeps links
        try:
            with open_bundle(Path(path), getattr(self._arguments, "tag", None)) as bundle:
                name = bundle.description.name
                if self._arguments.command == "plan":
                    return self._plan(bundle)
                code = self._install(bundle, source)
        except LockedError:
            raise
        except OrtdeployError as error:  # as if somebody is copying another one there
            known = record.name_from(self._state, source) if self._arguments.last_good else None
            if known is None:
                raise
            name, code = known, EXIT_REJECTED
            sys.stderr.write(safe(without_secrets(f"ortdeploy: {error}. The version of {name} that runs stays.\n")))
        stands_in = self._arguments.last_good and record.load_installed(self._state, name).current is not None
        return worst_of([code, self._run_installed(name)]) if code == EXIT_OK or stands_in else code

    def _is_whole(self, installed: Installed, id_: str) -> bool:
        """Return whether a bundle is the current version already, and all its files are in the store."""
        version = installed.version(installed.current)
        if version is None or version.id != id_:
            return False
        try:
            self._options(version)
        except OrtdeployError:
            return False
        return True

    def _watch(self, path: str) -> int:
        self._take(None, path)
        return self._run(self._arguments)

    def _run_installed(self, name: str) -> int:
        """Run the command on the version that is current."""
        installed = record.load_installed(self._state, name)
        if self._arguments.command == "rollback":
            return self._roll_back(installed)
        version = installed.version(installed.current)
        if version is None:
            raise OrtdeployError(
                f"nothing is installed as @{name} in {self._root}. Apply its bundle: ortdeploy apply BUNDLE --root DIR"
            )
        passed = False
        if self._arguments.command in _RUN_MODELS:
            try:
                record.trust_again(installed, version, self._state, self._policies)
            except OrtdeployError as error:
                raise OrtdeployError(f"{_named(name, version)} may not run any more: {error}") from error
        options = self._options(version)
        if self._arguments.command in {"apply", "retry"}:
            passed = self._check_again(installed, version, options)
        self._take(version, f"@{name}", passed=passed)
        return self._run(self._arguments)

    def _options(self, version: Version) -> Callable[[LoadOptions], LoadOptions]:
        try:
            own = record.options_of(version, self._state, self._root)
        except (OSError, NotKeptError) as error:
            raise OrtdeployError(f"what was installed is not whole: {error}. Apply the bundle again") from error
        self._arguments.texts = own.texts  # findings are about these, whatever lies in their place
        return partial(_with_version, own)

    def watched(self, path: str) -> list[str]:
        """Return the files whose change may let a version come or go."""
        policies = [one.path for one in self._policies]
        if path.startswith("@"):
            return [str(record.record_of(self._state, path[1:])), *policies]
        return [path, os.path.join(path, "index.json"), f"{path}.sig", *policies]  # noqa: PTH118

    def current_files(self, path: str) -> tuple[str, list[str], LoadOptions] | None:
        """Return the id, manifest and options of the version that runs of what a path names; None if none does."""
        with suppress(OrtdeployError):
            name = path[1:]
            if not path.startswith("@"):
                with open_bundle(Path(path), getattr(self._arguments, "tag", None)) as bundle:
                    name = bundle.description.name
            installed = record.load_installed(self._state, name)
            version = installed.version(installed.current)
            if version is not None:
                own = replace(self._options(version)(LoadOptions()), digest=False)
                return str(version.id), [os.path.join(self._root, version.manifest)], own  # noqa: PTH118
        return None

    def _take(self, version: Version | None, path: str, *, passed: bool = False) -> None:
        """Let the command work on a version: its manifest, whose text and files are in the store."""
        arguments = self._arguments
        flags = [f"--root={self._root}"]
        for flag in ("policy", "tag"):
            value = getattr(arguments, flag, None)
            full = os.path.abspath(value) if flag == "policy" and value is not None else value  # noqa: PTH100
            flags += [] if full is None else [f"--{flag}={full}"]
        named = path if path.startswith("@") else os.path.abspath(path)  # noqa: PTH100
        arrivals = _Arrivals(self, path) if arguments.command == "watch" else None
        options = (lambda given: given) if version is None else self._options(version)
        arguments.taken = Taken(
            path=named,
            flags=tuple(flags),
            options=options,
            bundle=None if version is None else version.id,
            passed=passed,
            arrivals=arrivals,
            installed=None if version is None else record.load_installed(self._state, path[1:]),
        )
        arguments.paths = [os.path.join(self._root, "deployment.yaml" if version is None else version.manifest)]  # noqa: PTH118
        arguments.root = None
        arguments.last_good = False  # the record of versions is the one that is gone back to
        if arguments.command == "check":  # golden sets lie in the store
            arguments.roots = [*arguments.roots, str(self._state)]

    def _roll_back(self, installed: Installed) -> int:
        with record.installing(self._state, installed.name):
            installed = record.load_installed(self._state, installed.name)
            if self._arguments.unpin:
                record.save_installed(self._state, _unpinned(installed))
                sys.stdout.write(f"{installed.name}: no version is set aside any more\n")
                return EXIT_OK
            changed = record.rolled_back(installed, self._arguments.to)
            version = changed.version(changed.current)
            if version is not None:
                record.trust_again(changed, version, self._state, self._policies)
                record.save_installed(self._state, changed)
                log.info("bundle.rolled_back", deployment=installed.name, version=version.number, bundle=version.id)
                sys.stdout.write(
                    f"{_named(installed.name, version)} is current; versions up to {changed.aside} are set aside\n"
                )
        return EXIT_OK

    def _plan(self, bundle: Bundle) -> int:
        """Plan a bundle, which is then whole here, and planned unless it is refused."""
        name, id_ = bundle.description.name, bundle.id
        with record.installing(self._state, name):
            installed = record.load_installed(self._state, name)
            try:
                if id_ != installed.current:
                    installed = self._bring_in(bundle, installed)
            except _RefusedError as error:
                return self._refuse(bundle, error)
            version = installed.version(id_)
            if version is None:
                raise OrtdeployError(f"{bundle.path} is not in its record")
            self._take(version, f"@{name}")
            code = self._run(self._arguments)
            if code in {EXIT_OK, EXIT_CHANGES} and installed.reached.get(id_) == WHOLE:
                self._save(record.with_state(installed, id_, PLANNED))
        return code

    def _install(self, bundle: Bundle, source: str) -> int:
        """Take a bundle from state to state until it is current, if it is not; return 1 if it ends earlier."""
        installed = record.load_installed(self._state, bundle.description.name)
        if installed.source == source and self._is_whole(installed, bundle.id):
            return EXIT_OK
        with record.installing(self._state, bundle.description.name):
            installed = replace(record.load_installed(self._state, bundle.description.name), source=source)
            self._save(installed)
            if self._is_whole(installed, bundle.id):
                return EXIT_OK
            try:
                self._go_through(bundle, installed)
            except _RefusedError as error:
                return self._refuse(bundle, error)
        return EXIT_OK

    def _go_through(self, bundle: Bundle, installed: Installed) -> None:
        name, id_ = bundle.description.name, bundle.id
        installed = self._bring_in(bundle, installed)
        version = installed.version(id_)
        if version is None:
            raise OrtdeployError(f"{bundle.path} is not in its record")
        manifest, options = os.path.join(self._root, version.manifest), self._options(version)  # noqa: PTH118
        plans = self._try_plan(manifest, options)
        installed = record.with_state(installed, id_, PLANNED)
        self._save(installed)
        self._try_checks(manifest, options, plans)
        installed = record.with_state(record.with_passed(installed, id_, self._facts_key()), id_, CHECKED)
        self._save(installed)
        installed, gone = record.with_current(installed, id_, keep_of(self._policies))
        self._save(installed)
        record.release(self._state, name, gone)
        log.info("bundle.installed", deployment=name, version=version.number, label=version.label, bundle=id_)

    def _bring_in(self, bundle: Bundle, installed: Installed) -> Installed:
        """Bring a bundle to whole, if it is trusted and not refused already. Raises _RefusedError."""
        description, id_ = bundle.description, bundle.id
        installed = record.with_state(installed, id_, DESCRIBED)
        self._save(installed)
        self._require_number(bundle, installed)
        try:
            trust(self._policies, description, id_, bundle.signatures)
        except OrtdeployError as error:
            raise _RefusedError(TRUSTED, f"{error}") from error
        before = installed.refusal(id_)
        if before is not None and installed.version(id_) is not None and before.facts == self._grounds(installed, id_):
            raise _RefusedError(before.state, before.reason)
        installed = record.with_state(installed, id_, TRUSTED)
        self._save(installed)
        try:
            installed = record.take_in(bundle, installed, self._state, now())
        except OrtdeployError as error:
            raise _RefusedError(WHOLE, f"{error}") from error
        self._save(installed)
        return installed

    def _require_number(self, bundle: Bundle, installed: Installed) -> None:
        """Raise _RefusedError for a version that is too old, set aside or of a newer ortdeploy."""
        wrong = record.objection_to_number(installed, bundle.description, bundle.id)
        needed = bundle.description.needs.ortdeploy
        if wrong is None and release_numbers(needed) > release_numbers(package_version("ortdeploy")):
            wrong = f"it needs ortdeploy {needed}, and this is {package_version('ortdeploy')}"
        if wrong is not None:
            raise _RefusedError(DESCRIBED, wrong)

    def _try_plan(self, manifest: str, options: Callable[[LoadOptions], LoadOptions]) -> tuple[Plan, ...]:
        planned = plan_manifests([manifest], options(self._own_options()), state_dir=self._arguments.state_dir)
        if has_errors(planned.diagnostics):
            write_findings(planned.diagnostics, self._arguments, sys.stderr)
            raise _RefusedError(PLANNED, _first(planned.diagnostics))
        return planned.plans

    def _try_checks(self, manifest: str, options: Callable[[LoadOptions], LoadOptions], plans: Sequence[Plan]) -> None:
        """Run all golden checks of a version, never beside a run of its jobs. Raises _RefusedError, LockedError."""
        from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only for what is checked
        from ortdeploy.cli.commands.check import run_checks  # noqa: PLC0415

        own, state_dir = options(self._own_options()), self._arguments.state_dir
        specs = validate([manifest], own).specs
        if not any(_has_checks(spec) for spec in specs):
            return
        checks, diagnostics = plan_checks([manifest], own, state_dir=state_dir)
        if has_errors(diagnostics):
            raise _RefusedError(CHECKED, _first(diagnostics))
        outputs = [
            output_key(Path(plan.folder) / step.output.path, self._state) for plan in plans for step in run_jobs(plan)
        ]
        with hold_outputs(self._state, outputs):
            for result in run_checks(checks, state_dir, own.roots):
                if result.status != PASSED:
                    raise _RefusedError(
                        CHECKED,
                        f"golden check {result.check} of model {result.model} on session {result.session} "
                        f"{result.status}: {result.message}",
                    )

    def _check_again(
        self, installed: Installed, version: Version, options: Callable[[LoadOptions], LoadOptions]
    ) -> bool:
        """Run the golden checks of a version if the facts are others than when they passed. Raises OrtdeployError."""
        facts, id_ = self._facts_key(), str(version.id)
        if installed.passed.get(id_) == facts:
            return True
        manifest = os.path.join(self._root, version.manifest)  # noqa: PTH118
        planned = plan_manifests([manifest], options(self._own_options()), state_dir=self._arguments.state_dir)
        if has_errors(planned.diagnostics):
            return False  # the command says so
        try:
            self._try_checks(manifest, options, planned.plans)
        except _RefusedError as error:
            raise OrtdeployError(
                f"{_named(installed.name, version)} is refused on this machine as it is now: {error.reason}"
            ) from error
        with record.installing(self._state, installed.name):
            self._save(record.with_passed(record.load_installed(self._state, installed.name), id_, facts))
        return True

    def _own_options(self) -> LoadOptions:
        """Return the options of the command line alone."""
        self._arguments.taken = None
        return load_options(self._arguments)

    def _refuse(self, bundle: Bundle, error: _RefusedError) -> int:
        """Remember a refusal, and say what stays."""
        description, id_ = bundle.description, bundle.id
        installed = record.load_installed(self._state, description.name)
        refused = Refused(
            id=id_,
            number=description.version,
            label=description.label,
            state=error.state,
            reason=error.reason,
            since=now(),
            facts=self._grounds(installed, id_) if error.state in {PLANNED, CHECKED} else "",
        )
        with suppress(OrtdeployError):  # as on a full disk; then it is tried again
            self._save(record.with_refusal(installed, refused))
        current = installed.version(installed.current)
        stays = "nothing is installed" if current is None else f"version {current.number} stays"
        log.warning(
            "bundle.refused",
            deployment=description.name,
            version=description.version,
            bundle=id_,
            state=error.state,
            reason=error.reason,
        )
        what = f"{description.name} {description.version} (id {id_}) is not {error.state}: {error.reason}"
        sys.stderr.write(safe(without_secrets(f"ortdeploy: {what}. So {stays}.\n")))
        return EXIT_REJECTED

    def _grounds(self, installed: Installed, id_: str) -> str:
        """Return a digest of all that a refusal of a version rests on: facts, policies, ledger, inputs and outputs."""
        version = installed.version(id_)
        if version is None:  # what refuses it before it is whole is looked at each time
            return ""
        manifest = os.path.join(self._root, version.manifest)  # noqa: PTH118
        options = self._options(version)(self._own_options())
        outputs = [
            path_from_manifest(spec, job.output.path)
            for spec in validate([manifest], options).specs
            for job in spec.jobs
        ]
        places = map(str, (self._state / LEDGER, *outputs))
        data = [Arrivals([manifest], options).look(), *map(_state_of, places)]
        return record.facts_key(self._facts_key(), data)

    def _save(self, installed: Installed) -> None:
        record.save_installed(self._state, installed)

    def _facts_key(self) -> str:
        """Return a digest of the facts and policies that decide about a version."""
        if self._facts is None:
            host = probe_host([])
            runtime, machine = host.runtime, host.machine
            self._facts = record.facts_key(
                versions(),
                runtime.available_providers,
                runtime.devices,
                sorted(runtime.packages),
                None if machine is None else [machine.system, machine.architecture, machine.cpu_flags],
                self._arguments.profile,
                key_of(self._policies),
            )
        return self._facts


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
        states = "\n".join(f"{place} {_state_of(place)}" for place in places)
        current = self._desk.current_files(self._path)
        if current is not None and current[0] != self._current:
            self._current, self._inner = current[0], Arrivals(current[1], current[2])
        return states if self._inner is None else f"{states}\n{self._inner.look()}"


def _state_of(path: str) -> str:
    try:
        return str(tuple(signature(os.stat(path)).values()))  # noqa: PTH116  text
    except (OSError, ValueError) as error:
        return type(error).__name__


def _with_version(own: LoadOptions, given: LoadOptions) -> LoadOptions:
    """Return the options of a command line for an installed version: its overlays come before those that are given."""
    return replace(
        given,
        texts=own.texts,
        places=own.places,
        roots=(*given.roots, *own.roots),
        overlays=(*own.overlays, *given.overlays),
    )


def _unpinned(installed: Installed) -> Installed:
    return replace(installed, aside=0)


def _has_checks(spec: Spec) -> bool:
    return any(one.checks for one in spec.models) or any(one.checks for one in spec.adapters)


def _named(name: str, version: Version) -> str:
    label = f" ({version.label})" if version.label else ""
    return f"{name} {version.number}{label}"


def _first(diagnostics: Sequence[Diagnostic]) -> str:
    one = next(one for one in diagnostics if one.severity is Severity.ERROR)
    return f"{one.rule}: {one.detail.rstrip('.')}"
