"""Text and pairs of texts as tokens: against the tokenizers library itself, and a reranker's own project."""

import importlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

tokenizers = pytest.importorskip("tokenizers")
LETTERS = "abcdefghijklmnopqrstuvwxyz.,é"
TEXT = TensorType("string", (ROWS,))
PAIRS = [("what is a boat", "a boat swims"), ("sea", "the sea is wide, and deep, and cold"), ("é", "a")]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A WordPiece tokenizer as BERT has it, whose words are pieces of one letter."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: place for place, word in enumerate([*special, *LETTERS, *(f"##{one}" for one in LETTERS)])}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106  no password
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    name = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(name))
    return str(name)


def tokenize(path: str, options: dict[str, Any], texts: Sequence[Any]) -> tuple[Column, ...]:
    """Tokenize texts, or pairs of them, and hold what comes out against what the plan was promised."""
    columns = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
    values = {name: np.array(column, dtype=object) for name, column in zip(("text", "pair"), columns, strict=False)}
    types = dict.fromkeys(values, TEXT)
    options = {"tokenizer": path, **options}
    promised = OPERATIONS["tokenize"].infer(options, types)
    made = OPERATIONS["tokenize"].build(options, types)(values)
    for kind, column in zip(promised, made, strict=True):
        assert all(np.asarray(row).dtype == kind.dtype for row in column)
        assert {np.asarray(row).ndim + 1 for row in column} == {len(kind.shape or ())}
    return made


words = st.text(f"{LETTERS} #", max_size=24)


@given(
    texts=st.lists(words, min_size=1, max_size=4) | st.lists(st.tuples(words, words), min_size=1, max_size=4),
    truncate=st.none() | st.integers(4, 20),
    padding=st.sampled_from(["longest", "none", "length"]),
    strategy=st.sampled_from(["longest_first", None]),
)
def test_tokens_are_those_of_the_library(
    path: str, texts: list[Any], truncate: int | None, padding: str, strategy: str | None
) -> None:
    own = tokenizers.Tokenizer.from_file(path)
    options: dict[str, Any] = {"offsets": "characters"}
    if padding == "length":
        truncate = truncate or 9
        own.enable_padding(length=truncate)
        options["length"] = truncate
    elif padding == "longest":
        own.enable_padding()
    else:
        options["padding"] = "none"
    if truncate is not None:
        own.enable_truncation(truncate)
        options |= {} if padding == "length" else {"truncate": truncate}
        options |= {"strategy": strategy} if strategy and isinstance(texts[0], tuple) else {}
    wanted = own.encode_batch(texts)
    for name, column in zip(
        ("ids", "attention_mask", "type_ids", "offsets"), tokenize(path, options, texts)[:4], strict=True
    ):
        for row, one in zip(column, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(row), np.array(getattr(one, name)).reshape(np.shape(row)))
            assert len(row) == len(one.ids)


@pytest.mark.parametrize(("pad", "filled"), [("<pad>", 4), ("</s>", 4), ("x", 0)])
def test_rows_are_filled_up_with_the_token_that_is_for_that(tmp_path: Path, pad: str, filled: int) -> None:
    """The file says nothing about padding; if its vocabulary has no such token, 0 stands where the mask is 0."""
    words = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, pad: 4}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106  no password
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "tokenizer.json"))
    ids, mask, _ = tokenize(str(tmp_path / "tokenizer.json"), {}, ["a b c", "a"])
    assert (ids[1].tolist(), mask[1].tolist()) == ([1, filled, filled], [1, 0, 0])


def test_offsets_are_places_in_the_text_of_the_type(path: str) -> None:
    ids, _, types, offsets, sequences = tokenize(path, {"offsets": "characters"}, [("ab éc", "de")])
    tokenizer = tokenizers.Tokenizer.from_file(path)
    texts = ("ab éc", "de")
    for token, kind, (begin, end) in zip(ids[0], types[0], offsets[0], strict=True):
        if end:
            assert texts[kind][begin:end] == tokenizer.id_to_token(int(token)).removeprefix("##")
    of_text = [-1 if begin == end else kind for kind, (begin, end) in zip(types[0], offsets[0], strict=True)]
    assert list(sequences[0]) == of_text


