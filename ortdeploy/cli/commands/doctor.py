"""`ortdeploy doctor`: show on one screen what works on this machine; every installed provider runs a small model."""

import argparse
import re
import sys
from collections.abc import Iterator

from msgspec.structs import replace

from ortdeploy.checks.provider_trial import ProviderTrial, device_name, trial_options
from ortdeploy.cli.commands.shared import terminal_width, use_color
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.facts.host import NO_DEVICE, RuntimeFacts
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.steps import PlannedDevice, PlannedProvider
from ortdeploy.process.child import ask, how_it_ended
from ortdeploy.providers.catalogue import PROVIDERS, find_provider
from ortdeploy.rules.several_runtimes import overwritten
from ortdeploy.runtime.machine import probe_machine
from ortdeploy.runtime.probe import probe_runtime
from ortdeploy.versions import missing_of_extras
from ortdeploy.views import doctor

_NO_CUDA = "no CUDA-capable device"
"""How CUDA says that there is no device."""
_MOST_SECONDS = 60.0  # a GPU's first kernels may take a while to compile


def run(arguments: argparse.Namespace) -> int:
    """Try every provider and print the results; return 1 if one that is offered, and has a device, does not work."""
    runtime, machine = probe_runtime({one.name: None for one in PROVIDERS}), probe_machine()
    trials = (*_problems(runtime), *map(_tried, _offered(runtime)))
    found = doctor.Examination(
        runtime=runtime,
        machine=machine,
        trials=trials,
        missing=missing_of_extras(),
        overwritten=overwritten(runtime.runtime_packages),
    )
    if arguments.format == "json":
        sys.stdout.write(doctor.render_json(found))
    else:
        color, width = use_color(arguments), terminal_width(sys.stdout)
        sys.stdout.write(doctor.render_text(found, color=color, quiet=arguments.quiet, width=width))
    fails = any(trial.problem and not trial.absent for trial in trials)
    return EXIT_REJECTED if fails or found.overwritten else EXIT_OK


def _problems(runtime: RuntimeFacts) -> Iterator[ProviderTrial]:
    """Yield the providers that are installed but offer nothing."""
    for name, problem in runtime.plugin_problems.items():
        yield ProviderTrial(provider=name, device=None, problem=problem, absent=_is_absent(problem))


def _is_absent(problem: str) -> bool:
    """Return whether a provider's problem is that this machine has no device for it."""
    return re.search(f"{NO_DEVICE}|{_NO_CUDA}", problem) is not None


def _offered(runtime: RuntimeFacts) -> Iterator[PlannedProvider]:
    """Yield the providers that can compute: the built-in ones, and each device of a plugin package."""
    for name in runtime.available_providers:
        known = find_provider(name)
        if known is None or known.claims_nodes:
            yield PlannedProvider(name=name, options={})
    for device in runtime.devices:
        found = PlannedDevice(
            index=device.index, kind=device.kind, vendor=device.vendor, name=device.name, library=device.library
        )
        options = trial_options(device.provider, device.kind)
        yield PlannedProvider(name=device.provider, options=options, device=found)


def _tried(provider: PlannedProvider) -> ProviderTrial:
    """Try a provider in a child. A provider that crashes or never ends does not work."""
    answer = ask("ortdeploy.cli.children.doctor", encode(provider), seconds=_MOST_SECONDS)
    if answer.messages:
        trial = ProviderTrial(**answer.messages[0])
        return replace(trial, absent=_is_absent(trial.problem or ""))
    how = f"did not end within {_MOST_SECONDS:.0f} s" if answer.late else how_it_ended(answer.code)
    words = f": {answer.last_words}" if answer.last_words else ""
    problem = f"the process that tried it {how}{words}"
    return ProviderTrial(provider=provider.name, device=device_name(provider), problem=problem)
