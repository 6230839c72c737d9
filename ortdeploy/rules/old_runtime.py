"""What it catches: a described device whose ONNX Runtime is older than the one that ortdeploy needs.

Why: older versions cannot report to which providers they assigned the nodes, and cannot take plugin providers from
Python. They also differ in which providers may share a session (up to 1.20 "Execution type … doesn't support memcpy").

Example: plan --device box.yaml, if box.yaml says version: 1.19.2.

How to fix: install a newer onnxruntime on the device and capture it again with ortdeploy device.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.versions import release_numbers

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="old-runtime", summary="ONNX Runtime is too old", certainty=Certainty.MACHINE)

OLDEST = (1, 31)
"""The oldest onnxruntime that ortdeploy installs with."""


def check(deployment: "Deployment") -> Iterator[Finding]:
    version = deployment.facts.runtime.version
    if release_numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        detail = f"The device has onnxruntime {version}; ortdeploy needs {oldest} or newer there. Install it."
        yield Finding(at=("version",), detail=detail, key=True)
