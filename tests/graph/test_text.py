"""Tests of the look at a model's texts: it finds what is not UTF-8, and copies no weights."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.graph.text import UnreadableTextError, check_text

MIB = 1024 * 1024


def _model(*, in_a_node: bool, floats: int) -> onnx.ModelProto:
    """Return a model with one constant of `floats` float32 numbers, as an initializer or in a Constant node."""
    values = numpy_helper.from_array(np.zeros(floats, dtype=np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], name="add")]
    if in_a_node:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=values))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], [] if in_a_node else [values]))


def _bad(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with a byte that is no UTF-8 in place of the letter of a name."""
    return onnx.ModelProto.FromString(model.SerializeToString().replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize("in_a_node", [True, False])
@pytest.mark.parametrize("name", ["add", "w", "x", "y"])
def test_a_name_that_is_not_utf_8_is_found(name: str, *, in_a_node: bool) -> None:
    model = _model(in_a_node=in_a_node, floats=4)
    check_text(model)
    with pytest.raises(UnreadableTextError, match="is not UTF-8 text"):
        check_text(_bad(model, name))


_MEASURE = """\
import sys
import onnx
from ortdeploy.graph.text import check_text
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
model = onnx.load(sys.argv[1])
before = peak()
check_text(model)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.quick("True")
@pytest.mark.parametrize("in_a_node", [True, False])
def test_no_weights_are_copied(tmp_path: Path, *, in_a_node: bool) -> None:
    onnx.save(_model(in_a_node=in_a_node, floats=8 * MIB), str(tmp_path / "m.onnx"))
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, check=True)
    assert int(done.stdout) < 4 * 1024  # KiB, of a model of 32 MiB
