"""What it catches: more than one onnxruntime package in one environment.

Why: onnxruntime, onnxruntime-gpu, onnxruntime-directml and the like all unpack into the same folder. Files of the
last one installed replace those of the others, and providers of the others may be gone.

Example: pip install onnxruntime-gpu where onnxruntime was installed before.

How to fix: uninstall all of them, then install exactly one. Plugin packages (onnxruntime-ep-…, onnxruntime-qnn 2) have
folders of their own and may stay.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="several-runtimes", summary="More than one onnxruntime is installed", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    detail = overwritten(deployment.facts.runtime.runtime_packages)
    if detail is not None:
        yield Finding(at=("models",), detail=detail, key=True)


def overwritten(packages: Sequence[str]) -> str | None:
    """Say what is wrong with the installed packages that carry onnxruntime; None if nothing is."""
    if len(packages) < 2:  # noqa: PLR2004  one overwrites nothing
        return None
    return (
        f"This environment has {', '.join(packages)}, which overwrite each other's files. Uninstall all of them, "
        "then install the one that carries the providers you need."
    )
