"""What the operations share that find spans of a text over its tokens: their inputs, and the lists that they give."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from ortdeploy.operations.protocol import Call, as_column
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import PROBABILITY, FormalParameter, forms
from ortdeploy.tensors.types import MAP

TOKENS = forms("rows tokens")
TEXT = FormalParameter("text", "string", forms("rows"), "the text")
OFFSETS = FormalParameter("offsets", "int64", forms("rows tokens 2"), "where each token begins and ends in it")
FOUND = (
    FormalParameter("spans", MAP, forms("rows n"), "a list of maps {text, start, end, label, score} a row"),
    FormalParameter("texts", "string", forms("rows n"), "their texts"),
    FormalParameter("places", "int64", forms("rows n 2"), "where they begin and end"),
    FormalParameter("labels", "string", forms("rows n"), "their labels"),
    FormalParameter("scores", "float32", forms("rows n"), "their scores", units=(PROBABILITY,)),
)


class Span(Struct, frozen=True):
    """A span of letters [begin, end) of a text."""

    begin: int
    end: int
    label: str
    score: float

    def within(self, text: str) -> "Span":
        """Return the span without the white space at its ends. Raises ValueError if the text is shorter."""
        if self.end > len(text):
            raise ValueError(f"a token ends at letter {self.end} of {len(text)}: offsets are those of another text")
        inside = text[self.begin : self.end]
        begin = self.begin + len(inside) - len(inside.lstrip())
        return Span(begin, begin + len(inside.strip()), self.label, self.score)


def from_texts(find: Callable[..., Iterable[Span]], *names: str) -> Call:
    """Turn a function on the text of a row and its values of these names into an operation that gives FOUND."""

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        columns = (values["text"], *(values[name] for name in names))
        rows = [
            (text, [one.within(text) for one in find(text, *row)])
            for text, *row in zip(map(str, columns[0]), *columns[1:], strict=True)
        ]
        found = [[one for one in row if one.begin < one.end] for _, row in rows]
        texts = [[text[one.begin : one.end] for one in row] for (text, _), row in zip(rows, found, strict=True)]
        return _maps(texts, found), *_lists(texts, found)

    return apply


def _maps(texts: Sequence[list[str]], found: Sequence[list[Span]]) -> Column:
    return [
        [
            {"text": text, "start": one.begin, "end": one.end, "label": one.label, "score": _short(one.score)}
            for text, one in zip(row, spans, strict=True)
        ]
        for row, spans in zip(texts, found, strict=True)
    ]


def _short(score: float) -> float:
    """Return a score as float32 has it, with the fewest digits that tell it."""
    return float(str(np.float32(score)))


def _lists(texts: Sequence[list[str]], found: Sequence[list[Span]]) -> tuple[Column, ...]:
    def listed(values: Iterable[list[Any]], dtype: Any) -> Column:
        return as_column([np.array(row, dtype) for row in values])

    places: list[Array] = [np.array([(one.begin, one.end) for one in row], np.int64).reshape(-1, 2) for row in found]
    return (
        listed(texts, object),
        as_column(places),
        listed(([one.label for one in row] for row in found), object),
        listed(([one.score for one in row] for row in found), np.float32),
    )
