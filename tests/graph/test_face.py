"""The face of a model: what it takes and gives."""

import onnxruntime
import pytest

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.graph.face import face_of
from ortdeploy.tensors.types import TensorType

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "string"])
def test_a_face_is_opened_whatever_the_model_takes_and_gives(dtype: str) -> None:
    x, y = (ValueFacts(name=name, kind="tensor", tensor=TensorType(dtype, ("rows", 3, None))) for name in "xy")
    model = ModelFacts(path="", inputs=(x,), outputs=(y,))
    session = onnxruntime.InferenceSession(face_of(model), providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.shape[1], given.name, given.type) == ("x", 3, "y", taken.type)
