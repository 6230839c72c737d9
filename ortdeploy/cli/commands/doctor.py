"""`ortdeploy doctor`: show on one screen what works on this machine; every installed provider runs a small model."""

import argparse
import sys
from collections.abc import Iterator

from ortdeploy.cli.commands.shared import terminal_width, use_color
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.facts.host import RuntimeFacts
from ortdeploy.providers.catalogue import PROVIDERS
from ortdeploy.rules.several_runtimes import overwritten
from ortdeploy.runtime.machine import probe_machine
from ortdeploy.runtime.probe import probe_runtime
from ortdeploy.sessions.provider_trial import ProviderTrial, is_absent, offered, tried
from ortdeploy.versions import missing_of_extras
from ortdeploy.views import doctor


def run(arguments: argparse.Namespace) -> int:
    """Try every provider and print the results; return 1 if one that is offered, and has a device, does not work."""
    runtime, machine = probe_runtime({one.name: None for one in PROVIDERS}), probe_machine()
    trials = (*_problems(runtime), *map(tried, offered(runtime)))
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
        yield ProviderTrial(provider=name, device=None, problem=problem, absent=is_absent(problem))
