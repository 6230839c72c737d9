"""`tokenize` — ids, mask and type ids of text, by a tokenizer.json of Hugging Face's `tokenizers`.

Truncation and special tokens are as the file says. Rows of a batch are filled up to the longest, or to `length`, which
also cuts longer ones. Each result is int64 [rows, tokens].
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.operations.protocol import Call, Types
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.contracts import MASK, TOKEN, TOKEN_TYPE, Attribute, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = Package(module="tokenizers", name="tokenizers", extra="text")


_TOKENS = forms("rows tokens")

CONTRACT = Contract(
    name="tokenize",
    meaning="Ids, mask and type ids of text, by a tokenizer.json of Hugging Face",
    inputs=(FormalParameter("text", "string", forms("rows"), "text"),),
    outputs=(
        FormalParameter("ids", "int64", _TOKENS, "ids of tokens", units=(TOKEN,)),
        FormalParameter("attention_mask", "int64", _TOKENS, "1 for a token of the text, else 0", units=(MASK,)),
        FormalParameter("type_ids", "int64", _TOKENS, "the sentence of each token", units=(TOKEN_TYPE,)),
    ),
    attributes=(
        Attribute("tokenizer", "STRING", "a tokenizer.json", required=True, path="file"),
        Attribute("length", "INT", "rows are cut and filled up to it", least=1, most=65536, binds=("tokens",)),
    ),
    row_wise=False,  # without length, rows are filled up to the longest of their batch
)


def read(path: str) -> "Tokenizer":
    """Return the tokenizer of a file. Raises ValueError where it holds none."""
    from tokenizers import Tokenizer  # noqa: PLC0415  an extra: only who tokenizes needs it

    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # what the package raises has no class of its own
        raise ValueError(f"{path} is no tokenizer.json: {error}") from error


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  text is what it takes
    tokenizer = read(options["tokenizer"])
    length, padding = options.get("length"), tokenizer.padding or {}
    known = {key: padding[key] for key in ("direction", "pad_id", "pad_type_id", "pad_token") if key in padding}
    tokenizer.enable_padding(**known, length=length)
    if length is not None:
        tokenizer.enable_truncation(length)

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        found = tokenizer.encode_batch([str(text) for text in values["text"]])
        return tuple(np.array([getattr(one, name) for one in found], dtype=np.int64) for name in _RESULTS)

    return apply


_RESULTS = ("ids", "attention_mask", "type_ids")
