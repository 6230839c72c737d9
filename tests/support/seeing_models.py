"""The example's folder that sees (deployments/models/describer) in the shapes of other families of ONNX Runtime GenAI.

Each takes what the library's processor of its family gives, and puts the same digits where that has room for them.
Gemma 4 hears tones beside, which stand for digits too.
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
    "gemma4": (_DECODE, ("Gemma4ImageTransform", {"patch_size": 16, "max_soft_tokens": 4, "pooling_kernel_size": 3})),
}
SOUND = ("audio_decoder", "AudioDecoder"), ("gemma4_log_mel", "Gemma4LogMel")
BANDS_A_DIGIT = 13
"""Bands of mel that stand for one digit: a tone is the digit of its band."""
_GEMMA_4_WORDS = ("<|audio>", "<audio|>", "<|audio|>")
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
    others = {"mistral3": ("[IMG_BREAK]", "[IMG_END]", "[IMG]"), "gemma4": ("<|image>", "<image|>", "<|image|>")}
    words = others.get(kind, _QWEN_WORDS)
    if kind != "phi3v":
        text = (folder / "tokenizer.json").read_text()
        for old, new in zip(("<start_of_image>", "<end_of_image>", "<image_soft_token>"), words, strict=True):
            text = text.replace(old, new)
        (folder / "tokenizer.json").write_text(text)
    if kind == "mistral3":
        model["vision"] |= {"patch_size": PATCH, "spatial_merge_size": 2}
        mean = helper.make_node("ReduceMean", ["pixel_values"], ["image"], axes=[1])
        _see(folder, [3, SIDE, SIDE], [mean], {}, 1, {})
    elif kind == "phi3v":
        model["context_length"] = config["search"]["max_length"] = 4096
        model["vision"]["inputs"]["image_sizes"] = "image_sizes"
        _see(folder, [17, 3, _CROP, _CROP], *_of_crops(), _PHI_ROWS, {"image_sizes": ["pictures", 2]})
        _take_places_below_zero(folder)
    elif kind == "gemma4":
        model["vision"]["inputs"]["pixel_position_ids"] = "pixel_position_ids"
        _see(folder, ["n", 768], *_of_squares(), 4, {"pixel_position_ids": ["pictures", "n", 2]})
        _hear(folder, model)
    else:
        model["image_token_id"] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["<|image_pad|>"]
        model["vision"] |= {"patch_size": PATCH, "spatial_merge_size": 2}
        model["vision"]["inputs"]["image_grid_thw"] = "image_grid_thw"
        model["decoder"]["inputs"]["position_ids"] = "position_ids"
        _see(folder, [3 * 2 * PATCH**2], *_of_patches(), 1, {"image_grid_thw": ["pictures", 3]})
        _add_input(folder / "decoder.onnx", "position_ids", [3, "rows", "length"])
    _write(folder / "genai_config.json", config)
    embedding = onnx.load(folder / "embedding.onnx")
    del embedding.graph.input[1].type.tensor_type.shape.dim[0]
    onnx.save(embedding, folder / "embedding.onnx")


def _of_patches() -> tuple[list[onnx.NodeProto], Arrays]:
    """Return the nodes that make `image` of four patches a picture, which have each pixel twice."""
    nodes = [
        helper.make_node("Reshape", ["pixel_values", "grid"], ["patches"]),
        helper.make_node("ReduceMean", ["patches"], ["grey"], axes=[3, 4], keepdims=0),
        helper.make_node("Transpose", ["grey"], ["lines"], perm=[0, 1, 3, 2, 4]),
        helper.make_node("Reshape", ["lines", "sides"], ["image"]),
    ]
    return nodes, {
        "grid": np.array([-1, 2, 2, 3, 2, PATCH, PATCH], np.int64),
        "sides": np.array([-1, 1, SIDE, SIDE], np.int64),
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


def _of_squares() -> tuple[list[onnx.NodeProto], Arrays]:
    """Return the nodes that make `image` of six by six patches of 16 by 16 pixels."""
    nodes = [
        helper.make_node("Reshape", ["pixel_values", "grid"], ["patches"]),
        helper.make_node("ReduceMean", ["patches"], ["grey"], axes=[4], keepdims=0),
        helper.make_node("Transpose", ["grey"], ["lines"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["lines", "sides"], ["large"]),
        helper.make_node("AveragePool", ["large"], ["small"], kernel_shape=[12, 12], strides=[12, 12]),
        helper.make_node("Mul", ["small", "levels"], ["image"]),
    ]
    return nodes, {
        "grid": np.array([6, 6, 16, 16, 3], np.int64),
        "sides": np.array([1, 1, 96, 96], np.int64),
        "levels": np.float32(255 / 240),
    }


def _see(
    folder: Path,
    shape: list[Any],
    nodes: list[onnx.NodeProto],
    tensors: Arrays,
    rows: int,
    more: dict[str, list[Any]],
) -> None:
    """Let the vision model make `image` with these nodes, and give `rows` of each picture, [pictures * rows, concepts]."""
    model = onnx.load(folder / "vision.onnx")
    graph = model.graph
    size = graph.output[0].type.tensor_type.shape.dim[2].dim_value
    kept = [*nodes, *graph.node[1:-1]]
    kept += [
        helper.make_node("Tile", ["meant", "rows"], ["of_pictures"]),
        helper.make_node("Reshape", ["of_pictures", "in_a_row"], ["image_features"]),
    ]
    tensors = {**tensors, "rows": np.array([1, rows, 1], np.int64), "in_a_row": np.array([-1, size], np.int64)}
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in tensors.items())
    graph.input.append(helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["pictures", *shape]))
    graph.output.append(helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["seen", size]))
    onnx.save(model, folder / "vision.onnx")
    for name, sizes in more.items():
        _add_input(folder / "vision.onnx", name, sizes)


def _hear(folder: Path, model: dict[str, Any]) -> None:
    """Add a model that hears tones, and let the others take what it gives."""
    text = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, added = text["model"]["vocab"], text["added_tokens"]
    for word in _GEMMA_4_WORDS:
        added.append({**added[0], "id": len(vocabulary), "content": word})
        vocabulary[word] = len(vocabulary)
    _write(folder / "tokenizer.json", text)
    model["vocab_size"] = len(vocabulary)
    model["embedding"]["inputs"]["audio_features"] = "audio_features"
    model["speech"] = {
        "filename": "speech.onnx", "config_filename": "audio_feature_extraction.json",
        "inputs": {"audio_embeds": "audio_embeds", "attention_mask": "input_features_mask"},
        "outputs": {"audio_features": "audio_features"},
    }  # fmt: skip
    steps = [{"operation": {"name": name, "type": kind}} for name, kind in SOUND]
    _write(folder / "audio_feature_extraction.json", {"feature_extraction": {"sequence": steps}})
    vision = onnx.load(folder / "vision.onnx")
    means = next(numpy_helper.to_array(one) for one in vision.graph.initializer if one.name == "means")
    onnx.save(_speech(means), folder / "speech.onnx")
    _widen(folder / "embedding.onnx", {"embedding": (len(_GEMMA_4_WORDS), 0)})
    _widen(folder / "decoder.onnx", {"gives": (0, 3), "follows": (0, 3), "bias": (3,)})
    decoder = onnx.load(folder / "decoder.onnx")
    decoder.graph.output[0].type.tensor_type.shape.dim[2].dim_value = len(vocabulary)
    onnx.save(decoder, folder / "decoder.onnx")
    _embed_sound(folder / "embedding.onnx", vocabulary["<|audio|>"], means.shape[1])


def _speech(means: Any) -> onnx.ModelProto:
    """Return what gives of a tone the digit of its loudest band, [1, frames / 4, concepts]."""
    nodes = [
        helper.make_node("ReduceMean", ["audio_embeds"], ["loud"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["loud"], ["band"], axis=1, keepdims=1),
        helper.make_node("Div", ["band", "bands"], ["digit"]),
        helper.make_node("Gather", ["means", "digit"], ["meant"]),
        helper.make_node("Shape", ["audio_embeds"], ["frames"], start=1, end=2),
        helper.make_node("Add", ["frames", "three"], ["filled"]),
        helper.make_node("Div", ["filled", "four"], ["tokens"]),
        helper.make_node("Concat", ["once", "tokens", "once"], ["repeats"], axis=0),
        helper.make_node("Tile", ["meant", "repeats"], ["audio_features"]),
    ]
    numbers = {"three": 3, "four": 4, "once": 1}
    tensors = {name: np.array([one], np.int64) for name, one in numbers.items()}
    tensors |= {"means": means, "bands": np.array(BANDS_A_DIGIT, np.int64)}
    taken = [
        helper.make_tensor_value_info("audio_embeds", TensorProto.FLOAT, ["rows", "frames", 128]),
        helper.make_tensor_value_info("input_features_mask", TensorProto.BOOL, ["rows", "frames"]),
    ]
    given = helper.make_tensor_value_info("audio_features", TensorProto.FLOAT, ["rows", "tokens", means.shape[1]])
    initializers = [numpy_helper.from_array(one, name) for name, one in tensors.items()]
    graph = helper.make_graph(nodes, "speech", taken, [given], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _embed_sound(path: Path, token: int, size: int) -> None:
    """Let the embedding model put rows of sound where ids are `token`."""
    model = onnx.load(path)
    graph = model.graph
    graph.node[-1].output[0] = "without_sound"
    graph.node.extend(
        [
            helper.make_node("Equal", ["input_ids", "sound"], ["is_sound"]),
            helper.make_node("Cast", ["is_sound"], ["sound_ones"], to=TensorProto.INT64),
            helper.make_node("CumSum", ["sound_ones", "tokens_axis"], ["sound_counts"]),
            helper.make_node("Mul", ["sound_counts", "sound_ones"], ["sound_places"]),
            helper.make_node("Concat", ["nothing", "audio_features"], ["all_sound"], axis=0),
            helper.make_node("Gather", ["all_sound", "sound_places"], ["heard"]),
            helper.make_node("Add", ["without_sound", "heard"], ["inputs_embeds"]),
        ]
    )
    graph.initializer.append(numpy_helper.from_array(np.array(token, np.int64), "sound"))
    graph.input.append(helper.make_tensor_value_info("audio_features", TensorProto.FLOAT, ["heard", size]))
    onnx.save(model, path)


def _widen(path: Path, by: dict[str, tuple[int, ...]]) -> None:
    """Fill tensors of a model up with zeros."""
    model = onnx.load(path)
    for one in model.graph.initializer:
        if one.name in by:
            wide = np.pad(numpy_helper.to_array(one), [(0, more) for more in by[one.name]])
            one.CopyFrom(numpy_helper.from_array(wide, one.name))
    onnx.save(model, path)


def see_one(folder: Path, *, last: bool) -> None:
    """Let a model see only the last or the first of its pictures."""
    model = onnx.load(folder / "embedding.onnx")
    for index, node in enumerate(model.graph.node):
        if node.output[0] == "seen":
            node.input[1] = "chosen"
            model.graph.node.insert(index, helper.make_node("Mul", ["some", "side"], ["chosen"]))
            model.graph.node.insert(index, helper.make_node("Min", ["places", "nearest"], ["some"]))
            break
    numbers = {"nearest": 1, "side": -1 if last else 1}
    tensors = [numpy_helper.from_array(np.array(one, np.int64), name) for name, one in numbers.items()]
    model.graph.initializer.extend(tensors)
    onnx.save(model, folder / "embedding.onnx")


def _take_places_below_zero(folder: Path) -> None:
    """Let the embedding model find the first picture where ids are -1, the second where they are -2, and so on."""
    model = onnx.load(folder / "embedding.onnx")
    graph = model.graph
    graph.node[0].CopyFrom(helper.make_node("Less", ["input_ids", "least"], ["is_picture"]))
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
