"""Small models of the families that `ortdeploy init` knows: shapes, names and metadata of real exports."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.models import Shape, save_model

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
Node = helper.make_node
Tensors = dict[str, tuple[int, Shape]]
Weights = dict[str, np.ndarray]


def with_metadata(path: Path, **metadata: str) -> Path:
    model = onnx.load(str(path))
    helper.set_model_props(model, metadata)
    onnx.save(model, str(path))
    return path


def classifier(path: Path, classes: int = 3, *, softmax: bool = True, open_sizes: bool = False) -> Path:
    """Means of the channels, times weights: [rows, classes]."""
    nodes = [Node("GlobalAveragePool", ["x"], ["mean"]), Node("Flatten", ["mean"], ["flat"])]
    nodes.append(Node("MatMul", ["flat", "w"], ["logits" if softmax else "y"]))
    nodes += [Node("Softmax", ["logits"], ["y"])] if softmax else []
    weights: Weights = {"w": np.random.default_rng(1).standard_normal((3, classes)).astype(np.float32)}
    inputs: Tensors = {"x": (FLOAT, ["n", 3, "h", "w"] if open_sizes else ["n", 3, 32, 32])}
    outputs: Tensors = {"y": (FLOAT, ["n", classes])}
    return save_model(path, nodes, inputs, outputs, weights)


def captcha(path: Path, places: int = 3) -> Path:
    """A softmax for each place of a text, [rows, 5], and features beside them."""
    nodes = [Node("GlobalAveragePool", ["x"], ["mean"]), Node("Flatten", ["mean"], ["features"])]
    random, weights = np.random.default_rng(1), {}
    for place in range(places):
        weights[f"w{place}"] = random.standard_normal((3, 5)).astype(np.float32)
        nodes.append(Node("MatMul", ["features", f"w{place}"], [f"logits{place}"]))
    nodes += [Node("Softmax", [f"logits{place}"], [f"place-{place}"]) for place in range(places)]
    outputs: Tensors = {f"place-{place}": (FLOAT, ["n", 5]) for place in range(places)}
    return save_model(
        path, nodes, {"x": (FLOAT, ["n", 3, 32, 32])}, {**outputs, "features": (FLOAT, ["n", 3])}, weights
    )


def yolo(path: Path, *, version: str = "YOLOv8n", decided: bool = False) -> Path:
    """A detector that finds one box of the second class in every picture, in the form of ultralytics' exports."""
    head = np.zeros((1, 6, 21), np.float32)
    head[0, :4, 0], head[0, 5, 0] = (32, 32, 16, 24), 0.9
    if decided:
        head = np.zeros((1, 300, 6), np.float32)
        head[0, 0] = 24, 20, 40, 44, 0.9, 1
    nodes = [
        Node("ReduceMin", ["images"], ["least"], axes=[1, 2, 3], keepdims=0),
        Node("Mul", ["least", "zero"], ["nothing"]),
        Node("Unsqueeze", ["nothing", "axes"], ["column"]),
        Node("Add", ["column", "head"], ["output0"]),
    ]
    weights: Weights = {"zero": np.zeros(1, np.float32), "axes": np.array([1, 2], np.int64), "head": head}
    outputs: Tensors = {"output0": (FLOAT, ["batch", *head.shape[1:]])}
    save_model(path, nodes, {"images": (FLOAT, ["batch", 3, 64, 64])}, outputs, weights)
    names = "{0: 'cat', 1: \"dog's toy\"}"
    return with_metadata(path, description=f"Ultralytics {version} model", task="detect", stride="32", names=names)


def yolox(path: Path, *, decoded: bool = False) -> Path:
    """A detector that finds one box of the second class, with the middle in cell 3, 2 of 16 pixels, as YOLOX exports do."""
    width, height = np.log([1.5, 2.0])
    head = np.zeros((1, 7, 84), np.float32)  # 64 cells of 8 pixels, 16 of 16, 4 of 32
    head[0, :, 64 + 2 * 4 + 3] = 0.25, 0.5, width, height, 0.9, 0.1, 0.9
    if decoded:
        head[0, :4, 64 + 2 * 4 + 3] = (3.25 * 16, 2.5 * 16, *np.log([24, 32]))
    nodes = [
        Node("ReduceMin", ["images"], ["least"], axes=[1, 2, 3], keepdims=0),
        Node("Mul", ["least", "zero"], ["nothing"]),
        Node("Unsqueeze", ["nothing", "axes"], ["column"]),
        Node("Add", ["column", "head"], ["heads"]),
        Node("Transpose", ["heads"], ["turned" if decoded else "output"], perm=[0, 2, 1]),
    ]
    weights: Weights = {"zero": np.zeros(1, np.float32), "axes": np.array([1, 2], np.int64), "head": head}
    if decoded:
        nodes += [
            Node("Split", ["turned", "parts"], ["middles", "sizes", "scores"], axis=2),
            Node("Exp", ["sizes"], ["sides"]),
            Node("Concat", ["middles", "sides", "scores"], ["output"], axis=2),
        ]
        weights["parts"] = np.array([2, 2, 3], np.int64)
    outputs: Tensors = {"output": (FLOAT, [1, 84, 7])}
    return save_model(path, nodes, {"images": (FLOAT, [1, 3, 64, 64])}, outputs, weights)


