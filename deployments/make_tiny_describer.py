"""Makes the folder of deployments/describer.yaml: a model that says which digit a picture shows, token by token.

It has the shape of Gemma 3, as ONNX Runtime GenAI runs it. The vision model is deployments/models/digits.onnx, and
behind it the digit as 256 rows; the embedding model puts them where the prompt has its picture; the decoder writes.
Its weights are written down, as those of make_tiny_writer.py: attention counts what was read, and one layer knows what
follows. A prompt that asks whether the digit is odd is told that, too.

Run: python deployments/make_tiny_describer.py --out deployments/models/describer
"""

import argparse
import json
from pathlib import Path
from typing import Any

import make_tiny_writer as writer
import numpy as np
import onnx
from make_tiny_writer import Array, written
from onnx import TensorProto, helper, numpy_helper

CONTEXT, ROWS, SIDE = 512, 256, 8
"""Tokens of the context, rows that a picture takes in it, as Gemma has them, and pixels of its sides."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
BEGIN, ODD, EVEN, CLOSE, ASKED = "The picture shows the digit ", ", which is odd", ", which is even", ".", "odd"
PICTURE = "<image_soft_token>"
SPECIAL = (*writer.SPECIAL, "<start_of_image>", "<end_of_image>", PICTURE)
CONCEPTS = (BEGIN, ODD, EVEN, CLOSE, *DIGITS, f"read {ASKED}", *(f"seen {one}" for one in DIGITS))
PROCESSOR = (
    ("DecodeImage", {"color_space": "RGB"}),
    ("Resize", {"width": SIDE, "height": SIDE, "keep_aspect_ratio": 0, "interpolation": "LINEAR"}),
    ("Rescale", {"rescale_factor": 1 / 240}),
    ("Permute3D", {"dims": [2, 0, 1]}),
)


def make_vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return the ids of tokens, and the merges by which the word that the model reads becomes a token of its own."""
    words = [written(f"{space}{ASKED}") for space in ("", " ")]
    merges = {f"{word[:end]} {word[end]}": None for word in words for end in range(1, len(word))}
    joined = [merge.replace(" ", "", 1) for merge in merges]
    tokens = [*SPECIAL, *writer.byte_letters().values(), *joined, *map(written, (BEGIN, ODD, EVEN, CLOSE, *DIGITS))]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}, list(merges)


def make_weights(ids: dict[str, int]) -> dict[str, Array]:
    """Return the embedding [tokens, concepts], and what follows a concept, or one that was read or seen before."""
    embedding = np.zeros((len(ids), len(CONCEPTS)), np.float32)
    follows = np.zeros((len(CONCEPTS), len(ids)), np.float32)
    for name in (BEGIN, ODD, EVEN, CLOSE, *DIGITS):
        embedding[ids[written(name)], CONCEPTS.index(name)] = 1
    for word in (ASKED, f" {ASKED}"):
        embedding[ids[written(word)], CONCEPTS.index(f"read {ASKED}")] = 1
    for before, after in [*((one, written(CLOSE)) for one in (*DIGITS, ODD, EVEN)), (CLOSE, "</s>")]:
        follows[CONCEPTS.index(before), ids[after]] = 10
    seen = [(BEGIN, f"seen {one}", one) for one in DIGITS]
    asked = [(one, f"read {ASKED}", (EVEN, ODD)[place % 2]) for place, one in enumerate(DIGITS)]
    last = np.zeros((len(CONCEPTS), len(seen) + len(asked)), np.float32)
    read, gives = np.zeros_like(last), np.zeros((last.shape[1], len(ids)), np.float32)
    for unit, (before, was_read, after) in enumerate((*seen, *asked)):
        last[CONCEPTS.index(before), unit] = 1
        read[CONCEPTS.index(was_read), unit] = 1
        gives[unit, ids[written(after)]] = 100 * CONTEXT
    bias = np.zeros(len(ids), np.float32)
    bias[ids[written(BEGIN)]] = 1
    return {"embedding": embedding, "follows": follows, "last": last, "read": read, "gives": gives, "bias": bias}


def make_vision(digits: onnx.ModelProto) -> onnx.ModelProto:
    """Return what makes rows [pictures, ROWS, concepts] of pixels [pictures, 3, SIDE, SIDE] from 0 to 1."""
    means = np.zeros((len(DIGITS), len(CONCEPTS)), np.float32)
    means[:, CONCEPTS.index(f"seen {DIGITS[0]}") :] = np.eye(len(DIGITS))
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values"], ["image"], axes=[1], keepdims=1),
        *digits.graph.node,
        helper.make_node("ArgMax", ["scores"], ["digit"], axis=1, keepdims=1),
        helper.make_node("Gather", ["means", "digit"], ["meant"]),
        helper.make_node("Tile", ["meant", "repeats"], ["image_features"]),
    ]
    taken = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["pictures", 3, SIDE, SIDE])
    given = helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["pictures", ROWS, len(CONCEPTS)])
    tensors = {"means": means, "repeats": np.array([1, ROWS, 1], np.int64)}
    return make_model("vision", nodes, [taken], [given], tensors, digits.graph.initializer)


