"""Takes a bundle from state to state (`installed`); whatever ends that keeps the version that runs."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from ortdeploy.bundles.layout import Bundle
from ortdeploy.bundles.policy import trust
from ortdeploy.cli.bundles.bundle_place import Place, RefusedError
from ortdeploy.cli.commands.shared import log_here, write_findings
from ortdeploy.cli.exit_codes import EXIT_CHANGES, EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.signals import ending_what_began
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.fleet.this_device import this_clock
from ortdeploy.ledger.ledger import now
from ortdeploy.planning.versions import installed as record
from ortdeploy.planning.versions import taking_in
from ortdeploy.planning.versions.installed import CHECKED, DESCRIBED, PLANNED, TRUSTED, WHOLE, Installed, Refused
from ortdeploy.planning.versions.policy_file import keep_of
from ortdeploy.planning.versions.version import Version
from ortdeploy.redaction import without_secrets
from ortdeploy.terminal_text import safe
from ortdeploy.versions import package_version, release_numbers

_MOST_BEGUN = 3
"""How often a plan with golden checks is begun at once that does not come to an end."""
_REST = 86_400.0
"""Seconds after which it is begun once more: a device may have lost its power by chance each time."""
_CALM = 3600.0
"""Seconds that the device must have been up by then: where no clock is right, what resets it does so no more often."""


class ArrivingBundle:
    """A bundle that is to be installed at a place."""

    def __init__(self, place: Place, bundle: Bundle) -> None:
        """Take an opened bundle, and where it is to be installed."""
        self._place, self._bundle = place, bundle
        self._name, self._id = bundle.description.name, bundle.id

    def plan(self, take: Callable[[Version], None], run: Callable[[argparse.Namespace], int]) -> int:
        """Plan the bundle, which is then whole here, and planned unless it is refused."""
        with record.installing(self._place.state, self._name):
            installed = self._load()
            try:
                if self._id != installed.current:
                    installed = self._bring_in(installed)
                    self._place.require_unit(self._name, self._version(installed))
            except RefusedError as error:
                return self._refuse(error)
            version = self._version(installed)
            take(version)
            code = run(self._place.arguments)
            planned = getattr(self._place.arguments, "planned", None)
            if planned is not None and self._id != installed.current:
                try:
                    self._place.require_runnable(self._name, planned)
                except RefusedError as error:  # whose findings the command has shown
                    return self._refuse(RefusedError(error.state, error.reason))
            if code in {EXIT_OK, EXIT_CHANGES} and installed.reached.get(self._id) == WHOLE:
                self._save(record.with_state(installed, self._id, PLANNED))
        return code

    def install(self, source: str) -> int:
        """Take the bundle from state to state until it is current, if it is not; return 1 if that ends earlier.

        For `watch`, a version that was set aside is none that arrives: who did that knows of it.
        """
        installed = self._load()
        if self._place.arguments.last_good and record.is_set_aside(installed, self._id):
            return EXIT_OK
        if (installed.source, installed.wanted) == (source, self._id) and self._runs_whole(installed):
            return EXIT_OK
        with record.installing(self._place.state, self._name):
            installed = record.asked_for(self._load(), self._id, source)
            self._save(installed)
            try:
                if not self._runs_whole(installed):
                    self._go_through(installed)
            except RefusedError as error:
                return self._refuse(error)
            record.own_source(installed, self._place.state)
        return EXIT_OK

    def _go_through(self, installed: Installed) -> None:
        """Take the bundle through all states. Raises RefusedError, LockedError."""
        place = self._place
        installed = self._bring_in(installed)
        version = self._version(installed)
        if self._id != installed.current:  # whose run plans it, and checks it if the facts are others
            installed = self._prove(installed, version)
        try:
            record.trust_again(installed, version, place.state, place.read_policies())
        except OrtdeployError as error:
            raise RefusedError(TRUSTED, f"a policy was changed meanwhile: {error}") from error
        installed, gone = record.with_current(installed, self._id, keep_of(place.policies))
        self._save(installed)
        record.release(place.state, self._name, gone)
        fields = {"version": version.number, "label": version.label, "bundle": self._id}
        log_here(place.arguments, log.info, "bundle.installed", deployment=self._name, **fields)

    def _prove(self, installed: Installed, version: Version) -> Installed:
        """Plan and check a version that is whole; return the record of that. Raises RefusedError, OrtdeployError."""
        place, facts = self._place, self._place.facts_key(version)
        begun = self._begin(installed, facts)
        with ending_what_began():
            try:
                planned = place.plan_to_run(self._name, version)
                begun = record.with_state(begun, self._id, PLANNED)
                self._save(begun)
                place.try_checks(version, planned)
            except (OrtdeployError, KeyboardInterrupt):  # which have not killed this process
                self._save(replace(begun, begun={}))
                raise
        installed = record.with_state(record.with_passed(begun, self._id, facts), self._id, CHECKED)
        self._save(installed)
        return installed

    def _begin(self, installed: Installed, facts: str) -> Installed:
        """Return the record of a version whose plan and golden checks are about to begin.

        For `watch`, they do not begin again if checks have refused the version. If they were killed each time, they
        begin once a day; the refusal goes with that try, so that the next one tells the day anew. Raises RefusedError.
        """
        key, before = f"{self._id} {facts}", installed.refusal(self._id)
        times = installed.begun.get(key, 0)
        if self._place.arguments.last_good:
            known = before if before is not None and before.facts == facts else None
            if known is not None and not (times >= _MOST_BEGUN and _has_rested(known.since)):
                raise RefusedError(known.state, known.reason)
            if known is None and times >= _MOST_BEGUN:
                why = f"planning or checking it was begun {times} times, and each time killed, or this device was reset"
                raise RefusedError(CHECKED, f"{why}. watch tries it again in a day, and ortdeploy apply does at once")
        refused = tuple(one for one in installed.refused if times < _MOST_BEGUN or one.id != self._id)
        begun = replace(installed, begun={key: times + 1}, refused=refused)
        self._save(begun)
        return begun

    def _bring_in(self, installed: Installed) -> Installed:
        """Bring the bundle to whole, if it is trusted and not refused already. Raises RefusedError."""
        bundle, place = self._bundle, self._place
        installed = record.with_state(installed, self._id, DESCRIBED)
        self._save(installed)
        self._require_number(installed)
        try:
            trust(place.policies, bundle.description, self._id, bundle.signatures)
        except OrtdeployError as error:
            raise RefusedError(TRUSTED, f"{error}") from error
        installed = record.with_state(installed, self._id, TRUSTED)
        self._save(installed)
        if installed.version(self._id) is None:
            place.warn_root()
        try:
            installed = taking_in.take_in(bundle, installed, place.state, now())
        except OrtdeployError as error:
            raise RefusedError(WHOLE, f"{error}") from error
        self._save(installed)
        return installed

    def _require_number(self, installed: Installed) -> None:
        """Raise RefusedError for a version that is too old, set aside, or of a newer ortdeploy."""
        description = self._bundle.description
        wrong = record.objection_to_number(installed, description, self._id)
        needed, here = description.needs.ortdeploy, package_version("ortdeploy")
        if wrong is None and release_numbers(needed) > release_numbers(here):
            wrong = f"it needs ortdeploy {needed}, and this is {here}"
        if wrong is not None:
            raise RefusedError(DESCRIBED, wrong)

    def _refuse(self, error: RefusedError) -> int:
        """Remember a refusal, and say what stays: once, if somebody looks again and again."""
        description, installed = self._bundle.description, self._load()
        before, arguments = installed.refusal(self._id), self._place.arguments
        refused = Refused(
            id=self._id,
            number=description.version,
            label=description.label,
            state=error.state,
            reason=error.reason,
            since=now(),
            facts=self._place.facts_key(self._version(installed)) if error.state == CHECKED else "",
        )
        with suppress(OrtdeployError):  # as on a full disk; then it is tried again
            self._save(record.with_refusal(installed, refused))
        is_known = before is not None and before == replace(refused, since=before.since)
        is_told = is_known and getattr(arguments, "every", None) is not None
        if not is_told:
            current = installed.version(installed.current)
            stays = "nothing is installed" if current is None else f"version {current.number} stays"
            what = f"{self._name} {description.version} (id {self._id}) is not {error.state}: {error.reason}"
            write_findings(error.findings, arguments, sys.stderr)
            sys.stderr.write(safe(without_secrets(f"ortdeploy: {what}. So {stays}.\n")))
        fields = {"version": description.version, "bundle": self._id, "state": error.state, "reason": error.reason}
        tell = log.info if is_told else log.warning
        log_here(arguments, tell, "bundle.refused", deployment=self._name, **fields)
        return EXIT_REJECTED

    def _runs_whole(self, installed: Installed) -> bool:
        """Return whether the bundle is the current version already, as it was signed, and all of it is in the store."""
        version = installed.version(installed.current)
        if version is None or version.id != self._id:
            return False
        try:
            self._place.options(version)
        except OrtdeployError:
            return False
        return taking_in.is_kept(self._bundle, installed, self._place.state)

    def _version(self, installed: Installed) -> Version:
        version = installed.version(self._id)
        if version is None:
            raise OrtdeployError(f"{self._bundle.path} is not in its record")
        return version

    def _load(self) -> Installed:
        return record.load_installed(self._place.state, self._name)

    def _save(self, installed: Installed) -> None:
        record.save_installed(self._place.state, installed)


def _has_rested(since: str) -> bool:
    """Return whether what was killed each time, and refused since then, may be tried once more."""
    clock = this_clock(time.time())
    away = datetime.fromisoformat(clock.now) - datetime.fromisoformat(since)
    return abs(away.total_seconds()) >= _REST and (clock.uptime is None or clock.uptime >= _CALM)
