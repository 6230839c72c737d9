"""Models that are made of a plan: the graph of op steps, and a model's own with op steps in it."""

from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.plan.steps import OpenSession


def make_model(step: OpenSession) -> bytes:
    """Return the model of a step that has a graph, or a fusion. Raises OrtdeployError."""
    from ortdeploy.graph.fusion import fused_model  # noqa: PLC0415  brings onnx, which only op steps need
    from ortdeploy.graph.op_model import op_model  # noqa: PLC0415  as above

    if step.graph is not None:
        return op_model(step.graph).SerializeToString(deterministic=True)
    if step.fusion is None:
        raise TypeError("a step without op steps is opened from its file")
    try:
        return fused_model(Path(step.path), step.fusion).SerializeToString()
    except OrtdeployError:
        raise
    except Exception as error:  # protobuf and onnx have no one class for what a file causes
        if is_a_bug(error):
            raise
        raise OrtdeployError(f'Op steps cannot be fused into model "{step.model}": {reason_of(error)}') from error
