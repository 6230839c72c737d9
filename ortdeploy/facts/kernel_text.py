"""Kernel definitions as short lines of text: `7-12 T=tensor(float)|tensor(double)`; an open range ends in nothing.

Device files carry hundreds of them, and a plugin's child process hands them over in the same form.
"""

from collections.abc import Mapping, Sequence

from ortdeploy.facts.host import Kernel

_OPEN = 2147483647


def dump_kernels(kernels: Mapping[str, Sequence[Kernel]]) -> dict[str, list[str]]:
    """Return a provider's kernels as lines by `domain.operator`."""
    return {operator: [_line(kernel) for kernel in kernels[operator]] for operator in sorted(kernels)}


def parse_kernels(lines: Mapping[str, Sequence[str]]) -> dict[str, tuple[Kernel, ...]]:
    """Return what `dump_kernels` made lines of. Raises ValueError if it is something else."""
    return {operator: tuple(map(_kernel, own)) for operator, own in lines.items()}


def _line(kernel: Kernel) -> str:
    versions = f"{kernel.first}-{'' if kernel.last == _OPEN else kernel.last}"
    return " ".join([versions, *(f"{key}={'|'.join(sorted(kinds))}" for key, kinds in sorted(kernel.types.items()))])


def _kernel(line: str) -> Kernel:
    versions, *types = line.split(" ")
    first, _, last = versions.partition("-")
    constraints = {key: frozenset(kinds.split("|")) for key, _, kinds in (one.partition("=") for one in types)}
    return Kernel(first=int(first), last=int(last) if last else _OPEN, types=constraints)
