"""Models that are made of a plan: the graph of op steps, and a model's own with op steps in it or with other shapes."""

from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.plan.steps import OpenSession


def make_model(step: OpenSession) -> bytes:
    """Return the model of a step that has a graph, a fusion or shapes. Raises OrtdeployError."""
    from ortdeploy.graph.fusion import changed_model  # noqa: PLC0415  brings onnx, which few steps need
    from ortdeploy.graph.op_model import op_model  # noqa: PLC0415  as above

    if step.graph is not None:
        return op_model(step.graph).SerializeToString(deterministic=True)
    try:
        return changed_model(Path(step.path), step.fusion, step.shapes).SerializeToString()
    except OrtdeployError:
        raise
    except Exception as error:  # protobuf and onnx have no one class for what a file causes
        if is_a_bug(error):
            raise
        what = "Inputs cannot get other shapes in" if step.fusion is None else "Op steps cannot be fused into"
        raise OrtdeployError(f'{what} model "{step.model}": {reason_of(error)}') from error
