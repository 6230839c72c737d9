"""What it catches: output: {recordings: {NAME: …}} that names no result, or a result that is no recording.

Why: a recording is float32 or int16 samples, one channel or [channels, samples].

Example:

    output: {path: outbox/clean, recordings: {masks: {rate: 16000}}}     # masks is float32 [rows, 1, 64, 64]

How to fix: name a result that has the samples. In a pipeline, {do: squeeze} takes a dimension of one away.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.tensors.types import TensorType

RULE = Rule(id="unusable-recording", summary="Not a recording")

_RANKS, _TYPES = (2, 3), (None, "float32", "int16")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for name in job.spec.output.recordings if job.readable else ():
            at = (*job.spec.output.at, "recordings", name)
            if name not in job.columns:
                detail = f'"{name}" is not written. {did_you_mean(name, job.columns)}'
                yield Finding(at=at, detail=detail, job=job.spec.name)
            elif not _is_recording(job.results[name]):
                detail = (
                    f'"{name}" is {job.results[name]}, and a recording is float32 or int16 [rows, samples] or [rows, '
                    "channels, samples]. In a pipeline, {do: squeeze} takes a dimension of one away."
                )
                yield Finding(at=at, detail=detail, job=job.spec.name)


def _is_recording(tensor: "TensorType") -> bool:
    """Return whether a result may be a recording, by what is known of its type."""
    return tensor.dtype in _TYPES and (tensor.shape is None or len(tensor.shape) in _RANKS)
