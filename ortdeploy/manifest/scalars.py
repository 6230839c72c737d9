"""Decides what a plain YAML scalar means.

YAML 1.1 (PyYAML, Compose) and 1.2 (editors) disagree about some words; what both read alike is taken, the rest is a
problem that the document reports, never a surprise.
"""

import math
import re

from msgspec import Struct

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_OLD_BOOLEANS = {"yes": True, "on": True, "no": False, "off": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_AMBIGUOUS = re.compile(r"[-+]?(0[0-9]+|0o[0-7]+|0b[01]+|[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?|[0-9][0-9_]*_[0-9_]*)\Z")
_MAX_DIGITS = 40


class Scalar(Struct, frozen=True):
    """A value; `word` when it was one of YAML 1.1's boolean words, `problem` when two readers would disagree."""

    value: str | int | float | bool | None
    word: str | None = None
    problem: str | None = None


def resolve_plain(text: str) -> Scalar:
    """Give a plain (unquoted) scalar its value."""
    if text in _NULL:
        return Scalar(None)
    if text in _TRUE or text in _FALSE:
        return Scalar(text in _TRUE)
    if text.lower() in _OLD_BOOLEANS and text in {text.lower(), text.capitalize(), text.upper()}:
        return Scalar(_OLD_BOOLEANS[text.lower()], word=text)
    return _resolve_number(text)


def _resolve_number(text: str) -> Scalar:
    if _AMBIGUOUS.match(text):
        return Scalar(text, problem=f"YAML readers disagree about {text}: some read a number in another base or unit")
    if _NOT_FINITE.match(text):
        return Scalar(text, problem=f"{text} is not a number that a manifest can use")
    if not (_INTEGER.match(text) or _HEX.match(text) or _FLOAT.match(text)):
        return Scalar(text)
    if len(text) > _MAX_DIGITS:
        return Scalar(text, problem=f"a number of {len(text)} digits is more than ONNX Runtime can take")
    if _HEX.match(text):
        return Scalar(int(text, 16))
    if _INTEGER.match(text):
        return Scalar(int(text))
    number = float(text)
    return Scalar(number) if math.isfinite(number) else Scalar(text, problem=f"{text} is too large for a number")
