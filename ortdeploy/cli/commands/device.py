"""`ortdeploy device`: write this machine's facts as a device file, to plan for it elsewhere."""

import argparse
import sys

from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import device_name, labels_of
from ortdeploy.cli.command_line.targets import Target, check_target
from ortdeploy.cli.commands.shared import write_file
from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.planning.devices.device_file import dump_device
from ortdeploy.planning.devices.variants import opening_providers
from ortdeploy.process.machine_metrics import nvidia_devices
from ortdeploy.providers.catalogue import PROVIDERS
from ortdeploy.runtime.machine import probe_machine
from ortdeploy.runtime.probe import probe_runtime
from ortdeploy.terminal_text import safe


def run(arguments: argparse.Namespace) -> int:
    """Capture and print, or write to a file."""
    if arguments.output is not None:
        check_target("--output", arguments.output, Target.DEVICE, arguments)
    runtime = probe_runtime({provider.name: None for provider in PROVIDERS if provider.plugin})
    name = arguments.name or device_name() or "device"
    labels, opens = labels_of(arguments.labels), opening_providers()
    nvidia = nvidia_devices()
    machine = replace(probe_machine(), gpu_memory_bytes=None if nvidia is None else nvidia.memory())
    text = dump_device(name, runtime, machine, labels=labels, opens=opens)
    for problem in runtime.plugin_problems.values():
        sys.stderr.write(safe(f"{problem}\n"))
    if arguments.output is None:
        sys.stdout.write(text)
        return EXIT_OK
    write_file(arguments.output, text)
    return EXIT_OK
