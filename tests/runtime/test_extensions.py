"""Models with operators of onnxruntime-extensions: run where the package is installed, on the CPU."""

from pathlib import Path

import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper, save

pytest.importorskip("onnxruntime_extensions")

MANIFEST = """\
version: 1
models: {{up: {{path: m.onnx{more}}}}}
jobs:
  run: {{model: up, input: {{path: in.csv, columns: {{x: word}}, key: [row]}}, output: {{path: out}}}}
"""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A model that makes words large, and words."""
    save_model(tmp_path / "m.onnx", "StringUpper")
    (tmp_path / "in.csv").write_text("word\nhello\nEdge\n")
    return tmp_path


def save_model(path: Path, operator: str) -> None:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], domain="ai.onnx.contrib")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n", 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))


@pytest.mark.parametrize("more", ["", ", cache: true", ", cache: true, threads: auto"])
def test_operators_of_the_extensions_run(words: Path, cli: Cli, more: str) -> None:
    (words / "m.yaml").write_text(MANIFEST.format(more=more))
    done = cli("apply", words / "m.yaml")
    assert done.code == 0, done.out + done.err
    assert [row["y"] for row in read_rows(words / "out")] == [["HELLO"], ["EDGE"]]


def test_an_operator_that_the_package_has_not_ends_the_job_with_its_name(words: Path, cli: Cli) -> None:
    save_model(words / "m.onnx", "StringSideways")
    (words / "m.yaml").write_text(MANIFEST.format(more=""))
    done = cli("apply", words / "m.yaml")
    assert done.code == 1
    assert "StringSideways" in done.out + done.err
    assert "Traceback" not in done.err