def text_detector(path: Path) -> Path:
    """A map of heat as large as the picture, by a transposed convolution and a sigmoid."""
    nodes = [
        Node("Conv", ["x", "down"], ["small"], strides=[2, 2]),
        Node("ConvTranspose", ["small", "up"], ["large"], strides=[2, 2]),
        Node("Sigmoid", ["large"], ["heat"]),
    ]
    weights: Weights = {"down": np.full((1, 3, 2, 2), 0.5, np.float32), "up": np.full((1, 1, 2, 2), 4, np.float32)}
    inputs: Tensors = {"x": (FLOAT, ["n", 3, "h", "w"])}
    outputs: Tensors = {"heat": (FLOAT, ["n", 1, "h2", "w2"])}
    return save_model(path, nodes, inputs, outputs, weights)


def text_recogniser(path: Path, letters: str | None = "0123456789ABC") -> Path:
    """Scores of letters for every fourth column of a line that is 48 pixels high; a blank before, a space behind."""
    classes = 15
    nodes = [
        Node("Conv", ["x", "w"], ["scores"], strides=[48, 4]),
        Node("Squeeze", ["scores", "axes"], ["columns"]),
        Node("Transpose", ["columns"], ["logits"], perm=[0, 2, 1]),
        Node("Softmax", ["logits"], ["y"], axis=2),
    ]
    random = np.random.default_rng(3)
    weights: Weights = {
        "w": random.standard_normal((classes, 3, 48, 4)).astype(np.float32),
        "axes": np.array([2], np.int64),
    }
    save_model(path, nodes, {"x": (FLOAT, ["n", 3, 48, "w"])}, {"y": (FLOAT, ["n", "t", classes])}, weights)
    return path if letters is None else with_metadata(path, character="\n".join(letters))


def listener(path: Path) -> Path:
    """A detector that takes 512 samples and 64 of before, a state and a rate, and is above a half where it is loud."""
    nodes = [
        Node("Abs", ["input"], ["loud"]),
        Node("ReduceMax", ["loud"], ["peak"], axes=[1], keepdims=1),
        Node("Cast", ["sr"], ["rate"], to=FLOAT),
        Node("Div", ["rate", "usual"], ["times"]),
        Node("Mul", ["peak", "times"], ["output"]),
        Node("Slice", ["input", "first", "last", "axis"], ["window"]),
        Node("Reshape", ["window", "to"], ["same"]),
        Node("ReduceMean", ["same"], ["mean"], axes=[1], keepdims=1),
        Node("Mul", ["mean", "zero"], ["nothing"]),
        Node("Add", ["state", "nothing"], ["stateN"]),
    ]
    weights: Weights = {
        "usual": np.array(16000, np.float32),
        "zero": np.zeros(1, np.float32),
        "to": np.array([-1, 576], np.int64),
        "first": np.array([0], np.int64),
        "last": np.array([576], np.int64),
        "axis": np.array([1], np.int64),
    }
    inputs: Tensors = {"input": (FLOAT, ["batch", "sequence"]), "state": (FLOAT, [2, "batch", 8]), "sr": (INT64, [])}
    outputs: Tensors = {"output": (FLOAT, ["batch", 1]), "stateN": (FLOAT, [2, "batch", 8])}
    return save_model(path, nodes, inputs, outputs, weights)


