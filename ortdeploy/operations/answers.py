"""`answers` — the likeliest spans of a text, from scores for each token that an answer begins and ends there.

A token counts if it has a place in the text and its `mask` is above 0: of a question and its context, the fifth result
of `tokenize` is 1 for tokens of the context. The scores go through softmax over the tokens that count and the first
one, which stands for no answer. The score of a span is the product of those of its ends. A span has at most `longest`
tokens, and the `top` best ones are listed in the form that `spans` gives, without labels.

Source: transformers' QuestionAnsweringPipeline.
"""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from numpy.lib.stride_tricks import sliding_window_view

from ortdeploy.operations.protocol import Call, Types
from ortdeploy.operations.text_spans import FOUND, OFFSETS, TEXT, TOKENS, Span, from_texts
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import LOGITS, OPTIONAL, REALS, WHOLE, Attribute, Contract, FormalParameter
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options
from ortdeploy.transforms.softmax import softmax

CONTRACT = Contract(
    name="answers",
    meaning="The likeliest spans of a text, from scores of where an answer begins and ends",
    inputs=(
        TEXT,
        OFFSETS,
        FormalParameter("start", "T", TOKENS, "that it begins at a token", units=(LOGITS,), not_nan=True),
        FormalParameter("end", "T", TOKENS, "that it ends there", units=(LOGITS,), not_nan=True),
        FormalParameter("mask", "M", TOKENS, "above 0 for tokens that count", option=OPTIONAL),
    ),
    outputs=FOUND,
    attributes=(
        Attribute("top", "INT", "how many are listed at most", default=1, least=1, most=1000),
        Attribute("longest", "INT", "the most tokens of one", default=15, least=1, most=65536),
    ),
    types=(REALS, replace(WHOLE, name="M")),
)


def build(options: Options, types: Types) -> Call:
    most, longest = options["top"], options["longest"]

    def find(_text: str, offsets: Array, start: Array, end: Array, mask: Array | None = None) -> Iterator[Span]:
        counts = offsets[:, 0] < offsets[:, 1]
        if mask is not None:
            counts &= mask > 0
        if not counts.any():
            return
        begins, ends = _shares(start, counts), _shares(end, counts)
        scores = begins[:, np.newaxis] * sliding_window_view(np.append(ends, np.zeros(longest - 1)), longest)
        for place in np.argsort(-scores, axis=None, kind="stable")[:most]:
            first, further = divmod(int(place), longest)
            if scores[first, further] > 0:
                yield Span(int(offsets[first, 0]), int(offsets[first + further, 1]), "", float(scores[first, further]))

    return from_texts(find, "offsets", "start", "end", *(["mask"] if "mask" in types else []))


def _shares(scores: Array, counts: Array) -> Array:
    """Return probabilities [tokens] of scores [tokens]; 0 for tokens that do not count."""
    taken = counts.copy()
    taken[:1] = True
    shares = np.zeros(len(scores))
    shares[taken] = softmax(convert(scores[taken], "float64"))
    return np.where(counts, shares, 0)
