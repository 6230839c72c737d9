"""`tokenize` — token ids, mask and type ids of texts or pairs of texts, by a tokenizer.json of Hugging Face.

The file decides about truncation and special tokens, unless `length` or `truncate` is given. The rows of a batch are
padded to the longest row, to `length`, or not at all. Results are int64 [rows, tokens];
with `offsets`, two more say where each token stands in its text, [rows, tokens, 2], and of which text it is.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.files.opening import regular_path
from ortdeploy.operations.protocol import Call, Types, as_column
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.contracts import (
    MASK,
    OPTIONAL,
    TOKEN,
    TOKEN_TYPE,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
)
from ortdeploy.transforms.protocol import Options

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

PACKAGE = Package(module="tokenizers", name="tokenizers", extra="text")

_PADS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "<|padding|>", "<|finetune_right_pad_id|>", "<|endoftext|>", "</s>")
"""Tokens that fill rows up, as vocabularies call them; those that have none of their own use their end."""

_TOKENS, _TEXT = forms("rows tokens"), forms("rows")


def _refuse_contradictions(solved: Solved, types: Types) -> None:
    """Refuse settings that contradict each other, or that would have no effect. Raises ContractError."""
    options = solved.options
    other = next((key for key in ("truncate", "padding") if "length" in options and key in options), None)
    if other is not None:
        raise ContractError(f"length cuts and fills up every row to one number of tokens; take {other} or length away")
    if "strategy" in options and ("pair" not in types or not options.keys() & {"length", "truncate"}):
        raise ContractError("strategy says which text of a pair is cut; it needs pair, and truncate or length")


CONTRACT = Contract(
    name="tokenize",
    meaning="Ids, mask and type ids of text, or of pairs of texts, by a tokenizer.json of Hugging Face",
    inputs=(
        FormalParameter("text", "string", _TEXT, "text"),
        FormalParameter("pair", "string", _TEXT, "the second text of a pair", option=OPTIONAL),
    ),
    outputs=(
        FormalParameter("ids", "int64", _TOKENS, "ids of tokens", units=(TOKEN,)),
        FormalParameter("attention_mask", "int64", _TOKENS, "1 for a token of the text, else 0", units=(MASK,)),
        FormalParameter("type_ids", "int64", _TOKENS, "the text of each token: 0, or 1 in a pair", units=(TOKEN_TYPE,)),
        FormalParameter(
            "offsets",
            "int64",
            forms("rows tokens 2"),
            "where each token begins and ends in its text",
            option=OPTIONAL,
            named_by="offsets",
        ),
        FormalParameter(
            "sequences",
            "int64",
            _TOKENS,
            "the text that each token is of: 0, or 1 in a pair; -1 of none",
            option=OPTIONAL,
            named_by="offsets",
        ),
    ),
    attributes=(
        Attribute("tokenizer", "STRING", "a tokenizer.json", required=True, path="file"),
        Attribute("length", "INT", "rows are cut and filled up to it", least=1, most=65536, binds=("tokens",)),
        Attribute("truncate", "INT", "longer rows are cut to it", least=1, most=65536),
        Attribute(
            "strategy",
            "STRING",
            "which text of a pair is cut; without it longest_first",
            choices=("longest_first", "only_first", "only_second"),
        ),
        Attribute(
            "padding", "STRING", "up to which row others are filled; without it longest", choices=("longest", "none")
        ),
        Attribute("offsets", "STRING", "a fourth and a fifth result, and what they count", choices=("characters",)),
    ),
    row_wise=False,  # without length, rows are filled up to the longest of their batch
    arithmetic=_refuse_contradictions,
)


def read(path: str) -> "Tokenizer":
    """Return the tokenizer of a file. Raises ValueError if the file holds none."""
    from tokenizers import Tokenizer  # noqa: PLC0415  an extra, for tokenizers only

    try:
        return Tokenizer.from_file(regular_path(path))
    except Exception as error:  # what the package raises has no class of its own
        raise ValueError(f"{path} is no tokenizer.json: {error}") from error


def build(options: Options, types: Types) -> Call:
    tokenizer = read(options["tokenizer"])
    _set_padding(tokenizer, options)
    _set_truncation(tokenizer, options)
    results = [*_RESULTS, "offsets", "sequences"] if "offsets" in options else _RESULTS

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        columns = [[str(text) for text in values[name]] for name in ("text", "pair") if name in types]
        found = _encoded(tokenizer, columns[0] if len(columns) == 1 else list(zip(*columns, strict=True)))
        return tuple(as_column([_array(one, name) for one in found]) for name in results)

    return apply


_RESULTS = ["ids", "attention_mask", "type_ids"]


def _array(encoding: "Encoding", name: str) -> Any:
    """Return one result of one row: int64 [tokens]; offsets are [tokens, 2]."""
    if name == "sequences":
        return np.array([-1 if one is None else one for one in encoding.sequence_ids], dtype=np.int64)
    values = np.array(getattr(encoding, name), dtype=np.int64)
    return values.reshape(-1, 2) if name == "offsets" else values


def _encoded(tokenizer: "Tokenizer", texts: list[Any]) -> "list[Encoding]":
    try:
        return tokenizer.encode_batch(texts)
    except Exception as error:  # a text that cannot be cut as wanted; what the package raises has no class of its own
        raise ValueError(f"the text cannot be tokenized: {error}") from error


def _set_padding(tokenizer: "Tokenizer", options: Options) -> None:
    if options.get("padding") == "none":
        tokenizer.no_padding()
        return
    padding = tokenizer.padding or _own_padding(tokenizer)
    known = {key: padding[key] for key in ("direction", "pad_id", "pad_type_id", "pad_token") if key in padding}
    tokenizer.enable_padding(**known, length=options.get("length"))


def _own_padding(tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return how a tokenizer pads whose file does not say it: with the token of its vocabulary that is for that."""
    ids = {token: tokenizer.token_to_id(token) for token in _PADS}
    return next(({"pad_token": token, "pad_id": id_} for token, id_ in ids.items() if id_ is not None), {})


def _set_truncation(tokenizer: "Tokenizer", options: Options) -> None:
    most = options.get("length", options.get("truncate"))
    if most is not None:
        direction = (tokenizer.truncation or {}).get("direction", "right")
        strategy = options.get("strategy", "longest_first")
        tokenizer.enable_truncation(most, strategy=strategy, direction=direction)