def make_embedding(ids: dict[str, int], table: Array) -> onnx.ModelProto:
    """Return what makes rows [rows, length, concepts] of ids, those of pictures where the ids say that they are."""
    nodes = [
        helper.make_node("Equal", ["input_ids", "picture"], ["is_picture"]),
        helper.make_node("Cast", ["is_picture"], ["ones"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["ones", "tokens_axis"], ["counts"]),
        helper.make_node("Mul", ["counts", "ones"], ["places"]),
        helper.make_node("Reshape", ["image_features", "flat"], ["rows_of_pictures"]),
        helper.make_node("Concat", ["nothing", "rows_of_pictures"], ["all"], axis=0),
        helper.make_node("Gather", ["all", "places"], ["seen"]),
        helper.make_node("Gather", ["embedding", "input_ids"], ["read"]),
        helper.make_node("Add", ["seen", "read"], ["inputs_embeds"]),
    ]
    taken = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"]),
        helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["pictures", "seen", len(CONCEPTS)]),
    ]
    given = helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["rows", "length", len(CONCEPTS)])
    tensors = {
        "embedding": table, "picture": np.int64(ids[PICTURE]), "flat": np.array([-1, len(CONCEPTS)], np.int64),
        "nothing": np.zeros((1, len(CONCEPTS)), np.float32), "tokens_axis": np.int64(1),
    }  # fmt: skip
    return make_model("embedding", nodes, taken, [given], tensors)


def make_decoder(weights: dict[str, Array]) -> onnx.ModelProto:
    """Return what makes logits [rows, length, vocabulary] of rows, a mask, and what was kept of tokens before."""
    vocabulary, size = len(weights["bias"]), len(CONCEPTS)
    nodes = [
        helper.make_node("Identity", ["inputs_embeds"], ["x"]),
        *writer.make_layer("inputs_embeds"),
        helper.make_node("Sum", ["given", "following", "bias"], ["logits"]),
    ]
    pair = ("key", "value")
    shapes: dict[str, list[Any]] = {"inputs_embeds": ["rows", "length", size], "logits": ["rows", "length", vocabulary]}
    shapes |= {f"past_key_values.0.{one}": ["rows", 1, "past", size] for one in pair}
    shapes |= {f"present.0.{one}": ["rows", 1, "total", size] for one in pair}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["rows", "total"])
    taken = [values["inputs_embeds"], mask, *(values[f"past_key_values.0.{one}"] for one in pair)]
    given = [values["logits"], *(values[f"present.0.{one}"] for one in pair)]
    tensors = {name: one for name, one in weights.items() if name != "embedding"}
    return make_model("decoder", nodes, taken, given, tensors | writer.CONSTANTS)


def make_model(
    name: str,
    nodes: list[onnx.NodeProto],
    taken: list[onnx.ValueInfoProto],
    given: list[onnx.ValueInfoProto],
    tensors: dict[str, Any],
    more: Any = (),
) -> onnx.ModelProto:
    """Return a model that onnx has checked; `more` are further initializers."""
    initializers = [numpy_helper.from_array(np.asarray(one), key) for key, one in tensors.items()]
    graph = helper.make_graph(nodes, name, taken, given, [*initializers, *more])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def settings(ids: dict[str, int], merges: list[str]) -> dict[str, Any]:
    """Return the files beside the models by their names."""
    files = writer.settings(ids, merges, len(CONCEPTS), SPECIAL)
    config = files["genai_config.json"]
    model, decoder = config["model"], config["model"]["decoder"]
    decoder["filename"] = "decoder.onnx"
    decoder["inputs"] = {"inputs_embeds": "inputs_embeds", **decoder["inputs"]}
    del decoder["inputs"]["input_ids"]
    model |= {
        "type": "gemma3",
        "context_length": CONTEXT,
        "vision": {
            "filename": "vision.onnx",
            "config_filename": "processor_config.json",
            "inputs": {"pixel_values": "pixel_values"},
            "outputs": {"image_features": "image_features"},
        },
        "embedding": {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
    }
    config["search"]["max_length"] = CONTEXT
    steps = [{"operation": {"name": kind.lower(), "type": kind, "attrs": said}} for kind, said in PROCESSOR]
    return {**files, "processor_config.json": {"processor": {"name": "describer", "transforms": steps}}}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    ids, merges = make_vocabulary()
    weights = make_weights(ids)
    onnx.save(make_vision(onnx.load(Path(__file__).parent / "models/digits.onnx")), folder / "vision.onnx")
    onnx.save(make_embedding(ids, weights["embedding"]), folder / "embedding.onnx")
    onnx.save(make_decoder(weights), folder / "decoder.onnx")
    for name, value in settings(ids, merges).items():
        (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