@pytest.mark.parametrize(("strategy", "kept"), [("only_first", (2, 3)), ("only_second", (4, 1))])
def test_the_text_that_is_cut_is_chosen(path: str, strategy: str, kept: tuple[int, int]) -> None:
    _, _, types = tokenize(path, {"truncate": 8, "strategy": strategy}, [("abcd", "efg")])
    assert (list(types[0]).count(0) - 2, list(types[0]).count(1) - 1) == kept


def test_a_pair_that_cannot_be_cut_fails_its_row(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be tokenized"):
        tokenize(path, {"truncate": 8, "strategy": "only_second"}, [("abcdefghijkl", "efg")])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"length": 8, "truncate": 6}, "take truncate or length away"),
        ({"length": 8, "padding": "none"}, "take padding or length away"),
        ({"truncate": 8, "strategy": "only_first"}, "needs pair"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(path: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InapplicableError, match=why):
        OPERATIONS["tokenize"].infer({"tokenizer": path, **options}, {"text": TEXT})


def test_a_strategy_without_a_limit_is_refused(path: str) -> None:
    with pytest.raises(InapplicableError, match="truncate or length"):
        OPERATIONS["tokenize"].infer({"tokenizer": path, "strategy": "only_first"}, {"text": TEXT, "pair": TEXT})


RERANK = """\
version: 1
models: {rank: {path: rank.onnx}}
pipelines:
  rerank:
    steps:
      - do: tokenize
        in: {text: $query, pair: $passage, tokenizer: tokenizer.json, truncate: 24}
        out: [ids, mask, types]
      - {run: rank, in: {input_ids: $ids, attention_mask: $mask, token_type_ids: $types}, out: {logits: logits}}
    outputs: {logits: $logits, ids: $ids}
jobs:
  run:
    pipeline: rerank
    input: {path: pairs.jsonl, key: [row]}
    batch: {size: 2}
    postprocess: [{sigmoid: logits, as: score}]
    output: {path: out}
"""


def ranking_model(path: Path) -> None:
    """The sum of a table's values by id, of the tokens that the mask keeps, of which those of the pair count twice."""
    sizes = (TensorProto.INT64, ["batch", "tokens"])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["values"]),
        helper.make_node("Add", ["token_type_ids", "one"], ["counted"]),
        helper.make_node("Mul", ["counted", "attention_mask"], ["weights"]),
        helper.make_node("Cast", ["weights"], ["factors"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["values", "factors"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axis"], ["logits"], keepdims=1),
    ]
    weights: dict[str, np.ndarray] = {
        "table": np.random.default_rng(2).normal(0, 0.2, 100).astype(np.float32),
        "one": np.array(1, np.int64),
        "axis": np.array([1], np.int64),
    }
    names = ("input_ids", "attention_mask", "token_type_ids")
    save_model(path, nodes, dict.fromkeys(names, sizes), {"logits": (TensorProto.FLOAT, ["batch", 1])}, weights)


def rerank(folder: Path, cli: Cli, path: str) -> list[dict[str, Any]]:
    ranking_model(folder / "rank.onnx")
    (folder / "tokenizer.json").write_bytes(Path(path).read_bytes())
    lines = [json.dumps({"query": query, "passage": passage}) for query, passage in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    (folder / "m.yaml").write_text(RERANK)
    done = cli("apply", folder / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    return read_rows(folder / "out")


@pytest.mark.slow
def test_pairs_of_columns_reach_a_reranker(cli: Cli, tmp_path: Path, path: str) -> None:
    own = tokenizers.Tokenizer.from_file(path)
    own.enable_truncation(24)
    own.enable_padding()
    table = np.random.default_rng(2).normal(0, 0.2, 100).astype(np.float32)
    for row, batch in zip(rerank(tmp_path, cli, path), (PAIRS[:2], PAIRS[:2], PAIRS[2:]), strict=True):
        one = own.encode_batch(batch)[row["row"] % 2]
        assert row["ids"] == one.ids  # filled up to the longest of its batch
        weights = np.array(one.attention_mask) * (np.array(one.type_ids) + 1)
        assert row["logits"][0] == pytest.approx(float((table[one.ids] * weights).sum()), rel=1e-4)


def test_scores_are_those_of_flashrank(cli: Cli, tmp_path: Path, path: str) -> None:
    """Its Ranker reads the same folder as it reads the one that it would download."""
    flashrank = pytest.importorskip("flashrank")
    config = importlib.import_module("flashrank.Config")
    rows = rerank(tmp_path, cli, path)
    folder = tmp_path / "cache" / config.default_model
    folder.mkdir(parents=True)
    ranking_model(folder / config.model_file_map[config.default_model])
    (folder / "tokenizer.json").write_bytes(Path(path).read_bytes())
    (folder / "config.json").write_text('{"pad_token_id": 0}')
    (folder / "tokenizer_config.json").write_text('{"pad_token": "[PAD]", "model_max_length": 512}')
    (folder / "special_tokens_map.json").write_text(
        '{"pad_token": "[PAD]", "sep_token": "[SEP]", "cls_token": "[CLS]"}'
    )
    ranker = flashrank.Ranker(cache_dir=str(tmp_path / "cache"), max_length=24)
    for (query, passage), row in zip(PAIRS, rows, strict=True):
        (ranked,) = ranker.rerank(flashrank.RerankRequest(query=query, passages=[{"text": passage}]))
        assert row["score"][0] == pytest.approx(float(ranked["score"]), rel=1e-5)


def save_mean_of_ids(folder: Path) -> None:
    """The mean over a text's tokens, those that pad it too."""
    save_model(
        folder / "m.onnx",
        [helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
         helper.make_node("ReduceMean", ["f"], ["y"], axes=[1], keepdims=0)],
        {"ids": (TensorProto.INT64, ["batch", "length"])},
        {"y": (TensorProto.FLOAT, ["batch"])},
    )  # fmt: skip


MEAN_OF_IDS = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  p:
    steps:
      - {do: tokenize, in: {text: $text, tokenizer: tokenizer.json}, out: [ids, mask, types]}
      - {run: m, in: {ids: $ids}, out: {y: y}}
    outputs: {y: $y}
jobs:
  run: {pipeline: p, input: {path: rows.jsonl}, batch: {size: 8}, output: {path: out}}
"""


def apply_to_texts(cli: Cli, folder: Path, path: str, texts: Sequence[str]) -> Any:
    shutil.copy(path, folder / "tokenizer.json")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    (folder / "m.yaml").write_text(MEAN_OF_IDS)
    return cli("apply", folder / "m.yaml", "--new-run")


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1)])
def test_a_model_that_counts_padding_is_refused_wherever_the_longest_text_is(
    cli: Cli, tmp_path: Path, path: str, order: Sequence[int]
) -> None:
    save_mean_of_ids(tmp_path)
    texts = ["a", "b b", "c c c c c c c c"]
    applied = apply_to_texts(cli, tmp_path, path, [texts[place] for place in order])
    assert applied.code == 1
    assert "depend on the rows beside it" in applied.out


def test_the_way_out_that_a_refusal_about_padding_names_works(cli: Cli, tmp_path: Path, path: str) -> None:
    save_mean_of_ids(tmp_path)
    texts = ["a", "b b", "c c c c c c c c"]
    assert "padding: none fills none of them" in apply_to_texts(cli, tmp_path, path, texts).out
    manifest = tmp_path / "m.yaml"
    manifest.write_text(manifest.read_text().replace("tokenizer.json}", "tokenizer.json, padding: none}"))
    assert cli("apply", manifest, "--new-run").code == 0
    many = [row["y"] for row in read_rows(tmp_path / "out")]
    manifest.write_text(manifest.read_text().replace("size: 8", "size: 1"))
    assert cli("apply", manifest, "--new-run").code == 0
    assert [row["y"] for row in read_rows(tmp_path / "out")] == pytest.approx(many)


@pytest.mark.slow
def test_texts_of_one_length_prove_nothing_about_padding(cli: Cli, tmp_path: Path, path: str) -> None:
    save_mean_of_ids(tmp_path)
    assert apply_to_texts(cli, tmp_path, path, ["a b", "b c", "c d"]).code == 0
    applied = apply_to_texts(cli, tmp_path, path, ["a", "b b", "c c c c c c c c"])
    assert applied.code == 1
    assert "depend on the rows beside it" in applied.out
