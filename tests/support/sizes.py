"""Prints how much the base install adds to ONNX Runtime, and holds the README's numbers against it.

python tests/support/sizes.py README.md, by the Python of an environment in which ortdeploy is installed.
"""

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOLERANCE = 0.1
"""The share by which sizes may differ from the README's, which are those of one version of each package."""


_BLOCK = 4096


def closure(name: str) -> set[str]:
    """Return a distribution and all that it needs, by normalized names, without extras."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = canonicalize_name(waiting.pop())
        if one not in found:
            found.add(one)
            needs = map(Requirement, distribution(one).requires or ())
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def megabytes(names: set[str]) -> float:
    """Return what the files of distributions take on the disk in MB, with bytecode, as `du` counts."""
    files = (file for name in names for file in distribution(name).files or ())
    found = (path for path in (Path(str(file.locate())) for file in files) if path.is_file())
    return sum(-(-path.stat().st_size // _BLOCK) * _BLOCK for path in found) / 1e6


def main(readme: str) -> None:
    """Measure and compare. Raises SystemExit if the README says something else."""
    text = " ".join(Path(readme).read_text(encoding="utf-8").split())
    said = re.search(r"(\d+) packages with what they need, (\d+) MB .+? has (\d+) packages and (\d+) MB", text)
    if said is None:
        sys.exit("The README does not say how large the base install is.")
    packages, size, own_packages, own_size = map(int, said.groups())
    everything, own = closure("ortdeploy"), closure("onnxruntime")
    measured, own_measured = (megabytes(names | {"pip"}) for names in (everything, own))
    sys.stdout.write(
        f"base install: {len(everything)} packages, {measured:.0f} MB; onnxruntime: {len(own)}, {own_measured:.0f} MB; "
        f"added: {len(everything - own)}, {measured - own_measured:.0f} MB\n"
    )
    has_all = 0 <= packages - len(everything) <= 1  # from Python 3.13 on, nothing needs typing-extensions
    is_near = all(abs(a - b) <= TOLERANCE * b for a, b in ((measured, size), (own_measured, own_size)))
    if not has_all or len(own) != own_packages or not is_near:
        sys.exit(f"The README says {packages} packages, {size} MB; onnxruntime: {own_packages}, {own_size} MB.")


if __name__ == "__main__":
    main(sys.argv[1])
