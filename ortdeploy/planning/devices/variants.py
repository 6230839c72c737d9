"""Chooses the profile of a manifest: on this machine, where the last choice is remembered, or by a device file.

On this machine the cheap facts are asked first: words, memory and cores. A provider is only tried, in a child, if it
decides. What was asked is asked once in a process, for all manifests.
"""

import platform
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Certainty, Diagnostic, OrtdeployError
from ortdeploy.facts.host import HostFacts
from ortdeploy.facts.variants import KEPT, Choice, Fact, OfferedDevice, Traits
from ortdeploy.manifest.choosing import choose
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.loader import Loaded, LoadOptions
from ortdeploy.manifest.profiles import profile_names
from ortdeploy.manifest.spec import Spec
from ortdeploy.manifest.when import PROFILES, Term, cheap, offers, takes_a_session
from ortdeploy.planning.devices.kept_choices import last_choice, lost_facts
from ortdeploy.planning.devices.offered_devices import built_in_device, plugin_device
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.providers.catalogue import CPU, PROVIDERS, short_name
from ortdeploy.shell import command

if TYPE_CHECKING:
    from ortdeploy.plan.steps import PlannedProvider

Chosen = tuple[Spec | None, Diagnostic | None]
"""The spec of the chosen profile, or why there is none."""
Choose = Callable[[Loaded], Chosen]
"""Chooses among the profiles of a manifest whose text has no error."""


def by_device_file(host: HostFacts) -> Choose:
    """Return what chooses for a device that a file describes; its findings are assumed."""

    def ask(term: Term) -> Fact:
        if takes_a_session(term):
            return offers(host.offered, term, lambda device: device.opens)
        return cheap(host.traits, term)

    def chosen(loaded: Loaded) -> Chosen:
        spec, problem = _chosen(loaded, ask, here=False)
        return spec, None if problem is None else replace(problem, certainty=Certainty.ASSUMED)

    return chosen


def on_this_machine(options: LoadOptions, state_dir: str | None) -> Choose:
    """Return what chooses on this machine, and compares with what the last apply has chosen."""
    here = Here(options)

    def chosen(loaded: Loaded) -> Chosen:
        spec, problem = _chosen(loaded, here.ask, here=True)
        if spec is None or spec.choice is None:
            return spec, problem
        return _held_against_last(spec, state_dir, anew=options.choose_anew)

    return chosen


def as_last_chosen(state_dir: str | None) -> Choose:
    """Return what takes the profiles of the last applies without a look at this machine."""

    def chosen(loaded: Loaded) -> Chosen:
        if loaded.spec is None or loaded.choosable is None:
            return loaded.spec, None
        last = _last_choice(loaded.spec, state_dir)
        spec = None if last is None else loaded.chosen(replace(last, reason=KEPT))
        return spec or loaded.spec, None

    return chosen


def _chosen(loaded: Loaded, ask: Callable[[Term], Fact], *, here: bool) -> Chosen:
    if loaded.spec is None or loaded.choosable is None:
        return loaded.spec, None
    choice, problem = choose(loaded.choosable, loaded.spec.document, ask, here=here)
    return (None, problem) if choice is None else (loaded.chosen(choice), None)


def _last_choice(spec: Spec, state_dir: str | None) -> Choice | None:
    try:
        return last_choice(spec.path, state_folder(spec.folder, state_dir, spec.roots))
    except OrtdeployError:  # it leads elsewhere, which planning reports
        return None


def _held_against_last(spec: Spec, state_dir: str | None, *, anew: bool) -> Chosen:
    """Return the spec with the time of its choice, or the finding that the device has lost what the last one rests on.

    `anew`: the choice holds whatever was lost.
    """
    choice, last = spec.choice, _last_choice(spec, state_dir)
    if choice is None or last is None:
        return spec, None
    if last.name == choice.name:
        return replace(spec, choice=replace(choice, since=last.since)), None
    gone = lost_facts(last.facts, choice.facts)
    is_there = last.name is None or last.name in profile_names(spec.document)
    if not gone or anew or not is_there:
        return spec, None
    detail = (
        f"Since {last.since} this device runs {_called(last.name)}, and now {_called(choice.name)} holds, because it "
        f"has lost what decided: {', '.join(gone)}. Nothing runs until that is back. If it is meant, "
        f"{command('ortdeploy', 'apply', '--choose', spec.path)} takes {_called(choice.name)}."
    )
    found = stage_diagnostic("profile-changed", detail, spec.document.locate_key((PROFILES,)))
    return None, replace(found, certainty=Certainty.MACHINE)


def _called(profile: str | None) -> str:
    return "the manifest without a profile" if profile is None else f'profile "{profile}"'


class Here:
    """The facts of this machine, each looked up when it is asked for."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._opened: dict[OfferedDevice, bool] = {}

    def ask(self, term: Term) -> Fact:
        """Return the value of a term's fact. Raises UnknownFactError."""
        if takes_a_session(term):
            return offers(tuple(one for one, _ in self._offered), term, self._opens)
        return cheap(self._traits, term)

    @cached_property
    def _offered(self) -> "tuple[tuple[OfferedDevice, PlannedProvider], ...]":
        """The devices that providers offer, with what tries each."""
        return tuple(offered_here())

    def _opens(self, device: OfferedDevice) -> bool:
        """Return whether a session is opened on a device; the CPU's is never tried."""
        if device not in self._opened:
            of_it = (provider for one, provider in self._offered if one == device)
            self._opened[device] = device.provider == CPU or any(map(does_open, of_it))
        return self._opened[device]

    @cached_property
    def _traits(self) -> Traits:
        return traits_here(self._options)


def traits_here(options: LoadOptions) -> Traits:
    """Return what this machine says of itself."""
    from ortdeploy.runtime.machine import online_cores, total_memory  # noqa: PLC0415  only where it decides

    return Traits(
        name=options.device_name or platform.node() or None,
        labels=options.labels,
        architecture=platform.machine() or None,
        system=platform.system() or None,
        memory=total_memory(),
        cores=online_cores(),
    )


def offered_here() -> "Iterator[tuple[OfferedDevice, PlannedProvider]]":
    """Yield the devices that the providers of this machine offer, with what tries each."""
    from ortdeploy.runtime.probe import probe_runtime  # noqa: PLC0415  brings ONNX Runtime
    from ortdeploy.sessions.provider_trial import offered  # noqa: PLC0415  brings numpy

    for provider in offered(probe_runtime({one.name: None for one in PROVIDERS})):
        name, own = provider.name, provider.device
        device = built_in_device(name) if own is None else plugin_device(name, own)
        yield device, provider


def does_open(provider: "PlannedProvider") -> bool:
    """Return whether a provider of this machine opens a session and computes, which a child tries."""
    from ortdeploy.sessions.provider_trial import tried  # noqa: PLC0415  brings numpy

    return tried(provider).problem is None


def opening_providers() -> list[str]:
    """Return the short names of the providers of this machine that open a session, for its device file."""
    opened = (provider.name for _, provider in offered_here() if provider.name == CPU or does_open(provider))
    return [short_name(name) for name in dict.fromkeys(opened)]
