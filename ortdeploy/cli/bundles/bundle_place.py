"""Where deployments are installed: what a command needs to plan and check a version there."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.bundles.policy import Policy
from ortdeploy.cli.command_line.manifest_options import own_options
from ortdeploy.cli.installed_unit import denied, find_unit, to_renew
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, errors_in, has_errors
from ortdeploy.files.content_store import user_name
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.output_lock import hold_outputs
from ortdeploy.ledger.records import output_key
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.selection import run_jobs
from ortdeploy.planning.devices.variants import on_this_machine
from ortdeploy.planning.golden_checks import plan_checks
from ortdeploy.planning.joining import probe_host
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.service import needs_of
from ortdeploy.planning.validation import validate
from ortdeploy.planning.versions import installed as record
from ortdeploy.planning.versions import policy_file
from ortdeploy.planning.versions.installed import CHECKED, PLANNED
from ortdeploy.planning.versions.version import Version
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.terminal_text import safe
from ortdeploy.versions import versions

Options = Callable[[LoadOptions], LoadOptions]
"""Returns the options of a command line for an installed version."""


class RefusedError(OrtdeployError):
    """A version does not reach a state."""

    def __init__(self, state: str, reason: str, findings: Sequence[Diagnostic] = ()) -> None:
        """Take the state that it does not reach, why, and what planning has found."""
        self.state, self.reason, self.findings = state, reason, findings
        super().__init__(reason)


class Place:
    """A root with its state folder, under the policies of a command."""

    def __init__(self, arguments: argparse.Namespace, policies: tuple[Policy, ...], root: str, state: Path) -> None:
        self.arguments, self.policies, self.root, self.state = arguments, policies, root, state
        self._facts: dict[str | None, str] = {}

    def read_policies(self) -> tuple[Policy, ...]:
        """Read the policies anew, because copying and checking take long, and return them. Raises OrtdeployError."""
        self.policies = policy_file.read_policies(getattr(self.arguments, "policy", None))
        return self.policies

    def manifest_of(self, version: Version) -> str:
        """Return the path that the manifest of a version has here; its text is in the store."""
        return os.path.join(self.root, version.manifest)  # noqa: PTH118  text

    def options(self, version: Version) -> Options:
        """Return what loads a version. Raises OrtdeployError if something of it is gone."""
        try:
            own = record.options_of(version, self.state, self.root)
        except OrtdeployError as error:
            raise OrtdeployError(f"version {version.number} is not whole here any more: {error}") from error
        self.arguments.texts = own.texts  # findings are about these, whatever lies in their place
        return partial(with_version, own)

    def facts_key(self, version: Version) -> str:
        """Return a digest of the facts, policies and profile that decide about a version."""
        if version.id not in self._facts:
            host = probe_host([])
            runtime, machine = host.runtime, host.machine
            own, state_dir = self.options(version)(own_options(self.arguments)), self.arguments.state_dir
            chosen = validate([self.manifest_of(version)], own, choose=on_this_machine(own, state_dir)).specs
            self._facts[version.id] = record.facts_key(
                versions(),
                runtime.available_providers,
                runtime.devices,
                sorted(runtime.packages),
                None if machine is None else [machine.system, machine.architecture, machine.cpu_flags],
                [spec.profile for spec in chosen],
                policy_file.key_of(self.policies),
            )
        return self._facts[version.id]

    def plan(self, version: Version, jobs: Sequence[str] | None = None, excluded: Sequence[str] = ()) -> Planned:
        """Plan a version, or some of its jobs, with the data that is here."""
        own, state_dir = self.options(version)(own_options(self.arguments)), self.arguments.state_dir
        chosen: dict[str, Any] = {"jobs": jobs, "excluded": excluded, "new_run": self.arguments.new_run}
        return plan_manifests([self.manifest_of(version)], own, state_dir=state_dir, **chosen)

    def plan_to_run(self, name: str, version: Version) -> Planned:
        """Plan all jobs of a version. Raises RefusedError if its plan is refused, or its unit denies what it needs."""
        self.require_unit(name, version)
        planned = self.plan(version)
        self.require_runnable(name, planned)
        return planned

    def require_runnable(self, name: str, planned: Planned) -> None:
        """Raise RefusedError for a plan with errors, or, under policies, with an output of another deployment."""
        if has_errors(planned.diagnostics):
            raise RefusedError(PLANNED, first_error(planned.diagnostics), planned.diagnostics)
        allowed = {one for policy in self.policies for one in policy.deployments} - {name}
        others = {one for one in allowed if record.running_version(self.state, one) is not None}
        if not others:
            return
        with read_ledger(self.state) as ledger:
            for job in (job for spec in planned.specs for job in spec.jobs):
                known = ledger and ledger.output(output_key(Path(self.root) / job.output.path, self.state))
                if known and known.deployment in others:
                    what = f"output {job.output.path} is that of {known.deployment}, which is installed here too"
                    raise RefusedError(PLANNED, f"{what}, and keys speak for one of them. Choose another place")

    def warn_root(self) -> None:
        """Say that what root brings into the folder of another user, that user cannot run."""
        owner = os.stat(self.root).st_uid  # noqa: PTH116  text
        if not hasattr(os, "geteuid") or os.geteuid() != 0 or owner == 0:
            return
        name = user_name(owner)
        sys.stderr.write(
            safe(
                f"ortdeploy: {self.root} belongs to {name}, and this is root, whose files {name} cannot read. "
                f"If {name} is to run them: su -s /bin/sh {name} -c 'ortdeploy {self.arguments.command} …'\n"
            )
        )

    def require_unit(self, name: str, version: Version) -> None:
        """Raise RefusedError if the service of a deployment is denied what a version needs."""
        unit = find_unit(name, self.root)
        if unit is None:
            return
        own = self.options(version)(own_options(self.arguments))
        specs = validate([self.manifest_of(version)], own).all_specs
        missing = list(denied(unit, needs_of(specs, self.arguments.state_dir))) if specs else []
        if missing:
            raise RefusedError(
                PLANNED,
                f"{unit.path} denies its service what this version needs: {', '.join(missing)}. Write the unit anew, "
                f"and restart it after systemctl daemon-reload: {to_renew(unit)}",
            )

    def try_checks(self, version: Version, planned: Planned) -> None:
        """Run all golden checks of a version, never beside a run of its jobs. Raises RefusedError, LockedError."""
        from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only for what is checked
        from ortdeploy.cli.commands.check import UNATTENDED, run_checks  # noqa: PLC0415

        if not any(any(one.spec.checks()) for one in planned.deployments):
            return
        own, state_dir = self.options(version)(own_options(self.arguments)), self.arguments.state_dir
        checks, diagnostics = plan_checks([self.manifest_of(version)], own, state_dir=state_dir)
        if has_errors(diagnostics):
            raise RefusedError(CHECKED, first_error(diagnostics))
        outputs = [
            output_key(Path(plan.folder) / step.output.path, self.state)
            for plan in planned.plans
            for step in run_jobs(plan)
        ]
        with hold_outputs(self.state, outputs):
            for result in run_checks(checks, state_dir, own.roots, seconds=UNATTENDED):
                if result.status != PASSED:
                    raise RefusedError(
                        CHECKED,
                        f"golden check {result.check} of model {result.model} on session {result.session} "
                        f"{result.status}: {result.message}",
                    )


def with_version(own: LoadOptions, given: LoadOptions) -> LoadOptions:
    """Return the options of a command line for an installed version: its overlays come before those that are given."""
    return replace(
        given,
        texts=own.texts,
        places=own.places,
        roots=(*given.roots, *own.roots),
        overlays=(*own.overlays, *given.overlays),
    )


def first_error(diagnostics: Sequence[Diagnostic]) -> str:
    """Return the rule and the detail of the first error."""
    one = errors_in(diagnostics)[0]
    return f"{one.rule}: {one.detail.rstrip('.')}"
