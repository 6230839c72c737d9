"""`tokenize_clip` — token ids of text by CLIP's byte-pair encoding, from the vocab.json and merges.txt of a folder.

The result is int64 [rows, 77], or [rows, `length`]: a start mark, the tokens of the text, cut if there are too many, an
end mark, and end marks as padding, as in Stable Diffusion 1. A tokenizer_config.json may name another pad_token.

Source: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021; the format of the
files is that of Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016, over bytes.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text
from ortdeploy.operations.protocol import Call, Types
from ortdeploy.tensors.contracts import TOKEN, Attribute, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

START, END = "<|startoftext|>", "<|endoftext|>"
DEFAULT_LENGTH = 77
_END_OF_WORD = "</w>"
_WORD = re.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+", re.IGNORECASE
)


CONTRACT = Contract(
    name="tokenize_clip",
    meaning="77 ids of text, by CLIP's vocab.json and merges.txt in a folder",
    inputs=(FormalParameter("text", "string", forms("rows"), "text"),),
    outputs=(FormalParameter("ids", "int64", forms("rows tokens"), "ids of tokens", units=(TOKEN,)),),
    attributes=(
        Attribute("folder", "STRING", "where vocab.json and merges.txt are", required=True, path="folder"),
        Attribute(
            "length",
            "INT",
            "rows are cut and filled up to it",
            default=DEFAULT_LENGTH,
            least=2,
            most=65536,
            binds=("tokens",),
        ),
    ),
)


def read(path: str) -> "ClipTokenizer":
    """Return the tokenizer of a folder. Raises OSError, and ValueError if it holds none."""
    return ClipTokenizer(Path(path))


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  text is what it takes
    tokenizer = read(options["folder"])
    length = options["length"]
    return lambda values: (np.array([tokenizer.encode(str(text), length) for text in values["text"]], dtype=np.int64),)


class ClipTokenizer:
    """The vocabulary and the merges of a folder."""

    def __init__(self, folder: Path) -> None:
        """Read the files. Raises OSError, and ValueError if they are not a CLIP vocabulary."""
        self._ids: dict[str, int] = read_json(read_text(folder / "vocab.json"))
        lines = read_text(folder / "merges.txt").splitlines()
        pairs = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        for mark in (START, END):
            if mark not in self._ids:
                raise ValueError(f"{folder / 'vocab.json'} has no {mark}; it is not a CLIP vocabulary")
        self._fill = self._ids.get(_pad_token(folder), self._ids[END])
        self._letters = _byte_letters()
        self._split = lru_cache(maxsize=8192)(self._split_word)

    def encode(self, text: str, length: int) -> list[int]:
        """Return exactly `length` token ids. Raises ValueError for a letter that the vocabulary does not have."""
        clean = re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).strip().lower()
        ids = [one for word in _words(clean) for one in self._split(word)]
        kept = [self._ids[START], *ids[: length - 2], self._ids[END]]
        return kept + [self._fill] * (length - len(kept))

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Return the token ids of a word: join pairs of neighbouring pieces, the pair of the lowest rank first."""
        if word in {START, END}:
            return (self._ids[word],)
        pieces = [self._letters[byte] for byte in word.encode("utf-8")]
        pieces[-1] += _END_OF_WORD
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            merged: list[str] = []
            for piece in pieces:
                if merged and (merged[-1], piece) == best:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            pieces = merged
        missing = next((piece for piece in pieces if piece not in self._ids), None)
        if missing is not None:
            raise ValueError(f'the vocabulary has no "{missing}", a piece of "{word}"')
        return tuple(self._ids[piece] for piece in pieces)


def _words(text: str) -> Iterator[str]:
    """Yield special marks, contractions, runs of letters, single digits, and runs of other characters; drop spaces."""
    for found in _WORD.finditer(text):
        word = found.group()
        if word[0].isalnum():  # \w also takes numbers that are no digits, such as ²
            for is_letter, run in groupby(word, lambda sign: unicodedata.category(sign)[0] == "L"):
                letters = list(run)
                yield from ["".join(letters)] if is_letter else letters
        else:
            yield word


def _pad_token(folder: Path) -> str:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return END
    token = read_json(read_text(path)).get("pad_token") or END
    return str(token.get("content", END)) if isinstance(token, dict) else str(token)


def _byte_letters() -> dict[int, str]:
    """Return a character for every byte: itself if it is printable, else one with a code point beyond 255."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}
