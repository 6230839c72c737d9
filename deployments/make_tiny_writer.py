"""Makes the folder of deployments/writer.yaml: a model that turns a maintenance note into JSON, token by token.

It has the shape of a decoder that ONNX Runtime GenAI runs: ids and a mask go in, and logits, and keys and values for
the next token. Nobody trained it. Its weights are written down here: its attention counts the words that were there,
and its one layer knows what follows each word of an answer. So it does one thing, always, and in 100 KB. Two adapters
of rank 1 change what follows an answer.

Run: python deployments/make_tiny_writer.py --out deployments/models/writer --adapters deployments/adapters
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import AdapterFormat, OrtValue

Array = npt.NDArray[np.float32]

CONTEXT = 128
PARTS = ("pump", "valve", "filter", "motor", "belt")
FAULTS = {"leaks": "leak", "leaking": "leak", "hot": "heat", "warm": "heat", "loud": "noise", "blocked": "blockage"}
BEGIN, MIDDLE, CLOSE = '{"part": "', '", "fault": "', '"}'
NO_PART, NO_FAULT = "unknown", "none"
TONES = {"polite": " Please look at it soon.", "urgent": " Look at it now!"}
SPECIAL = ("<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>")
CONSTANTS: dict[str, Any] = {
    "first": np.array([1], np.int64), "two": np.array([2], np.int64), "open": np.array([2**31], np.int64),
    "one": np.float32(1), "tokens_axis": np.int64(1),
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in a byte-level vocabulary, as GPT-2 has it."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def written(text: str) -> str:
    """Return a text as tokens of a byte-level vocabulary have it."""
    letters = byte_letters()
    return "".join(letters[byte] for byte in text.encode())


def make_vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return the ids of tokens, and the merges by which words that the model reads become tokens of their own."""
    words = [written(f"{space}{word}") for word in (*PARTS, *FAULTS) for space in ("", " ")]
    merges = {f"{word[:end]} {word[end]}": None for word in words for end in range(1, len(word))}
    joined = [merge.replace(" ", "", 1) for merge in merges]
    answers = [BEGIN, MIDDLE, CLOSE, NO_PART, NO_FAULT, *sorted(set(FAULTS.values())), *TONES.values()]
    tokens = [*SPECIAL, *byte_letters().values(), *joined, *map(written, answers)]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}, list(merges)


def make_weights(ids: dict[str, int]) -> dict[str, Array]:
    """Return the embedding [tokens, concepts], and what follows a concept, or one that was read before."""
    faults = sorted(set(FAULTS.values()))
    answers = [BEGIN, MIDDLE, CLOSE, NO_PART, NO_FAULT, *PARTS, *faults, *TONES.values()]
    concepts = {name: index for index, name in enumerate([*answers, *(f"read {one}" for one in (*PARTS, *FAULTS))])}
    embedding = np.zeros((len(ids), len(concepts)), np.float32)
    follows = np.zeros((len(concepts), len(ids)), np.float32)
    for name in answers:
        embedding[ids[written(name)], concepts[name]] = 1
    for word in (*PARTS, *FAULTS):
        embedding[ids[written(f" {word}")], concepts[f"read {word}"]] = 1
        embedding[ids[written(word)], concepts[f"read {word}"]] = 1
    after_parts, after_faults = (
        [(one, MIDDLE) for one in (*PARTS, NO_PART)],
        [(one, CLOSE) for one in (*faults, NO_FAULT)],
    )
    ends = [(one, "</s>") for one in (CLOSE, *TONES.values())]
    for before, after in [(BEGIN, NO_PART), (MIDDLE, NO_FAULT), *after_parts, *after_faults, *ends]:
        follows[concepts[before], ids[after if after in ids else written(after)]] = 10
    last = np.zeros((len(concepts), len(PARTS) + len(FAULTS)), np.float32)
    read, gives = np.zeros_like(last), np.zeros((last.shape[1], len(ids)), np.float32)
    for unit, word in enumerate((*PARTS, *FAULTS)):
        last[concepts[BEGIN if word in PARTS else MIDDLE], unit] = 1
        read[concepts[f"read {word}"], unit] = 1
        gives[unit, ids[written(FAULTS.get(word, word))]] = 100 * CONTEXT
    bias = np.zeros(len(ids), np.float32)
    bias[ids[written(BEGIN)]] = 1
    return {"embedding": embedding, "follows": follows, "last": last, "read": read, "gives": gives, "bias": bias}


