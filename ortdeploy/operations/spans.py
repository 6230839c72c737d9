"""`spans` — the named spans of a text, from a label for each token and the places of the tokens.

Labels are such as `B-PER`, `I-PER` and `O`: B begins a span, and I goes on with it. E and L end a span, S and U are
spans of one token (BIOES, BILOU). Any other label, such as `PER`, goes on with a span of its own name. The letters
alone make spans without a name: `B` and `I` are where words begin, and the letters within them. Whatever does not
fit begins a span too, such as an I behind another name.

Tokens without a place in the text, which a tokenizer adds or fills up with, count for nothing. With `by: word`, a word,
which is letters and digits that follow each other, has the label and the score of its first token. White space at the
ends of a span is left out.

The first result lists maps {text, start, end, label, score}. Start and end count letters, and the score is the mean
over the tokens; it is 1 if there are no scores. The other results list the same things by themselves.

Source: the aggregation strategies simple and first of transformers' TokenClassificationPipeline.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from ortdeploy.operations.protocol import Call, Types
from ortdeploy.operations.text_spans import FOUND, OFFSETS, TEXT, TOKENS, Span, from_texts
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import OPTIONAL, PROBABILITY, REALS, Attribute, Contract, FormalParameter
from ortdeploy.transforms.protocol import Options

_TAG = re.compile(r"(?:([BIELSUM])[-_](.+)|([BIELSUM]))", re.DOTALL)
_BEGINS, _ENDS = "BSU", "ELSU"

CONTRACT = Contract(
    name="spans",
    meaning="The named spans of a text, from the labels of its tokens",
    inputs=(
        TEXT,
        OFFSETS,
        FormalParameter("labels", "string", TOKENS, "the label of each token"),
        FormalParameter("scores", "T", TOKENS, "how sure each label is", units=(PROBABILITY,), option=OPTIONAL),
    ),
    outputs=FOUND,
    attributes=(
        Attribute("none", "STRING", "the label of tokens in no span", default="O", least=1, most=255),
        Attribute("by", "STRING", "what has one label", default="token", choices=("token", "word")),
    ),
    types=(REALS,),
)


def build(options: Options, types: Types) -> Call:
    def find(text: str, offsets: Array, labels: Array, scores: Sequence[float] | None = None) -> Iterator[Span]:
        sure = np.ones(len(labels)) if scores is None else scores
        tokens = (
            Span(int(begin), int(end), str(label), float(score))
            for (begin, end), label, score in zip(offsets, labels, sure, strict=True)
            if begin < end
        )
        return _joined(_words(text, tokens) if options["by"] == "word" else tokens, options["none"])

    return from_texts(find, "offsets", "labels", *(["scores"] if "scores" in types else []))


def _words(text: str, tokens: Iterator[Span]) -> Iterator[Span]:
    """Yield words: tokens that touch, of letters and digits on both sides of their border."""
    word: Span | None = None
    for token in tokens:
        if word is not None and word.end == token.begin and _goes_on(text[token.begin - 1 : token.begin + 1]):
            word = Span(word.begin, token.end, word.label, word.score)
            continue
        if word is not None:
            yield word
        word = token
    if word is not None:
        yield word


def _goes_on(around: str) -> bool:
    """Return whether the signs around a border are of one word: letters, marks above or below them, digits."""
    return all(unicodedata.category(sign)[0] in "LMN" for sign in around)


def _joined(tokens: Iterator[Span], none: str) -> Iterator[Span]:
    """Yield spans: tokens of one name that go on with each other."""
    group: list[Span] = []
    before = mark = name = ""
    for token in tokens:
        if token.label == none:
            mark, name = "E", ""
            continue
        before, last = mark, name
        mark, name = _read(token.label)
        if group and (before in _ENDS or mark in _BEGINS or name != last):
            yield _one(group)
            group = []
        group.append(Span(token.begin, token.end, name, token.score))
    if group:
        yield _one(group)


def _read(label: str) -> tuple[str, str]:
    """Return what a label says of its span, and the span's name."""
    found = _TAG.fullmatch(label)
    return (found[1] or found[3], found[2] or "") if found else ("I", label)


def _one(group: Sequence[Span]) -> Span:
    score = float(np.mean([token.score for token in group]))
    return Span(group[0].begin, group[-1].end, group[0].label, score)
