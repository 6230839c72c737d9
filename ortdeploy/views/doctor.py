"""What `ortdeploy doctor` prints: one screen about a machine."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, to_builtins

from ortdeploy.facts.host import MachineFacts, RuntimeFacts
from ortdeploy.sessions.provider_trial import ProviderTrial
from ortdeploy.shell import pip_install
from ortdeploy.terminal_text import safe
from ortdeploy.units import format_size
from ortdeploy.versions import package_version, versions
from ortdeploy.views.text import GREEN, RED, WIDTH, Paint, painter, wrapped
from ortdeploy.views.tree import DIM

FORMAT_VERSION = 1
_INDENT = "         "
_APART = frozenset({"diffusion"})
"""Extras whose packages need older versions of what others have."""
_SHOWN_FLAGS = ("avx512_vnni", "avx512f", "avx2", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve")


class Examination(Struct, frozen=True, kw_only=True):
    """What is known of a machine: ONNX Runtime, the machine, how each provider did, and what each extra lacks.

    `overwritten` says if several packages of ONNX Runtime overwrite each other.
    """

    runtime: RuntimeFacts
    machine: MachineFacts
    trials: Sequence[ProviderTrial]
    missing: Mapping[str, Sequence[str]]
    overwritten: str | None = None


def render_text(found: Examination, *, color: bool, quiet: bool = False, width: int | None = None) -> str:
    """Return one screen of text about the machine; with `quiet`, what fails alone. `width` None: not on a terminal."""
    paint, room = painter(color=color), width or WIDTH
    wrong = (
        ""
        if found.overwritten is None
        else f"  {paint('fails', RED)}  {wrapped(found.overwritten, room, indent=_INDENT)}"
    )
    if quiet:
        fails = [trial for trial in found.trials if trial.problem is not None and not trial.absent]
        return safe(wrong + "".join(_of_trial(trial, paint, room) for trial in fails))
    lines = "".join(wrapped(line, room) if line else "\n" for line in (*_of_machine(found), "", "Providers"))
    lines += wrong
    lines += "".join(_of_trial(trial, paint, room) for trial in found.trials)
    if found.missing:
        names = max(map(len, found.missing))
        lines += "\nExtras\n" + "".join(
            wrapped(_of_extra(name, lacks), room, first=f"  {name:<{names}}  ", indent=" " * (names + 4))
            for name, lacks in found.missing.items()
        )
    return safe(lines)


def _of_machine(found: Examination) -> Iterator[str]:
    runtime, machine = found.runtime, found.machine
    installed = ", ".join(runtime.runtime_packages) or "onnxruntime"
    quota = "" if machine.cpu_quota is None else f", of which this process may use {machine.cpu_quota:g}"
    memory = "unknown" if machine.memory_bytes is None else format_size(machine.memory_bytes)
    opset = runtime.max_opsets.get("ai.onnx", "unknown")
    flags = [flag for flag in _SHOWN_FLAGS if flag in machine.cpu_flags]
    yield f"ortdeploy {package_version('ortdeploy')}, Python {machine.python}"
    yield f"onnxruntime {runtime.version} ({installed}), operators up to set {opset}"
    yield f"{machine.system} {machine.architecture}, {machine.cores} cores{quota}, {memory} of memory"
    if flags:
        yield f"processor: {', '.join(flags)}"
    yield f"sensors: {', '.join(sorted(machine.sensors or ())) or 'none that can be read'}"


def _of_trial(trial: ProviderTrial, paint: Paint, width: int) -> str:
    name = trial.provider.removesuffix("ExecutionProvider")
    where = f" on {trial.device}" if trial.device else ""
    if trial.problem is None:
        return f"  {paint('works', GREEN)}  {name}{where}: opened in {trial.seconds:.2f} s\n"
    if trial.absent:
        return f"  {paint('no device', DIM)}  {name}\n{wrapped(trial.problem, width, first=_INDENT, indent=_INDENT)}"
    return f"  {paint('fails', RED)}  {name}{where}\n{wrapped(trial.problem, width, first=_INDENT, indent=_INDENT)}"


def _of_extra(name: str, lacks: Sequence[str]) -> str:
    if not lacks:
        return "installed"
    where = " in an environment of its own" if name in _APART else ""
    return f"lacks {', '.join(lacks)}: {pip_install(f'ortdeploy[{name}]')}{where}"


def render_json(found: Examination) -> str:
    """Return the same as JSON."""
    document = {
        "format_version": FORMAT_VERSION,
        "host": platform.node(),
        "versions": versions(),
        "runtime_packages": list(found.runtime.runtime_packages),
        "machine": {**to_builtins(found.machine), "sensors": sorted(found.machine.sensors or ())},
        "providers": [to_builtins(trial) for trial in found.trials],
        "overwritten": found.overwritten,
        "extras": {name: not lacks for name, lacks in found.missing.items()},
    }
    return json.dumps(document, indent=2) + "\n"
