"""The example's folder that sees (deployments/models/describer) in the shapes of other families of ONNX Runtime GenAI.

Each takes what the library's processor of its family gives, and puts the same digits where that has room for them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, PATCH = 8, 4
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of the colours that Phi-3 vision sees."""
_CROP, _PHI_ROWS = 336, 17 * 144 + 1 + 5 * 12
"""The sides of its crops, and the tokens of a picture that is as high as wide."""
_RESIZE: dict[str, Any] = {"width": SIDE, "height": SIDE, "keep_aspect_ratio": 0, "interpolation": "LINEAR"}
_DECODE: tuple[str, dict[str, Any]] = ("DecodeImage", {"color_space": "RGB"})
_SHRUNK = (_DECODE, ("Resize", _RESIZE), ("Rescale", {"rescale_factor": 1 / 240}))
_PLANES: tuple[str, dict[str, Any]] = ("Permute3D", {"dims": [2, 0, 1]})
_QWEN_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")

PROCESSORS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "qwen2_5_vl": (
        *_SHRUNK,
        ("PatchImage", {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2}),
    ),
    "phi3v": (_DECODE, ("Phi3ImageTransform", {"num_crops": 16, "num_img_tokens": 144})),
    "mistral3": (*_SHRUNK, _PLANES, ("PixtralImageSizes", {})),
}
PROCESSORS["qwen3_vl"] = PROCESSORS["fara"] = PROCESSORS["qwen2_5_vl"]

Arrays = dict[str, Any]


def copy_as(source: Path, folder: Path, kind: str) -> None:
    """Copy the example's folder in the shape of a family."""
    shutil.copytree(source, folder)
    steps = [{"operation": {"name": name, "type": name, "attrs": said}} for name, said in PROCESSORS[kind]]
    _write(folder / "processor_config.json", {"processor": {"transforms": steps}})
    config = json.loads((folder / "genai_config.json").read_text())
    model = config["model"]
    model["type"] = kind
    words = {"mistral3": ("[IMG_BREAK]", "[IMG_END]", "[IMG]"), "phi3v": None}.get(kind, _QWEN_WORDS)
    if words is not None:
        text = (folder / "tokenizer.json").read_text()
        for old, new in zip(("<start_of_image>", "<end_of_image>", "<image_soft_token>"), words, strict=True):
            text = text.replace(old, new)
        (folder / "tokenizer.json").write_text(text)
    if kind == "mistral3":
        model["vision"] |= {"patch_size": PATCH, "spatial_merge_size": 2}
        _see(folder, [3, SIDE, SIDE], [helper.make_node("ReduceMean", ["pixel_values"], ["image"], axes=[1])], {}, 1)
    elif kind == "phi3v":
        model["context_length"] = config["search"]["max_length"] = 4096
        model["vision"]["inputs"]["image_sizes"] = "image_sizes"
        _see(folder, [17, 3, _CROP, _CROP], *_of_crops(), _PHI_ROWS, more="image_sizes")
        _take_places_below_zero(folder)
    else:
        model["image_token_id"] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["<|image_pad|>"]
        model["vision"] |= {"patch_size": PATCH, "spatial_merge_size": 2}
        model["vision"]["inputs"]["image_grid_thw"] = "image_grid_thw"
        model["decoder"]["inputs"]["position_ids"] = "position_ids"
        _see(folder, [3 * 2 * PATCH**2], *_of_patches(), 1, more="image_grid_thw")
        _add_input(folder / "decoder.onnx", "position_ids", [3, "rows", "length"])
    _write(folder / "genai_config.json", config)
    embedding = onnx.load(folder / "embedding.onnx")
    del embedding.graph.input[1].type.tensor_type.shape.dim[0]
    onnx.save(embedding, folder / "embedding.onnx")


def _of_patches() -> tuple[list[onnx.NodeProto], Arrays]:
    """Return the nodes that make `image` of four patches, which have each pixel twice."""
    nodes = [
        helper.make_node("Reshape", ["pixel_values", "grid"], ["patches"]),
        helper.make_node("ReduceMean", ["patches"], ["grey"], axes=[2, 3], keepdims=0),
        helper.make_node("Transpose", ["grey"], ["lines"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["lines", "sides"], ["image"]),
    ]
    return nodes, {
        "grid": np.array([2, 2, 3, 2, PATCH, PATCH], np.int64),
        "sides": np.array([1, 1, SIDE, SIDE], np.int64),
    }


def _of_crops() -> tuple[list[onnx.NodeProto], Arrays]:
    """Return the nodes that make `image` of the first crop, which is the whole picture."""
    size = _CROP // SIDE
    nodes = [
        helper.make_node("Gather", ["pixel_values", "first"], ["whole"], axis=1),
        helper.make_node("Mul", ["whole", "std"], ["wide"]),
        helper.make_node("Add", ["wide", "mean"], ["colours"]),
        helper.make_node("ReduceMean", ["colours"], ["grey"], axes=[1]),
        helper.make_node("AveragePool", ["grey"], ["small"], kernel_shape=[size, size], strides=[size, size]),
        helper.make_node("Mul", ["small", "levels"], ["image"]),
    ]
    std, mean = (np.array(one, np.float32).reshape(3, 1, 1) for one in (_STD, _MEAN))
    return nodes, {"first": np.int64(0), "std": std, "mean": mean, "levels": np.float32(255 / 240)}


def _see(
    folder: Path, shape: list[Any], nodes: list[onnx.NodeProto], tensors: Arrays, rows: int, more: str = ""
) -> None:
    """Let the vision model make `image` with these nodes, and give its rows [rows, concepts] without an axis before."""
    model = onnx.load(folder / "vision.onnx")
    graph = model.graph
    size = graph.output[0].type.tensor_type.shape.dim[2].dim_value
    kept = [*nodes, *graph.node[1:-1]]
    kept += [
        helper.make_node("Squeeze", ["meant", "row_axis"], ["row"]),
        helper.make_node("Tile", ["row", "rows"], ["image_features"]),
    ]
    tensors = {**tensors, "row_axis": np.array([0], np.int64), "rows": np.array([rows, 1], np.int64)}
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in tensors.items())
    graph.input.append(helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["pictures", *shape]))
    graph.output.append(helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["seen", size]))
    onnx.save(model, folder / "vision.onnx")
    if more:
        _add_input(folder / "vision.onnx", more, ["pictures", "sizes"])


def _take_places_below_zero(folder: Path) -> None:
    """Let the embedding model find a picture where ids are -1."""
    model = onnx.load(folder / "embedding.onnx")
    graph = model.graph
    for one in graph.initializer:
        if one.name == "picture":
            one.CopyFrom(numpy_helper.from_array(np.array(-1, np.int64), "picture"))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "least"))
    graph.node.insert(0, helper.make_node("Max", ["input_ids", "least"], ["known"]))
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] == "embedding":
            node.input[1] = "known"
    onnx.save(model, folder / "embedding.onnx")


def _add_input(path: Path, name: str, shape: list[Any]) -> None:
    """Add an input of whole numbers, of which the model takes no notice."""
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
    onnx.save(model, path)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
