"""What it catches: numbers in first rows that a provider may turn into others, by the format that it computes in.

Why: with trt_fp16_enable, TensorRT may compute in float16, where 70000 is an infinity. WebGPU may take 1e-40 for zero,
whose logarithm is none. ONNX Runtime says nothing, and results are wrong or infinite. Where it is sure that the inputs
themselves are in that format, as behind QNN, such rows fail instead.

Example: depth in millimetres up to 80000, fed as float32 to a provider of OpenVINO on a GPU.

How to fix: the finding names the option that keeps float32. Or feed smaller numbers, as with scale: in prepare:, if the
model allows that.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="narrowed-numbers", summary="The provider may change numbers", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        for problem in found.narrowed if found is not None else ():
            yield Finding(
                at=job.spec.input.source_at,
                detail=f"In the first rows, {problem}",
                job=job.spec.name,
                model=job.spec.model,
            )
