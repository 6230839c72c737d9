"""What it catches: a model that ONNX Runtime does not open: types that do not match, attributes that an operator does
not have, missing inputs, unknown operators, nodes without a kernel. And the folder of a preset `generate` that ONNX
Runtime GenAI does not open: for its config or tokenizer, or for how texts are to be written, such as a json_schema.

Why: protobuf reads such a file, and onnx's own checks let much of it pass; without this rule the session is refused
when the job begins. While the plan is made, ONNX Runtime opens the model without its weights, in a process of its own,
and the finding says what apply would say. For chains with other providers than the CPU, and for another machine whose
kernels are described, or whose ONNX Runtime is newer, it only loads the graph.

Example: an Add of a float16 and a float32 tensor, left behind by a conversion of half of the model.

How to fix: the message names the node. Convert or export the model again. A model that needs a provider with operators
of its own is not judged.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel

RULE = Rule(id="refused-model", summary="ONNX Runtime refuses the model", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        opening = deployment.preflight.openings.get(model.spec.name)
        if opening is None or opening.refusal is None or _is_predicted(model):
            continue
        detail = (
            f'ONNX Runtime does not open model "{model.spec.name}": {opening.refusal}. '
            "Export or convert the model again."
        )
        yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
    for pipeline in deployment.spec.pipelines:
        opening = deployment.preflight.folders.get(pipeline.name)
        if pipeline.preset is not None and opening is not None and opening.refusal is not None:
            detail = (
                f"ONNX Runtime GenAI does not open {pipeline.preset.folder} to write so: {opening.refusal}. Mend what "
                "this names, or provide a folder as GenAI's model builder writes it."
            )
            yield Finding(at=(*pipeline.at, "from"), detail=detail)


def _is_predicted(model: "ResolvedModel") -> bool:
    """Return whether the nodes without a kernel are known, which unsupported-operator says in more words."""
    return any(session.prediction is not None and session.prediction.impossible for session in model.usable)
