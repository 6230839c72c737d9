"""Makes the folder of deployments/listener.yaml, and its recordings: a model that writes down what is dialled.

It has the shape of Whisper, as ONNX Runtime GenAI runs it. The encoder hears 30 seconds and gives what the decoder
looks at; the decoder writes one token after the other: time stamps, and the keys of a telephone between them. What
tells keys by their two tones is trained here, on tones with noise. How keys become numbers is written down: those of a
number are less than 0.4 seconds apart.

Run: python deployments/make_tiny_listener.py --out deployments/models/listener --calls deployments/calls
"""

import argparse
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms import log_mel

Array = npt.NDArray[Any]

RATE, BANDS, FRAMES, PLACES, CONTEXT = 16_000, 80, 3000, 1500, 448
KEYS, SPACE = "123456789*0#", "Ġ"
"""Keys, and how a byte-level vocabulary writes a space."""
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)
TONE, PAUSE, APART = 0.12, 0.08, 20
"""Seconds of a tone and between two of a number; places of 0.02 seconds without a tone, after which another begins."""
CALLS = {"front": ((0.4, "112"),), "desk": ((0.3, "0800"), (1.8, "5550199")), "hall": ((1.2, "*21#"), (2.8, "42"))}
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|nospeech|>", "<|notimestamps|>")
STAMPS = [f"<|{place * 0.02:.2f}|>" for place in range(PLACES + 1)]
SIZE = 6
"""What the encoder gives for a place: whether a number begins, a key, and a number ends there; and their tokens."""