def make_layer(of: str) -> list[onnx.NodeProto]:
    """Return what makes `given` and `following` of the rows `x` and a mask; `of` has as many tokens as `x`.

    Attention is the same for all tokens: it counts what was read. The layer knows what follows a token that was read.
    """
    return [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["x", "first"], ["new"]),
        helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "new"], ["present.0.value"], axis=2),
        helper.make_node("Squeeze", ["present.0.value", "first"], ["all"]),
        helper.make_node("Unsqueeze", ["mask", "two"], ["column"]),
        helper.make_node("Mul", ["all", "column"], ["seen"]),
        helper.make_node("CumSum", ["seen", "tokens_axis"], ["sums"]),
        helper.make_node("CumSum", ["column", "tokens_axis"], ["counts"]),
        helper.make_node("Max", ["counts", "one"], ["divisor"]),
        helper.make_node("Div", ["sums", "divisor"], ["means"]),
        helper.make_node("Shape", [of], ["length"], start=1, end=2),
        helper.make_node("Neg", ["length"], ["begin"]),
        helper.make_node("Slice", ["means", "begin", "open", "first"], ["bag"]),
        helper.make_node("MatMul", ["x", "last"], ["by_last"]),
        helper.make_node("MatMul", ["bag", "read"], ["by_read"]),
        helper.make_node("Add", ["by_last", "by_read"], ["both"]),
        helper.make_node("Sub", ["both", "one"], ["above"]),
        helper.make_node("Relu", ["above"], ["units"]),
        helper.make_node("MatMul", ["units", "gives"], ["given"]),
        helper.make_node("MatMul", ["x", "follows"], ["following"]),
    ]


def make_model(weights: dict[str, Array]) -> onnx.ModelProto:
    """Return the decoder: logits [rows, tokens, vocabulary] of ids, a mask, and what was kept of tokens before."""
    concepts, vocabulary = weights["follows"].shape
    nothing = {
        "follows.lora_A.weight": np.zeros((concepts, 0), np.float32),
        "follows.lora_B.weight": np.zeros((0, vocabulary), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["x"]),
        *make_layer("input_ids"),
        helper.make_node("MatMul", ["x", "follows.lora_A.weight"], ["low"]),
        helper.make_node("MatMul", ["low", "follows.lora_B.weight"], ["adapted"]),
        helper.make_node("Sum", ["given", "following", "adapted", "bias"], ["logits"]),
    ]
    kept = ["rows", 1, "past", concepts]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["rows", "total"]),
        *(
            helper.make_tensor_value_info(f"past_key_values.0.{one}", TensorProto.FLOAT, kept)
            for one in ("key", "value")
        ),
        helper.make_tensor_value_info("follows.lora_A.weight", TensorProto.FLOAT, [concepts, "rank"]),
        helper.make_tensor_value_info("follows.lora_B.weight", TensorProto.FLOAT, ["rank", vocabulary]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", "length", vocabulary]),
        *(
            helper.make_tensor_value_info(f"present.0.{one}", TensorProto.FLOAT, ["rows", 1, "total", concepts])
            for one in ("key", "value")
        ),
    ]
    tensors = [
        numpy_helper.from_array(np.asarray(one), name) for name, one in {**weights, **nothing, **CONSTANTS}.items()
    ]
    graph = helper.make_graph(nodes, "writer", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Write the folder and the adapters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    ids, merges = make_vocabulary()
    weights = make_weights(ids)
    onnx.save(make_model(weights), arguments.out / "model.onnx")
    concepts = weights["follows"].shape[0]
    for name, value in settings(ids, merges, concepts).items():
        (arguments.out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    arguments.adapters.mkdir(parents=True, exist_ok=True)
    for tone, text in TONES.items():
        save_adapter(arguments.adapters / f"{tone}.onnx_adapter", weights, ids, text)


def save_adapter(path: Path, weights: dict[str, Array], ids: dict[str, int], text: str) -> None:
    """Write an adapter of rank 1, with which a text follows an answer."""
    before = np.zeros((weights["follows"].shape[0], 1), np.float32)
    before[weights["embedding"][ids[written(CLOSE)]].argmax()] = 1
    after = np.zeros((1, len(ids)), np.float32)
    after[0, ids[written(text)]] = 100
    adapter = AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters(
        {
            "follows.lora_A.weight": OrtValue.ortvalue_from_numpy(before),
            "follows.lora_B.weight": OrtValue.ortvalue_from_numpy(after),
        }
    )
    adapter.export_adapter(str(path))


def settings(
    ids: dict[str, int], merges: list[str], concepts: int, special: tuple[str, ...] = SPECIAL
) -> dict[str, Any]:
    """Return the files beside the model by their names, as GenAI's model builder writes them."""
    added = [
        {"id": ids[one], "content": one, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for one in special
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
    }
    ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    search = {"do_sample": False, "max_length": CONTEXT, "num_beams": 1, "past_present_share_buffer": False}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": concepts,
        "hidden_size": concepts,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                   "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value"},
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
    }  # fmt: skip
    model = {"bos_token_id": 0, "context_length": CONTEXT, "decoder": decoder, "eos_token_id": 1, "pad_token_id": 2,
             "type": "llama", "vocab_size": len(ids)}  # fmt: skip
    return {
        "genai_config.json": {"model": model, "search": search},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {**ends, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE},
    }


if __name__ == "__main__":
    main()
