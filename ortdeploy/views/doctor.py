"""What `ortdeploy doctor` prints: one screen about a machine."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap

from ortdeploy.checks.provider_trial import ProviderTrial
from ortdeploy.facts.host import MachineFacts, RuntimeFacts
from ortdeploy.units import format_size
from ortdeploy.versions import package_version, versions
from ortdeploy.views.text import GREEN, RED, Paint, painter, safe

FORMAT_VERSION = 1
_WIDTH, _INDENT = 100, "         "
_EXTRAS = {
    "images": ("PIL",), "audio": ("soundfile", "soxr"), "tables": ("pyarrow",), "text": ("tokenizers",),
    "extensions": ("onnxruntime_extensions",), "diffusion": ("optimum",),
}  # fmt: skip
_SHOWN_FLAGS = ("avx512_vnni", "avx512f", "avx2", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve")


def render_text(runtime: RuntimeFacts, machine: MachineFacts, trials: Sequence[ProviderTrial], *, color: bool) -> str:
    """Return one screen of text about the machine."""
    installed = ", ".join(runtime.runtime_packages) or "onnxruntime"
    quota = "" if machine.cpu_quota is None else f", of which this process may use {machine.cpu_quota:g}"
    memory = "unknown" if machine.memory_bytes is None else format_size(machine.memory_bytes)
    opset = runtime.max_opsets.get("ai.onnx", "unknown")
    flags = [flag for flag in _SHOWN_FLAGS if flag in machine.cpu_flags]
    lines = [
        f"ortdeploy {package_version('ortdeploy')}, Python {machine.python}",
        f"onnxruntime {runtime.version} ({installed}), operators up to set {opset}",
        f"{machine.system} {machine.architecture}, {machine.cores} cores{quota}, {memory} of memory",
        *([f"processor: {', '.join(flags)}"] if flags else []),
        f"sensors: {', '.join(sorted(machine.sensors or ())) or 'none that can be read'}",
        "",
        "Providers",
        *(line for trial in trials for line in _of_trial(trial, painter(color=color))),
        "",
        "Extras",
        *(_of_extra(name, packages, runtime) for name, packages in _EXTRAS.items()),
    ]
    return safe("".join(f"{line}\n" for line in lines))


def _of_trial(trial: ProviderTrial, paint: Paint) -> list[str]:
    name = trial.provider.removesuffix("ExecutionProvider")
    where = f" on {trial.device}" if trial.device else ""
    if trial.problem is None:
        return [f"  {paint('works', GREEN)}  {name}{where}: opened in {trial.seconds:.2f} s"]
    reason = wrap(trial.problem, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return [f"  {paint('fails', RED)}  {name}{where}", *reason]


def _of_extra(name: str, packages: Sequence[str], runtime: RuntimeFacts) -> str:
    missing = [package for package in packages if package not in runtime.packages]
    return f"  {name:<11}" + (f"missing: pip install 'ortdeploy[{name}]'" if missing else "installed")


def render_json(runtime: RuntimeFacts, machine: MachineFacts, trials: Sequence[ProviderTrial], *, color: bool) -> str:
    """Return the same as JSON, never colored."""
    del color
    document = {
        "format_version": FORMAT_VERSION,
        "host": platform.node(),
        "versions": versions(),
        "runtime_packages": list(runtime.runtime_packages),
        "machine": {**asdict(machine), "sensors": sorted(machine.sensors or ())},
        "providers": [asdict(trial) for trial in trials],
        "extras": {name: all(one in runtime.packages for one in packages) for name, packages in _EXTRAS.items()},
    }
    return json.dumps(document, indent=2) + "\n"