def tone(key: str, seconds: float, loud: float) -> Array:
    """Return the sound of a key, float64 [samples]."""
    time = np.arange(round(seconds * RATE)) / RATE
    place = KEYS.index(key)
    low, high = (np.sin(2 * np.pi * pitch * time) for pitch in (LOW[place // 3], HIGH[place % 3]))
    return loud * (low + high)


def hum(pitch: float, loud: float) -> Array:
    """Return a sound that is no key, float64 [samples]: a pitch and its harmonics, 0.2 seconds long."""
    time = np.arange(RATE // 5) / RATE
    tones = np.array([np.sin(2 * np.pi * pitch * tone * time) / tone for tone in range(1, 9)])
    return np.asarray(loud * tones.sum(axis=0))


def make_call(numbers: tuple[tuple[float, str], ...], noise: np.random.Generator) -> Array:
    """Return a recording of numbers and when their dialling begins, float64 [samples]."""
    last, number = numbers[-1]
    sound = noise.normal(0, 0.01, round((last + len(number) * (TONE + PAUSE) + 0.6) * RATE))
    for begin, keys in numbers:
        for place, key in enumerate(keys):
            since = round((begin + place * (TONE + PAUSE)) * RATE)
            heard = tone(key, TONE, 0.3)
            sound[since : since + len(heard)] += heard
    return sound


def bands_of(sound: Array) -> Array:
    """Return what Whisper takes of a sound of up to 30 seconds, float32 [1, bands, frames]."""
    options = log_mel.CONTRACT.filled({"log_mel": BANDS, "as": log_mel.WHISPER})
    padded = np.pad(sound, (0, FRAMES * 160 - len(sound)))
    (bands,) = log_mel.build(options, TensorType("float32", (1, None)))(padded[np.newaxis].astype(np.float32))
    return bands


def train() -> tuple[Array, Array]:
    """Return weights [bands, keys and silence] and biases of what tells keys, trained on tones, hums and noise."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(KEYS) + 1), [*[8] * len(KEYS), 46])
    draw.shuffle(labels)
    sound, wanted = [], np.full(FRAMES // 2, len(KEYS))
    for index, label in enumerate(labels):
        piece = draw.normal(0, draw.uniform(0.001, 0.02), 3200)  # 0.2 seconds, or 10 places
        if label < len(KEYS):
            piece[640:2560] += tone(KEYS[label], 0.12, draw.uniform(0.1, 0.4))
            wanted[index * 10 + 2 : index * 10 + 8] = label
        elif draw.uniform() < 0.8:
            piece += hum(draw.uniform(70, 400), draw.uniform(0.02, 0.3))
        sound.append(piece)
    pairs = bands_of(np.concatenate(sound))[0].reshape(BANDS, -1, 2).mean(axis=2)
    seen = pairs.T[: len(labels) * 10] - pairs.T[: len(labels) * 10].mean(axis=1, keepdims=True)
    wanted = np.eye(len(KEYS) + 1)[wanted[: len(labels) * 10]]
    weights, bias = np.zeros((BANDS, len(KEYS) + 1)), np.zeros(len(KEYS) + 1)
    for _ in range(2000):
        scores = np.exp(seen @ weights + bias)
        wrong = scores / scores.sum(axis=1, keepdims=True) - wanted
        weights -= 2 * seen.T @ wrong / len(seen)
        bias -= 2 * wrong.mean(axis=0)
    return weights.astype(np.float32), bias.astype(np.float32)


def make_vocabulary() -> dict[str, int]:
    """Return the ids of tokens: keys, those that begin a word, then what is no text."""
    first = [SPACE + key for key in KEYS]
    return {token: place for place, token in enumerate([SPACE, *KEYS, *first, *SPECIAL, *STAMPS])}


def save(path: Path, nodes: list[Any], ports: tuple[list[Any], list[Any]], constants: dict[str, Any]) -> None:
    """Write a graph of inputs and outputs, each with name, element type and shape."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    inputs, outputs = ([helper.make_tensor_value_info(*one) for one in some] for some in ports)
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def make_encoder(path: Path, ids: dict[str, int]) -> None:
    """Write the encoder: of bands [rows, bands, frames], for each of 1500 places what begins, is and ends there."""
    weights, bias = train()
    node = helper.make_node
    constants: dict[str, Any] = {
        "weights": weights, "bias": bias, "silence": np.int64(len(KEYS)), "yes": np.float32(1), "no": np.float32(0),
        "zero": np.array([0]), "first": np.array([1]), "two": np.array([2]), "last": np.array([PLACES - 1]),
        "places": np.array([PLACES]), "stamps": np.arange(PLACES, dtype=np.float32) + ids[STAMPS[0]],
        "inside": np.array([*(ids[key] for key in KEYS), 0], np.float32),
        "begins": np.array([*(ids[SPACE + key] for key in KEYS), 0], np.float32),
        "one_before": np.array([0, 0, 1, 0, 0, 0]), "some_before": np.array([0, 0, APART, 0, 0, 0]),
        "some_after": np.array([0, 0, 0, 0, 0, APART]),
    }  # fmt: skip
    nodes = [
        node("AveragePool", ["audio_features"], ["pairs"], kernel_shape=[2], strides=[2]),
        node("Transpose", ["pairs"], ["rows"], perm=[0, 2, 1]),
        node("ReduceMean", ["rows"], ["mean"], axes=[2], keepdims=1),
        node("Sub", ["rows", "mean"], ["even"]),
        node("MatMul", ["even", "weights"], ["products"]),
        node("Add", ["products", "bias"], ["scores"]),
        node("ArgMax", ["scores"], ["keys"], axis=2, keepdims=0),
        # a key is there if two places in a row say the same
        node("Slice", ["keys", "first", "places", "first"], ["rest"]),
        node("Slice", ["keys", "last", "places", "first"], ["final"]),
        node("Concat", ["rest", "final"], ["following"], axis=1),
        node("Equal", ["keys", "following"], ["same"]),
        node("Equal", ["keys", "silence"], ["silent"]),
        node("Not", ["silent"], ["loud"]),
        node("And", ["same", "loud"], ["there"]),
        node("Cast", ["there"], ["on"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["on", "first"], ["line"]),
        # it begins where it was not there before
        node("Pad", ["line", "one_before"], ["later"]),
        node("Slice", ["later", "zero", "places", "two"], ["just_before"]),
        node("Sub", ["yes", "just_before"], ["off_before"]),
        node("Mul", ["line", "off_before"], ["key_begins"]),
        # a number begins where no key was there for a while, and ends where none will be; behind the window, one may be
        node("Pad", ["line", "some_before"], ["with_before"]),
        node("MaxPool", ["with_before"], ["was_wide"], kernel_shape=[APART], strides=[1]),
        node("Slice", ["was_wide", "zero", "places", "two"], ["was"]),
        node("Sub", ["yes", "was"], ["quiet_before"]),
        node("Mul", ["key_begins", "quiet_before"], ["number_begins"]),
        node("Pad", ["line", "some_after", "yes"], ["with_after"]),
        node("MaxPool", ["with_after"], ["will_wide"], kernel_shape=[APART], strides=[1]),
        node("Slice", ["will_wide", "zero", "places", "two"], ["will"]),
        node("Sub", ["yes", "will"], ["quiet_after"]),
        node("Mul", ["just_before", "quiet_after"], ["number_ends"]),
        # which tokens say so
        node("Gather", ["inside", "keys"], ["inner"]),
        node("Gather", ["begins", "keys"], ["outer"]),
        node("Squeeze", ["number_begins", "first"], ["is_first"]),
        node("Sub", ["outer", "inner"], ["more"]),
        node("Mul", ["is_first", "more"], ["lead"]),
        node("Add", ["inner", "lead"], ["token"]),
        node("Unsqueeze", ["token", "first"], ["tokens"]),
        node("Mul", ["line", "no"], ["nothing"]),
        node("Add", ["nothing", "stamps"], ["times"]),
        node("Concat", ["number_begins", "key_begins", "number_ends", "times", "tokens", "times"], ["columns"], axis=1),
        node("Transpose", ["columns"], ["hidden_states"], perm=[0, 2, 1]),
        node("Unsqueeze", ["hidden_states", "first"], ["present_key_cross_0"]),
        node("Identity", ["present_key_cross_0"], ["present_value_cross_0"]),
    ]
    kept = ["rows", 1, PLACES, SIZE]
    inputs = [("audio_features", TensorProto.FLOAT, ["rows", BANDS, FRAMES])]
    outputs = [
        ("hidden_states", TensorProto.FLOAT, ["rows", PLACES, SIZE]),
        ("present_key_cross_0", TensorProto.FLOAT, kept),
        ("present_value_cross_0", TensorProto.FLOAT, kept),
    ]
    save(path, nodes, (inputs, outputs), constants)


def make_decoder(path: Path, ids: dict[str, int]) -> None:
    """Write the decoder: it counts the tokens that were written, and the scores are those of the next one."""
    node, size = helper.make_node, len(ids)
    constants: dict[str, Any] = {
        "ones": np.ones((1, 1, 1, SIZE), np.float32), "axes": np.array([1, 3]), "zero": np.array([0]),
        "first": np.array([1]), "two": np.array([2]), "half": np.array([3]), "all": np.array([SIZE]),
        "column": np.int64(0), "line": np.int64(1), "flat": np.array([0, -1]), "size": np.array([size]),
        "plain_id": np.float32(ids["<|notimestamps|>"]), "end_id": np.float32(ids["<|endoftext|>"]),
        "stamp_id": np.float32(ids[STAMPS[0]] - 1), "yes": np.float32(1), "sure": np.float32(30),
        "everything": np.ones((1, 1, 3), np.float32), "of_time": np.array([[[1, 0, 1]]], np.float32),
        "ids": np.arange(size, dtype=np.float32),
    }  # fmt: skip
    nodes = [
        node("Cast", ["input_ids"], ["new"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["new", "axes"], ["new_heads"]),
        node("Mul", ["new_heads", "ones"], ["kept"]),
        node("Concat", ["past_key_self_0", "kept"], ["present_key_self_0"], axis=2),
        node("Concat", ["past_value_self_0", "kept"], ["present_value_self_0"], axis=2),
        node("Gather", ["present_value_self_0", "column"], ["of_head"], axis=3),
        node("Squeeze", ["of_head", "first"], ["read"]),
        # how many tokens are text or stamps, and whether stamps are wanted
        node("Less", ["read", "end_id"], ["are_text"]),
        node("Greater", ["read", "stamp_id"], ["are_stamps"]),
        node("Or", ["are_text", "are_stamps"], ["are_written"]),
        node("Cast", ["are_written"], ["counted"], to=TensorProto.FLOAT),
        node("ReduceSum", ["counted", "first"], ["count"], keepdims=1),
        node("Add", ["count", "yes"], ["wanted"]),
        node("Equal", ["read", "plain_id"], ["is_plain"]),
        node("Cast", ["is_plain"], ["plain_at"], to=TensorProto.FLOAT),
        node("ReduceMax", ["plain_at"], ["plain"], axes=[1], keepdims=1),
        node("Unsqueeze", ["plain", "two"], ["plain_3"]),
        node("Mul", ["plain_3", "of_time"], ["left_out"]),
        node("Sub", ["everything", "left_out"], ["taken"]),
        # what the encoder heard, in its order
        node("Squeeze", ["past_key_cross_0", "first"], ["heard"]),
        node("Slice", ["heard", "zero", "half", "two"], ["flags"]),
        node("Slice", ["heard", "half", "all", "two"], ["tokens"]),
        node("Mul", ["flags", "taken"], ["wanted_flags"]),
        node("Reshape", ["wanted_flags", "flat"], ["flags_flat"]),
        node("Reshape", ["tokens", "flat"], ["tokens_flat"]),
        node("CumSum", ["flags_flat", "line"], ["ranks"]),
        node("Equal", ["ranks", "wanted"], ["is_here"]),
        node("Cast", ["is_here"], ["here"], to=TensorProto.FLOAT),
        node("Mul", ["here", "flags_flat"], ["chosen"]),
        node("Mul", ["chosen", "tokens_flat"], ["token_at"]),
        node("ReduceSum", ["token_at", "first"], ["token"], keepdims=1),
        node("ReduceSum", ["chosen", "first"], ["found"], keepdims=1),
        node("Sub", ["yes", "found"], ["ended"]),
        node("Mul", ["ended", "end_id"], ["end"]),
        node("Add", ["token", "end"], ["next"]),
        node("Equal", ["next", "ids"], ["is_next"]),
        node("Cast", ["is_next"], ["likely"], to=TensorProto.FLOAT),
        node("Mul", ["likely", "sure"], ["scores"]),
        node("Unsqueeze", ["scores", "first"], ["scores_3"]),
        node("Shape", ["input_ids"], ["shape"]),
        node("Concat", ["shape", "size"], ["whole"], axis=0),
        node("Expand", ["scores_3", "whole"], ["logits"]),
    ]
    cross, before, after = ([*["rows", 1], one, SIZE] for one in (PLACES, "past", "total"))
    inputs = [
        ("input_ids", TensorProto.INT32, ["rows", "length"]),
        ("past_key_self_0", TensorProto.FLOAT, before),
        ("past_value_self_0", TensorProto.FLOAT, before),
        ("past_key_cross_0", TensorProto.FLOAT, cross),
        ("past_value_cross_0", TensorProto.FLOAT, cross),
    ]
    outputs = [
        ("logits", TensorProto.FLOAT, ["rows", "length", size]),
        ("present_key_self_0", TensorProto.FLOAT, after),
        ("present_value_self_0", TensorProto.FLOAT, after),
    ]
    save(path, nodes, (inputs, outputs), constants)


def settings(ids: dict[str, int]) -> dict[str, Any]:
    """Return the files beside the models by their names, as GenAI's model builder writes them."""
    added = [
        {"id": ids[one], "content": one, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": one in SPECIAL}
        for one in (*SPECIAL, *STAMPS)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {token: one for token, one in ids.items() if one < ids[SPECIAL[0]]},
                  "merges": [f"{SPACE} {key}" for key in KEYS]},
    }  # fmt: skip
    sizes = {"head_size": SIZE, "hidden_size": SIZE, "num_attention_heads": 1, "num_hidden_layers": 1,
             "num_key_value_heads": 1}  # fmt: skip
    options = {"session_options": {"log_id": "onnxruntime-genai", "provider_options": []}}
    decoder = {
        **options, **sizes, "filename": "decoder.onnx",
        "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_self_%d",
                   "past_value_names": "past_value_self_%d", "cross_past_key_names": "past_key_cross_%d",
                   "cross_past_value_names": "past_value_cross_%d"},
        "outputs": {"logits": "logits", "present_key_names": "present_key_self_%d",
                    "present_value_names": "present_value_self_%d"},
    }  # fmt: skip
    encoder = {
        **options, **sizes, "filename": "encoder.onnx", "inputs": {"audio_features": "audio_features"},
        "outputs": {"encoder_hidden_states": "hidden_states", "cross_present_key_names": "present_key_cross_%d",
                    "cross_present_value_names": "present_value_cross_%d"},
    }  # fmt: skip
    end = ids["<|endoftext|>"]
    model = {"bos_token_id": end, "context_length": CONTEXT, "decoder": decoder, "encoder": encoder,
             "eos_token_id": end, "pad_token_id": end, "type": "whisper", "vocab_size": len(ids)}  # fmt: skip
    token = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    return {
        "genai_config.json": {"model": model, "search": {"do_sample": False, "max_length": CONTEXT, "num_beams": 1}},
        "generation_config.json": {"max_initial_timestamp_index": PLACES},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {**token, "tokenizer_class": "PreTrainedTokenizerFast"},
    }


def main() -> None:
    """Write the folder and the recordings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calls", type=Path, required=True)
    arguments = parser.parse_args()
    ids = make_vocabulary()
    for folder in (arguments.out, arguments.calls):
        folder.mkdir(parents=True, exist_ok=True)
    make_encoder(arguments.out / "encoder.onnx", ids)
    make_decoder(arguments.out / "decoder.onnx", ids)
    for name, value in settings(ids).items():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (arguments.out / name).write_text(text + "\n", encoding="utf-8")
    noise = np.random.default_rng(1)
    for name, numbers in CALLS.items():
        with wave.open(str(arguments.calls / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(1)  # whole numbers of 8 bits, with 128 for silence
            file.setframerate(RATE)
            sound = np.clip(make_call(numbers, noise), -1, 0.99)
            file.writeframes(np.asarray(np.round(sound * 128) + 128, np.uint8).tobytes())


if __name__ == "__main__":
    main()
