"""Writes single values into a manifest's text and leaves comments, order and styles as they are."""

import copy
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.manifest.document import Document, Path, parse_document
from ortdeploy.manifest.write import scalar


class _Place(Struct, frozen=True):
    """A scalar in the text: from where to where, and whether it stands between braces or brackets."""

    start: int
    end: int
    in_flow: bool


def set_beside(text: str, document: Document, key: str, beside: Mapping[Path, str], values: Mapping[Path, str]) -> str:
    """Return the text with `key` set in the mappings at some paths: in place, or as a new key after `beside`.

    Raises OrtdeployError if the text would then say anything else too.
    """
    places = _find_scalars(text)
    edits: dict[int, tuple[int, str]] = {}
    for at, value in values.items():
        known = document.spans.get((*at, key))
        span = known or document.spans[*at, beside[at]]
        place = places[span.line, span.column]
        if known is not None:
            edits[place.start] = place.end, scalar(value)
        elif place.in_flow:
            edits[place.end] = place.end, f", {key}: {scalar(value)}"
        else:
            end = _line_end(text, place.end)
            indent = " " * (document.keys[*at, beside[at]].column - 1)
            edits[end] = end, f"{_newline(text)}{indent}{key}: {scalar(value)}"
    for start in sorted(edits, reverse=True):
        end, new = edits[start]
        text = text[:start] + new + text[end:]
    _verify(text, document, key, values)
    return text


def _find_scalars(text: str) -> dict[tuple[int, int], _Place]:
    """Return every scalar by its line and column, which count from 1."""
    places: dict[tuple[int, int], _Place] = {}
    styles: list[bool] = []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):  # not libyaml, whose marks do not count characters
        if isinstance(event, yaml.CollectionStartEvent):
            styles.append(bool(event.flow_style))
        elif isinstance(event, yaml.CollectionEndEvent):
            styles.pop()
        elif isinstance(event, yaml.ScalarEvent):
            begin, stop = event.start_mark, event.end_mark
            if begin is None or stop is None:
                raise AssertionError("the pure Python parser marks every event")
            places[begin.line + 1, begin.column + 1] = _Place(begin.index, stop.index, bool(styles and styles[-1]))
    return places


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_end(text: str, position: int) -> int:
    """Return where the line of a position ends, before its line break."""
    end = text.find(_newline(text), position)
    return len(text) if end < 0 else end


def _verify(text: str, document: Document, key: str, values: Mapping[Path, str]) -> None:
    wanted = copy.deepcopy(document.data)
    for at, value in values.items():
        mapping: Any = wanted
        for step in at:
            mapping = mapping[step]
        mapping[key] = value
    written, problems = parse_document(text.encode(), document.path)
    if written is None or problems or written.data != wanted:
        shown = ", ".join(f"{'.'.join(map(str, at))}: {value}" for at, value in values.items())
        raise OrtdeployError(
            f"{document.path} is written in a way that {key} cannot be put into; write by hand: {shown}"
        )
