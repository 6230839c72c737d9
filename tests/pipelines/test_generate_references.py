"""`preset: generate` against transformers and PEFT, token for token, for models with random weights; PyTorch makes them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_process

NEEDED = ("onnxruntime_genai", "onnx_ir", "torch", "transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]

LINES = ["the pump is warm", "the valve leaks oil", "replace the filter of the pump", "no fault was found on the line"]
PROMPTS = ["the pump", "replace the", "no fault was found on the line of the pump", "the line is warm"]
NEW = 24

MANIFEST = """\
version: 1
name: writer
pipelines:
  write: {preset: generate, from: built, session: {intra_op_num_threads: 1}, max_new_tokens: 24, SAID}
jobs:
  notes:
    pipeline: write
    input: {path: prompts.jsonl, key: [id]}
    output: {path: outbox, format: jsonl}
"""


def make_tokenizer() -> Any:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    alphabet = sorted(set("".join(LINES).replace(" ", "Ġ")))  # without other bytes, any tokens together are a text
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*special.values()], initial_alphabet=alphabet
    )
    made.train_from_iterator(LINES * 50, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def make_checkpoint(folder: Path, family: str) -> tuple[Any, Any]:
    """Write a checkpoint of random weights, and return model and tokenizer."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch").manual_seed(0)
    tokenizer = make_tokenizer()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        **({"original_max_position_embeddings": 256} if family == "Phi3" else {}),
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def build(source: Path, target: Path, *options: str) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu", "-i", str(source)]
    command += ["-o", str(target), "-c", str(target.parent / "cache"), *options]
    subprocess.run(command, check=True, capture_output=True)


def apply(folder: Path, said: str = "temperature: 0", output: str = "", more: str = "") -> list[dict[str, Any]]:
    lines = [json.dumps({"id": index, "prompt": prompt}) for index, prompt in enumerate(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    manifest = MANIFEST.replace("SAID", said)
    manifest = manifest.replace("path: outbox,", f"path: outbox, {output},") if output else manifest
    (folder / "m.yaml").write_text(manifest + more)
    result = run_process(["apply", "m.yaml", "--new-run"], cwd=folder)
    assert result.code == 0, result.err
    return [json.loads(line) for path in sorted(folder.glob("outbox/part-*")) for line in path.read_text().splitlines()]


def expected(model: Any, tokenizer: Any, prompt: str, **more: Any) -> tuple[str, int]:
    """Return the text of transformers, and how many tokens it has."""
    given = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(**given, max_new_tokens=NEW, do_sample=False, **more)[0][
        given.input_ids.shape[1] :
    ].tolist()
    kept = tokens[: tokens.index(1)] if 1 in tokens else tokens
    return tokenizer.decode(kept, skip_special_tokens=True), len(kept)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Phi3"])
def test_greedy_texts_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model, tokenizer = make_checkpoint(tmp_path / "checkpoint", family)
    build(tmp_path / "checkpoint", tmp_path / "built")
    texts = [expected(model, tokenizer, prompt) for prompt in PROMPTS]
    assert [(row["text"], row["tokens"]) for row in apply(tmp_path)] == texts
    together = apply(
        tmp_path, "temperature: 0, components: {decoder: {row_independence: false}}", more="    batch: {size: 4}\n"
    )
    assert [(row["text"], row["tokens"]) for row in together] == texts


def test_a_repetition_penalty_is_that_of_transformers(tmp_path: Path) -> None:
    model, tokenizer = make_checkpoint(tmp_path / "checkpoint", "Llama")
    build(tmp_path / "checkpoint", tmp_path / "built")
    rows = apply(tmp_path, "temperature: 0, repetition_penalty: 1.3")
    assert [row["text"] for row in rows] == [
        expected(model, tokenizer, prompt, repetition_penalty=1.3)[0] for prompt in PROMPTS
    ]


def test_a_text_of_beams_is_that_of_transformers(tmp_path: Path) -> None:
    model, tokenizer = make_checkpoint(tmp_path / "checkpoint", "Llama")
    build(tmp_path / "checkpoint", tmp_path / "built")
    rows = apply(tmp_path, "num_beams: 3")
    assert [row["text"] for row in rows] == [expected(model, tokenizer, prompt, num_beams=3)[0] for prompt in PROMPTS]


def test_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, tokenizer = make_checkpoint(tmp_path / "checkpoint", "Llama")
    build(tmp_path / "checkpoint", tmp_path / "built")
    rows = apply(tmp_path, "temperature: 0", "columns: [log_probabilities]")
    for prompt, row in zip(PROMPTS, rows, strict=True):
        given = tokenizer(prompt, return_tensors="pt")
        found = model.generate(
            **given, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        tokens = found.sequences[0][given.input_ids.shape[1] :].tolist()
        chances = [
            torch.log_softmax(scores[0], -1)[token].item() for scores, token in zip(found.logits, tokens, strict=True)
        ]
        assert row["log_probabilities"] == pytest.approx(chances[: len(row["log_probabilities"])], abs=1e-4)


def with_adapter_inputs(path: Path) -> None:
    """Make inputs of the matrices of an adapter in a graph, with defaults of rank 0."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    for one in [tensor for tensor in model.graph.initializer if ".lora_" in tensor.name]:
        first = ".lora_A." in one.name
        sizes = [one.dims[0], "rank"] if first else ["rank", one.dims[1]]
        model.graph.input.append(onnx.helper.make_tensor_value_info(one.name, one.data_type, sizes))
        one.CopyFrom(
            onnx.numpy_helper.from_array(
                np.zeros([0 if size == "rank" else size for size in sizes], np.float32), one.name
            )
        )
    onnx.save(model, path)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # as PEFT asks it of transformers
def test_a_row_with_an_adapter_has_the_text_of_the_merged_weights(tmp_path: Path) -> None:
    """The adapter comes from PEFT; a row without it has the text of the base model."""
    peft = pytest.importorskip("peft")
    model, tokenizer = make_checkpoint(tmp_path / "checkpoint", "Llama")
    base = [expected(model, tokenizer, prompt)[0] for prompt in PROMPTS]
    layers = ["q_proj", "v_proj", "o_proj", "down_proj"]
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, lora_alpha=64, target_modules=layers, init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "trained")
    build(tmp_path / "checkpoint", tmp_path / "built", "--extra_options", f"adapter_path={tmp_path / 'trained'}")
    with_adapter_inputs(tmp_path / "built/model.onnx")
    names = ["--map", ".self_attn.=.attn.", "--map", ".weight=.MatMul.weight"]
    command = ["adapter", "convert", "trained", "--model", "built/model.onnx", "-o", "tuned.onnx_adapter", *names]
    converted = run_process(command, cwd=tmp_path)
    assert converted.code == 0, converted.err
    declared = "adapters: {tuned: {path: tuned.onnx_adapter, model: write.decoder}}\n"
    rows = apply(
        tmp_path, more=f"    adapter: {{column: id, map: {{'1': tuned, '2': tuned}}, otherwise: none}}\n{declared}"
    )
    merged = adapted.merge_and_unload().eval()
    tuned = [expected(merged, tokenizer, prompt)[0] for prompt in PROMPTS]
    assert [row["text"] for row in rows] == [base[0], tuned[1], tuned[2], base[3]]
    assert all(one != other for one, other in zip(base, tuned, strict=True))