def fixed_listener(path: Path, window: int) -> Path:
    """A detector that takes windows of one size in turn, with two states, as Silero's for sequences."""
    nodes = [
        Node("Abs", ["input"], ["loud"]),
        Node("ReduceMax", ["loud"], ["speech"], axes=[1], keepdims=0),
        Node("Identity", ["h"], ["hn"]),
        Node("Identity", ["c"], ["cn"]),
    ]
    inputs: Tensors = {"input": (FLOAT, ["n", window]), "h": (FLOAT, [1, 1, 8]), "c": (FLOAT, [1, 1, 8])}
    outputs: Tensors = {"speech": (FLOAT, ["n"]), "hn": (FLOAT, [1, 1, 8]), "cn": (FLOAT, [1, 1, 8])}
    return save_model(path, nodes, inputs, outputs, {})


def table(path: Path, columns: int = 3, *, rows_in_outputs: bool = True) -> Path:
    """A linear classifier of ai.onnx.ml with a map of probabilities, as scikit-learn's converters write it."""
    weights = np.random.default_rng(4).standard_normal((2, columns)).astype(np.float32)
    classify = Node(
        "LinearClassifier",
        ["X"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[float(one) for one in weights.ravel()],
        intercepts=[0.0, 0.0],
        classlabels_ints=[0, 1],
        post_transform="SOFTMAX",
    )
    zipped = Node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, [])))
    graph = helper.make_graph(
        [classify, zipped],
        "g",
        [helper.make_tensor_value_info("X", FLOAT, [None, columns])],
        [
            helper.make_tensor_value_info("label", INT64, [None if rows_in_outputs else 1]),
            helper.make_value_info("probabilities", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def encoder(path: Path, *, output: str = "last_hidden_state", width: int = 6) -> Path:
    """Embeddings of tokens; `logits`: their mean by a mask, as scores of `width` classes."""
    nodes = [Node("Gather", ["table", "input_ids"], ["each"])]
    shape: list[int | str | None] = ["batch", "sequence", width]
    if output == "logits":
        nodes += [
            Node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            Node("Unsqueeze", ["mask", "last"], ["column"]),
            Node("Mul", ["each", "column"], ["kept"]),
            Node("ReduceSum", ["kept", "one"], [output], keepdims=0),
        ]
        shape = ["batch", width]
    else:
        nodes += [
            Node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            Node("Unsqueeze", ["mask", "last"], ["column"]),
            Node("Mul", ["each", "column"], [output]),
        ]
    rows = np.random.default_rng(5).standard_normal((40, width)).astype(np.float32)
    weights: Weights = {"table": rows, "last": np.array([-1], np.int64), "one": np.array([1], np.int64)}
    inputs: Tensors = {name: (INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")}
    save_model(path, nodes, inputs, {output: (FLOAT, shape)}, weights)
    tokenizer_file(path.with_name("tokenizer.json"))
    return path


def tokenizer_file(path: Path) -> None:
    """Write the tokenizer of a small vocabulary of words."""
    words = ["[PAD]", "[UNK]", "the", "parcel", "arrived", "where", "is", "my", "a", "cat", "it", "rains"]
    known = {word: number for number, word in enumerate(words)}
    document: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": known, "unk_token": "[UNK]"},
    }
    path.write_text(json.dumps(document))


def hearer(path: Path, *, samples: int | None = None, lengths: bool = False) -> Path:
    """The mean of a recording, [rows, 1]; with `lengths`, times what it is told of the recording's length."""
    nodes = [Node("ReduceMean", ["waveforms"], ["mean" if lengths else "y"], axes=[1])]
    inputs: Tensors = {"waveforms": (FLOAT, ["n", samples or "length"])}
    if lengths:
        inputs["waveforms_lens"] = (INT64, ["n"])
        nodes += [Node("Cast", ["waveforms_lens"], ["counted"], to=FLOAT)]
        nodes += [Node("Unsqueeze", ["counted", "one"], ["column"]), Node("Mul", ["mean", "column"], ["y"])]
    return save_model(path, nodes, inputs, {"y": (FLOAT, ["n", 1])}, {"one": np.array([1], np.int64)})


def speller(path: Path, classes: int = 5) -> Path:
    """The class of each hundredth of a second, [rows, frames, classes]: 0 where it is quiet, else its loudness."""
    nodes = [
        Node("Reshape", ["input_values", "frames"], ["framed"]),
        Node("ReduceMax", ["framed"], ["peak"], axes=[2], keepdims=1),
        Node("Sub", ["peak", "levels"], ["far"]),
        Node("Abs", ["far"], ["near"]),
        Node("Neg", ["near"], ["logits"]),
    ]
    weights: Weights = {
        "frames": np.array([0, -1, 160], np.int64),
        "levels": np.arange(classes, dtype=np.float32) / classes,
    }
    outputs: Tensors = {"logits": (FLOAT, ["n", None, classes])}
    return save_model(path, nodes, {"input_values": (FLOAT, ["n", "length"])}, outputs, weights)


def sound_classifier(path: Path, classes: int = 3) -> Path:
    """Logits of a recording, [rows, classes]: its mean square for the first class, and 0.5 for the others."""
    nodes = [
        Node("Mul", ["input_values", "input_values"], ["square"]),
        Node("ReduceMean", ["square"], ["power"], axes=[1]),
        Node("Mul", ["power", "first"], ["some"]),
        Node("Add", ["some", "others"], ["logits"]),
    ]
    first = np.eye(1, classes, dtype=np.float32)
    weights: Weights = {"first": first, "others": (1 - first) / 2}
    inputs: Tensors = {"input_values": (FLOAT, ["n", "length"])}
    return save_model(path, nodes, inputs, {"logits": (FLOAT, ["n", classes])}, weights)


def channel_hearer(path: Path, shape: Shape, name: str = "wav") -> Path:
    """The largest sample of a recording that has an axis of one channel, [rows, 1]."""
    nodes = [Node("ReduceMax", [name], ["most"], axes=[1, 2], keepdims=0), Node("Unsqueeze", ["most", "one"], ["y"])]
    return save_model(path, nodes, {name: (FLOAT, shape)}, {"y": (FLOAT, ["n", 1])}, {"one": np.array([1], np.int64)})


def forecaster(path: Path, shape: Shape) -> Path:
    """What it takes, as it is: lines of a table."""
    return save_model(path, [Node("Identity", ["past"], ["y"])], {"past": (FLOAT, shape)}, {"y": (FLOAT, shape)})


def file_typer(path: Path) -> Path:
    """Which of two types a file is, by the mean of its bytes: in the form of Magika, with its settings beside it."""
    nodes = [
        Node("Cast", ["bytes"], ["numbers"], to=FLOAT),
        Node("ReduceMean", ["numbers"], ["mean"], axes=[1]),
        Node("Mul", ["mean", "w"], ["raw"]),
        Node("Softmax", ["raw"], ["target_label"]),
    ]
    inputs: Tensors = {"bytes": (TensorProto.INT32, ["batch", 24])}
    weights: Weights = {"w": np.array([[0.01, -0.01]], np.float32)}
    save_model(path, nodes, inputs, {"target_label": (FLOAT, ["batch", 2])}, weights)
    settings = {"beg_size": 16, "end_size": 8, "block_size": 64, "padding_token": 256}
    path.with_name("config.min.json").write_text(json.dumps(settings | {"target_labels_space": ["high", "low"]}))
    return path


def wake_word(path: Path) -> Path:
    """A word heard in three embeddings, and the two networks that make them, in the form of openWakeWord."""
    spectrum = [
        Node("Slice", ["input", "from", "to", "axes"], ["most"]),
        Node("Reshape", ["most", "spectrum"], ["output"]),
    ]
    cut: Weights = {
        "from": np.array([0], np.int64),
        "to": np.array([160 * 32], np.int64),
        "axes": np.array([1], np.int64),
        "spectrum": np.array([0, 1, 160, 32], np.int64),
    }
    heard: Tensors = {"input": (FLOAT, ["n", "samples"])}
    folder = path.parent
    save_model(folder / "melspectrogram.onnx", spectrum, heard, {"output": (FLOAT, ["n", 1, "frames", 32])}, cut)
    embed = [
        Node("ReduceMean", ["input_1"], ["mean"], axes=[1, 2]),
        Node("Mul", ["mean", "w"], ["conv2d_19"]),
    ]
    weights: Weights = {"w": np.ones((1, 1, 1, 96), np.float32)}
    taken: Tensors = {"input_1": (FLOAT, ["n", 76, 32, 1])}
    given: Tensors = {"conv2d_19": (FLOAT, ["n", 1, 1, 96])}
    save_model(folder / "embedding_model.onnx", embed, taken, given, weights)
    word = [
        Node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
        Node("Reshape", ["mean", "to"], ["flat"]),
        Node("Sigmoid", ["flat"], ["y"]),
    ]
    to: Weights = {"to": np.array([-1, 1], np.int64)}
    return save_model(path, word, {"x": (FLOAT, [1, 3, 96])}, {"y": (FLOAT, [1, 1])}, to)


def token_classifier(path: Path, output: str = "logits", classes: int = 5) -> Path:
    """Scores of tags for each token, [batch, sequence, classes], as BertForTokenClassification exports them."""
    rows = np.random.default_rng(6).standard_normal((40, classes)).astype(np.float32)
    nodes = [Node("Gather", ["table", "input_ids"], ["each"])]
    nodes += _kept_tokens(output)
    inputs: Tensors = {name: (INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")}
    outputs: Tensors = {output: (FLOAT, ["batch", "sequence", classes])}
    save_model(path, nodes, inputs, outputs, {"table": rows, "last": np.array([-1], np.int64)})
    tokenizer_file(path.with_name("tokenizer.json"))
    return path


def answer_finder(path: Path) -> Path:
    """Where an answer begins and ends, [batch, sequence] twice, as BertForQuestionAnswering exports it."""
    rows = np.random.default_rng(7).standard_normal((40, 2)).astype(np.float32)
    nodes = [Node("Gather", ["table", "input_ids"], ["each"]), *_kept_tokens("kept")]
    nodes += [Node("Split", ["kept"], ["a", "b"], axis=2)]
    nodes += [Node("Squeeze", ["a", "last"], ["start_logits"]), Node("Squeeze", ["b", "last"], ["end_logits"])]
    inputs: Tensors = {name: (INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")}
    outputs: Tensors = {name: (FLOAT, ["batch", "sequence"]) for name in ("start_logits", "end_logits")}
    save_model(path, nodes, inputs, outputs, {"table": rows, "last": np.array([2], np.int64)}, opset=17)
    tokenizer_file(path.with_name("tokenizer.json"))
    return path


def _kept_tokens(output: str) -> list[onnx.NodeProto]:
    return [
        Node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
        Node("Unsqueeze", ["mask", "last"], ["column"]),
        Node("Mul", ["each", "column"], [output]),
    ]


def between(path: Path) -> Path:
    """Values [batch, 4] held between two scalars, which are inputs."""
    inputs: Tensors = {"x": (FLOAT, ["batch", 4]), "low": (FLOAT, []), "high": (FLOAT, [])}
    return save_model(path, [Node("Clip", ["x", "low", "high"], ["y"])], inputs, {"y": (FLOAT, ["batch", 4])})


def band(path: Path) -> Path:
    """The level of one recording between two scalars: NaN where they are equal, as those that are made up are."""
    nodes = [
        Node("Sub", ["fmax", "fmin"], ["width"]),
        Node("Div", ["width", "width"], ["ratio"]),
        Node("Mul", ["audio", "ratio"], ["level"]),
    ]
    inputs: Tensors = {"audio": (FLOAT, [1, "samples"]), "fmin": (FLOAT, []), "fmax": (FLOAT, [])}
    return save_model(path, nodes, inputs, {"level": (FLOAT, [1, "samples"])})


def wide_hearer(path: Path, window: int = 16_000, channels: int = 6_000) -> Path:
    """The mean of windows of recordings, [n], with hundreds of megabytes of activations for each."""
    nodes = [
        Node("Unsqueeze", ["wav", "one"], ["y"]),
        Node("Expand", ["y", "many"], ["z"]),
        Node("Sigmoid", ["z"], ["s"]),
        Node("ReduceMean", ["s"], ["score"], axes=[1, 2], keepdims=0),
    ]
    weights: Weights = {"one": np.array([1], np.int64), "many": np.array([1, channels, 1], np.int64)}
    return save_model(path, nodes, {"wav": (FLOAT, ["n", window])}, {"score": (FLOAT, ["n"])}, weights)


def ultralytics(path: Path, task: str) -> Path:
    """An export of one of ultralytics' tasks: boxes beside what the task gives, for one box of the second class."""
    further = {"segment": 32, "pose": 51, "obb": 1}[task]
    head = np.zeros((1, 6 + further, 84), np.float32)
    head[0, :4, 0], head[0, 5, 0] = (32, 32, 16, 24), 0.9
    if task == "pose":
        head[0, 6:9, 0] = 30, 25, 0.5
    if task == "segment":
        head[0, 6, 0] = 1
    nodes = [
        Node("ReduceMin", ["images"], ["least"], axes=[1, 2, 3], keepdims=0),
        Node("Mul", ["least", "zero"], ["nothing"]),
        Node("Unsqueeze", ["nothing", "axes"], ["column"]),
        Node("Add", ["column", "head"], ["output0"]),
    ]
    weights: Weights = {"zero": np.zeros(1, np.float32), "axes": np.array([1, 2], np.int64), "head": head}
    outputs: Tensors = {"output0": (FLOAT, ["batch", *head.shape[1:]])}
    if task == "segment":
        nodes += [Node("Unsqueeze", ["column", "axes"], ["plane"]), Node("Add", ["plane", "protos"], ["output1"])]
        nodes[-2].input[1] = "third"
        weights |= {"third": np.array([3], np.int64), "protos": np.ones((1, 32, 16, 16), np.float32)}
        outputs["output1"] = (FLOAT, ["batch", 32, 16, 16])
    save_model(path, nodes, {"images": (FLOAT, ["batch", 3, 64, 64])}, outputs, weights)
    points = {"kpt_shape": "[17, 3]"} if task == "pose" else {}
    names = "{0: 'cat', 1: 'dog'}"
    return with_metadata(path, description="Ultralytics YOLO11n", task=task, stride="32", names=names, **points)


def fixed_batch(path: Path, rows: int = 8) -> Path:
    """Twice the values of exactly some rows, [rows, 4]."""
    nodes = [Node("Add", ["x", "x"], ["y"])]
    return save_model(path, nodes, {"x": (FLOAT, [rows, 4])}, {"y": (FLOAT, [rows, 4])})


def detr(path: Path, classes: int = 3, *, open_sizes: bool = False) -> Path:
    """Five boxes with scores of some classes and none, the third of them sure of the second class, as DETR has them."""
    logits, boxes = np.zeros((1, 5, classes + 1), np.float32), np.full((1, 5, 4), 0.5, np.float32)
    logits[..., classes] = 9
    logits[0, 2] = [0, 9] + [0] * (classes - 1)
    boxes[0, 2] = [0.5, 0.25, 0.5, 0.25]
    nodes = [
        *_nothing("pixel_values"),
        Node("Add", ["column", "scores"], ["logits"]),
        Node("Add", ["column", "places"], ["pred_boxes"]),
    ]
    weights: Weights = {**_NOTHING, "axes": np.array([1, 2], np.int64), "scores": logits, "places": boxes}
    outputs: Tensors = {"logits": (FLOAT, ["n", 5, classes + 1]), "pred_boxes": (FLOAT, ["n", 5, 4])}
    sides: Shape = ["h", "w"] if open_sizes else [64, 64]
    return save_model(path, nodes, {"pixel_values": (FLOAT, ["n", 3, *sides])}, outputs, weights)


def torchvision_detector(path: Path, *, rows: bool = True) -> Path:
    """Two boxes of one picture, the first of them sure, as torchvision's detectors give them."""
    nodes = [
        Node("ReduceMin", ["x"], ["least"], keepdims=0),
        Node("Mul", ["least", "zero"], ["nothing"]),
        *(Node("Add", ["nothing", f"{name}_"], [name]) for name in ("boxes", "scores")),
        Node("Identity", ["labels_"], ["labels"]),
    ]
    weights: Weights = {
        "zero": np.zeros((), np.float32),
        "boxes_": np.array([[1, 2, 30, 40], [0, 0, 9, 9]], np.float32),
        "scores_": np.array([0.9, 0.2], np.float32),
        "labels_": np.array([17, 3], np.int64),
    }
    shape: list[int | str | None] = [1, 3, "h", "w"] if rows else [3, 64, 64]
    outputs: Tensors = {"boxes": (FLOAT, ["d", 4]), "labels": (INT64, ["d"]), "scores": (FLOAT, ["d"])}
    return save_model(path, nodes, {"x": (FLOAT, shape)}, outputs, weights)


def segmenter(path: Path) -> Path:
    """Scores of three classes for each pixel: its red, green and blue, as torchvision calls them."""
    nodes = [Node("Identity", ["x"], ["out"])]
    shape: list[int | str | None] = ["n", 3, 32, 48]
    return save_model(path, nodes, {"x": (FLOAT, shape)}, {"out": (FLOAT, shape)})


_NOTHING: Weights = {"zero": np.zeros(1, np.float32)}


def _nothing(picture: str) -> list[onnx.NodeProto]:
    """Return nodes that make `column`, a zero for each row with more axes, which are `axes`."""
    return [
        Node("ReduceMin", [picture], ["least"], axes=[1, 2, 3], keepdims=0),
        Node("Mul", ["least", "zero"], ["nothing"]),
        Node("Unsqueeze", ["nothing", "axes"], ["column"]),
    ]
