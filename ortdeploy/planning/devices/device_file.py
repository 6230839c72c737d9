"""Device files: the facts of a machine as YAML that can be committed, to plan for it on another machine."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from msgspec import convert, to_builtins

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, Span, has_errors
from ortdeploy.facts.host import DeviceFacts, HostFacts, Kernel, MachineFacts, RuntimeFacts
from ortdeploy.facts.kernel_text import dump_kernels, parse_kernels
from ortdeploy.facts.variants import Traits
from ortdeploy.files.listing import expand
from ortdeploy.files.names import is_folder
from ortdeploy.files.path_suggestions import advice_on_path
from ortdeploy.manifest.document import Document, parse_document, read_bounded, stage_diagnostic
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.planning.devices.offered_devices import described_devices
from ortdeploy.providers.catalogue import CPU, PROVIDERS, full_name
from ortdeploy.versions import TESTED_WITH, release_numbers

FORMAT_VERSION = 1
_MOST, _WORD = 1_000, 3
"""How many files a name is compared with that is none, and how long it must be to be a part of theirs."""


def dump_device(
    name: str,
    runtime: RuntimeFacts,
    machine: MachineFacts,
    *,
    labels: Mapping[str, str],
    opens: Sequence[str],
) -> str:
    """Return the text of a device file; `opens` are the providers that open a session."""
    devices = [
        {key: value for key, value in to_builtins(device).items() if key != "library" and value is not None}
        for device in runtime.devices
    ]
    runtime_lines = {
        "version": runtime.version,
        "providers": list(runtime.available_providers),
        "max_ir_version": runtime.max_ir_version,
        "max_opsets": dict(runtime.max_opsets),
        "packages": sorted(runtime.packages),
        "opens": list(opens),
    }
    machine_lines = {
        "system": machine.system,
        "architecture": machine.architecture,
        "python": machine.python,
        "cores": machine.cores,
        "cpu_quota": machine.cpu_quota,
        "memory_bytes": machine.memory_bytes,
        "total_memory_bytes": machine.total_memory_bytes,
        "online_cores": machine.online_cores,
        "gpu_memory_bytes": machine.gpu_memory_bytes,
        "cpu_flags": list(machine.cpu_flags),
        "sensors": None if machine.sensors is None else sorted(machine.sensors),
    }
    return (
        f"device_version: {FORMAT_VERSION}\nname: {scalar(name)}\nlabels: {flow(dict(labels))}\n"
        "source: captured\n"
        f"runtime:\n{_lines(runtime_lines)}"
        f"devices:{'' if devices else ' []'}\n{''.join(f'  - {flow(device)}{chr(10)}' for device in devices)}"
        f"machine:\n{_lines(machine_lines)}"
        f"kernels:{'' if runtime.kernels else ' {}'}\n{''.join(map(_kernel_lines, runtime.kernels.items()))}"
    )


def _kernel_lines(kernels: tuple[str, Mapping[str, Sequence[Kernel]]]) -> str:
    provider, own = kernels
    return f"  {scalar(provider)}:\n" + "".join(
        f"    {scalar(operator)}: {flow(lines)}\n" for operator, lines in dump_kernels(own).items()
    )


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"  {key}: {flow(value)}\n" for key, value in values.items())


def load_device(path: str) -> tuple[HostFacts | None, tuple[Diagnostic, ...]]:
    """Read a device file into the facts that planning needs, or say what is wrong with it."""
    try:
        raw = read_bounded(path)
    except OrtdeployError as error:
        detail = f"The device file {error}.{_advice(path)}"
        return None, (stage_diagnostic("unreadable-device", detail, Span(path=path, line=1, column=1)),)
    document, diagnostics = parse_document(raw, path)
    if document is None:
        return None, diagnostics
    diagnostics += check_document(document, "device")
    if not has_errors(diagnostics):
        diagnostics += tuple(_same_numbers(document))
    if has_errors(diagnostics):
        return None, diagnostics
    runtime = _runtime_facts(document.data)
    host = HostFacts(
        runtime=runtime,
        machine=_machine_facts(document.data),
        traits=_traits(document.data),
        offered=described_devices(
            runtime, document.data["runtime"].get("opens"), tells_devices="devices" in document.data
        ),
    )
    return host, diagnostics


def _advice(path: str) -> str:
    """Return a sentence on what somebody may have meant by a device file that cannot be read; else nothing."""
    if is_folder(path):
        return f' Quote a pattern: --device "{path.rstrip("/")}/*.yaml".'
    folder, name = os.path.split(path.removesuffix(".yaml"))
    below = [os.path.join(folder, "*.yaml")] if folder else ["*.yaml", "*/*.yaml", "*/*/*.yaml"]  # noqa: PTH118  text
    files = list(islice((PurePath(one) for pattern in below for one in expand(pattern)), _MOST))
    alike = [one.as_posix() for one in files if name in one.stem] if len(name) >= _WORD else []
    return f" Did you mean {' or '.join(alike[:3])}?" if alike else advice_on_path(path, path)


def name_of_device(path: str) -> str:
    """Return the name that a device file gives, or that of the file. Raises OrtdeployError if it is no device file."""
    document, problems = parse_document(read_bounded(path), path)
    if document is None or not isinstance(document.data, dict) or "device_version" not in document.data:
        why = problems[0].detail if problems else "it has no device_version."
        raise OrtdeployError(f"{path} is no device file: {why.rstrip('.')}")
    return str(document.data.get("name") or Path(path).stem)


def _same_numbers(document: Document) -> Iterator[Diagnostic]:
    """Yield devices that have the number of another one of their provider."""
    known: dict[tuple[str, int], int] = {}
    for position, device in enumerate(document.data.get("devices", ())):
        key = full_name(device["provider"]), device.get("index", position)
        first = known.setdefault(key, position)
        if first != position:
            detail = f"devices[{position}] has the number of devices[{first}], {key[1]} of {key[0]}. Give it its own."
            yield stage_diagnostic("value-not-allowed", detail, document.locate(("devices", position)))


def _runtime_facts(data: Mapping[str, Any]) -> RuntimeFacts:
    runtime = data["runtime"]
    ir_version, opsets = TESTED_WITH.get(".".join(map(str, release_numbers(runtime["version"])[:2])), (None, {}))
    return RuntimeFacts(
        version=runtime["version"],
        available_providers=tuple(dict.fromkeys((*map(full_name, runtime["providers"]), CPU))),
        max_ir_version=runtime.get("max_ir_version") or ir_version,
        max_opsets={**opsets, **runtime.get("max_opsets", {})},
        packages=frozenset(runtime.get("packages", ())),
        kernels={full_name(provider): parse_kernels(lines) for provider, lines in data.get("kernels", {}).items()},
        devices=tuple(_device(device, index) for index, device in enumerate(data.get("devices", ()))),
        plugin_problems=dict(_not_opening(data)),
    )


def _not_opening(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the providers that are there and open no session, by the small model that was tried.

    One that compiles may have left that model to the CPU, and take others.
    """
    told = data["runtime"]
    there = {full_name(one) for one in (*told["providers"], *(one["provider"] for one in data.get("devices", ())))}
    closed = there.difference(map(full_name, told.get("opens", there)), {CPU})
    for one in PROVIDERS:
        if one.name in closed and one.claims_nodes and not one.compiles:
            yield one.name, "The device file says that it opens no session there (opens)."


def _traits(data: Mapping[str, Any]) -> Traits:
    machine = data.get("machine", {})
    return Traits(
        name=data.get("name"),
        labels=data.get("labels"),
        architecture=machine.get("architecture"),
        system=machine.get("system"),
        memory=machine.get("total_memory_bytes"),
        cores=machine.get("online_cores"),
    )


def _machine_facts(data: Mapping[str, Any]) -> MachineFacts | None:
    """Return the machine; None if the file does not say how many cores it has."""
    machine = data.get("machine", {})
    unsaid = {"system": "", "architecture": "", "python": "", "cpu_quota": None, "memory_bytes": None, "cpu_flags": ()}
    return convert({**unsaid, **machine}, MachineFacts) if "cores" in machine else None


def _device(data: Mapping[str, Any], position: int) -> DeviceFacts:
    unsaid = {"index": position, "vendor": "", "name": data["kind"]}
    return convert({**unsaid, **data, "provider": full_name(data["provider"]), "library": ""}, DeviceFacts)
