"""The frame of a finding: the line, and carets below the place."""

import random

import pytest
from support.effort import effort

from ortdeploy.diagnostics import Span
from ortdeploy.manifest.document import parse_document
from ortdeploy.views.panel import columns, frame

LINE = "    providers: [CUDA, {provider: OpenVINO, device: GPU}]  # 你好"


def span_of(line: str, word: str) -> Span:
    place = line.index(word)
    return Span(path="m.yaml", line=9, column=place + 1, end=place + len(word) + 1)


def underlined(source: str, carets: str) -> str:
    """Return what the carets stand below, by columns."""
    first, last = len(carets) - len(carets.lstrip()), len(carets)
    found, at = "", 0
    for sign in source:
        found += sign if first <= at < last else ""
        at += columns(sign)
    return found


@pytest.mark.parametrize("word", ["providers", "CUDA", "{provider: OpenVINO, device: GPU}", "# 你好"])
@pytest.mark.parametrize("width", [120, len("9 | ") + columns(LINE)])
def test_carets_stand_below_the_place(word: str, width: int) -> None:
    gutter, source, carets = frame(LINE, span_of(LINE, word), width)
    assert (gutter, source) == ("9 | ", LINE)
    assert underlined(source, carets) == word


def test_wide_and_missing_signs_keep_the_columns() -> None:
    line = 'path: ["数字/\x1b[2J\t模型.onnx", cafe\u0301, x]'
    _, source, carets = frame(line, span_of(line, "x]"), 100)
    assert "\x1b" not in source
    assert underlined(source, carets) == "x]"


def test_a_line_that_is_too_long_is_cut_on_both_sides() -> None:
    draw = random.Random(3)  # noqa: S311  examples
    for _ in range(effort(100, 1000)):
        words = ["".join(draw.choices("abcdef数", k=draw.randint(1, 12))) for _ in range(draw.randint(1, 30))]
        words[draw.randrange(len(words))] = "PLACE"
        line, width = " ".join(words), draw.randint(40, 100)
        gutter, source, carets = frame(line, span_of(line, "PLACE"), width)
        assert columns(gutter + source) <= width, (line, width)
        assert columns(gutter + carets) <= width, (line, width)
        assert underlined(source, carets) == "PLACE", (line, width)


def test_a_place_that_is_too_long_is_cut_itself() -> None:
    line = "path: " + "a" * 300 + " # why"
    gutter, source, carets = frame(line, span_of(line, "a" * 300), 60)
    assert len(gutter + source) <= 60
    assert source.endswith("a...")
    assert set(underlined(source, carets)) == {"a"}


def test_a_place_of_unknown_length_gets_one_caret() -> None:
    assert frame("a: [", Span(path="m.yaml", line=2, column=4), 80) == ("2 | ", "a: [", "   ^")
    assert frame("", Span(path="m.yaml", line=2, column=1), 80)[2] == "^"


TEXT = """\
a: [1, two]
b:
  c: plain words   # said
  'd': {e: "quoted", f: [x]}
l:
  - {x: 1,
     y: 2}
  - k: v
"""


def test_places_end_where_their_text_ends() -> None:
    document, _ = parse_document(TEXT.encode(), "m.yaml")
    assert document is not None
    lines = TEXT.splitlines()

    def text(span: Span) -> str | None:
        return None if span.end is None else lines[span.line - 1][span.column - 1 : span.end - 1]

    spans, keys = document.spans, document.keys
    assert text(spans["a",]) == "[1, two]"
    assert text(spans["b",]) == "c"  # the first key of a mapping without brackets
    assert text(spans["b", "c"]) == "plain words"
    assert text(keys["b", "d"]) == "'d'"
    assert text(spans["b", "d"]) == '{e: "quoted", f: [x]}'
    assert text(spans["b", "d", "e"]) == '"quoted"'
    assert text(spans["l",]) is None
    assert text(spans["l", 0]) is None  # ends on another line
    assert text(spans["l", 1]) == "k"
