"""Whisper by `preset: generate` against transformers, token for token, for a model with random weights."""

import importlib.util
import json
import subprocess
import sys
import wave
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

LANGUAGES = ("en", "de", "fr")
MANIFEST = """\
version: 1
name: listener
pipelines:
  hear:
    preset: generate
    from: built
    components: {encoder: {}, decoder: {}}
    session: {intra_op_num_threads: 1}
    SAID
jobs:
  calls:
    pipeline: hear
    input: {path: call.wav, rate: 16000, columns: {audio: samples}}
    output: {path: outbox, format: jsonl}
"""


def make_tokenizer() -> Any:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    lines = ["the pump is warm and loud", "replace the filter"]
    alphabet = sorted(set("".join(lines).replace(" ", "Ġ")))  # without other bytes, any tokens together are a text
    made.train_from_iterator(lines * 50, tokenizers.trainers.BpeTrainer(vocab_size=100, initial_alphabet=alphabet))
    roles = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    made.add_special_tokens([f"<|{one}|>" for one in ("endoftext", "startoftranscript", *LANGUAGES, *roles)])
    made.add_tokens([tokenizers.AddedToken(f"<|{one * 0.02:.2f}|>", normalized=False) for one in range(1501)])
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token=end, eos_token=end, pad_token=end)


def make_checkpoint(folder: Path) -> tuple[Any, Any]:
    """Write a checkpoint of random weights, and return model and tokenizer."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch").manual_seed(0)
    tokenizer = make_tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("endoftext", "startoftranscript")}
    end = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids["endoftext"])
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer), num_mel_bins=80, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, max_target_positions=64,
        decoder_start_token_id=ids["startoftranscript"], init_std=0.3, **end,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=ids["startoftranscript"], is_multilingual=True, max_length=64,
        lang_to_id={f"<|{one}|>": tokenizer.convert_tokens_to_ids(f"<|{one}|>") for one in LANGUAGES},
        task_to_id={one: tokenizer.convert_tokens_to_ids(f"<|{one}|>") for one in ("transcribe", "translate")},
        no_timestamps_token_id=tokenizer.convert_tokens_to_ids("<|notimestamps|>"), suppress_tokens=[1, 2, 7],
        begin_suppress_tokens=[5, ids["endoftext"]], max_initial_timestamp_index=50,
        prev_sot_token_id=tokenizer.convert_tokens_to_ids("<|startofprev|>"), **end,
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    return model, tokenizer


def build(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu", "-i", str(source)]
    subprocess.run([*command, "-o", str(target), "-c", str(target.parent / "cache")], check=True, capture_output=True)


def sound(seconds: int) -> np.ndarray:
    """Return tones and noise as a WAV file has them, int16 [samples]."""
    time = np.arange(seconds * 16_000) / 16_000
    tones = 0.3 * np.sin(2 * np.pi * (300 + 40 * time.astype(int)) * time) * (np.sin(9 * time) > 0)
    noise = 0.01 * np.random.default_rng(seconds).standard_normal(len(time))
    return np.asarray((tones + noise) * 32767, np.int16)


def hear(folder: Path, samples: np.ndarray, said: str) -> dict[str, Any]:
    with wave.open(str(folder / "call.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said))
    result = run_process(["apply", "m.yaml", "--new-run"], cwd=folder)
    assert result.code == 0, result.err
    (row,) = [json.loads(path.read_text()) for path in folder.glob("outbox/part-*")]
    return dict(row)


def never(folder: Path, model: Any, tokens: list[int]) -> None:
    """Let neither side write these tokens."""
    model.generation_config.suppress_tokens = tokens
    model.generation_config.save_pretrained(folder / "built")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def made(folder: Path) -> tuple[Any, Any]:
    found = make_checkpoint(folder / "checkpoint")
    build(folder / "checkpoint", folder / "built")
    return found


def bands(samples: np.ndarray, **more: Any) -> Any:
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=80)
    return extractor(samples / np.float32(32768), sampling_rate=16_000, return_tensors="pt", **more).input_features


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("{language: de}", {"language": "de", "task": "transcribe"}),
        ("{language: fr, translate: true}", {"language": "fr", "task": "translate"}),
        ("{}", {"task": "transcribe"}),
    ],
)
def test_texts_are_those_of_transformers(folder: Path, made: Any, said: str, how: dict[str, Any]) -> None:
    model, tokenizer = made
    samples = sound(5)
    stamps = tokenizer.convert_tokens_to_ids("<|0.00|>")
    never(folder, model, [1, 2, 7, *range(stamps, stamps + 1501)])  # a trained model would not write them either
    row = hear(folder, samples, said.strip("{}").replace(", ", "\n    "))
    tokens = model.generate(bands(samples), return_timestamps=False, **how)[0].tolist()
    text = [one for one in tokens if one < tokenizer.eos_token_id]
    assert len(set(text)) > 3
    assert row["text"] == tokenizer.decode(text).strip()
    if "language" not in how:
        detected = model.detect_language(bands(samples))[0]
        assert f"<|{row['language']}|>" == tokenizer.decode([int(detected)])


@pytest.mark.parametrize("seconds", [30, 47, 70])
def test_segments_of_long_recordings_are_those_of_transformers(folder: Path, made: Any, seconds: int) -> None:
    model, tokenizer = made
    samples = sound(seconds)
    never(folder, model, [1, 2, 7])
    row = hear(folder, samples, "language: en\n    timestamps: true")
    heard = bands(samples, truncation=False, padding="longest")
    found = model.generate(heard, language="en", task="transcribe", return_timestamps=True, return_segments=True)
    expected = [
        (round(float(one["start"]), 2), round(float(one["end"]), 2), text)
        for one in found["segments"][0]
        if (text := tokenizer.decode([t for t in one["tokens"].tolist() if t < tokenizer.eos_token_id]).strip())
    ]
    assert len(expected) > 1
    assert list(zip(row["begin"], row["end"], row["segments"], strict=True)) == expected
