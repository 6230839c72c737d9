"""JSON lines: one object a line. Numbers and nested lists are read as the model input's element type."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.room import LINE_OF_VALUES
from ortdeploy.results.rows import FILE_ROW, Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.opened import Lines, open_binary
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import RawRow, RowError, block_rows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".jsonl", ".ndjson")
FIRST_ROWS = 64
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Take columns and shapes from the first line that is not empty."""
    for raw in _raw_lines(files, facts_folder=None, limit=facts.memory_limit):
        try:
            row = _parse(raw.value)
            return replace(facts, columns={name: _type(value) for name, value in row.items()})
        except RowError as error:
            detail = f"{raw.path}{raw.place}: {error}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
    return replace(facts, rows=0)


def _type(value: Any) -> TensorType:
    try:
        return TensorType(None, (ROWS, *np.shape(value)))
    except ValueError:  # lists of different lengths; each row is judged when it is read
        return TensorType()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"the line is not JSON: {error}", "not-json") from error
    if not isinstance(row, dict):
        raise RowError("the line is not a JSON object", "not-json")
    return row


def _raw_lines(files: Sequence[str], facts_folder: str | None, limit: int | None) -> Iterator[RawRow]:
    for path in files:
        name = shown(path, facts_folder) if facts_folder else path
        lines = Lines(name, LINE_OF_VALUES, limit)
        with open_binary(path, name) as file:
            filled = ((place, line) for place, line in enumerate(lines.read(file), 1) if line.strip())
            for number, (place, line) in enumerate(filled):
                yield RawRow(name, f":{place}", line, number)


@dataclass(frozen=True, slots=True)
class _JsonlSource:
    files: Sequence[str]
    folder: str
    wanted: Wanted

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        lines = _raw_lines(self.files, self.folder, self.wanted.memory_limit)
        raw_rows = islice(lines, start - self.wanted.first_row, None)
        return block_rows(raw_rows, self._decode, self.wanted, start, sizes)

    def _decode(self, raw: RawRow) -> dict[str, Any]:
        row = _parse(raw.value)
        for name in (*self.wanted.dtypes, *self.wanted.keys):
            if name in row or name in {"path", "row", FILE_ROW}:
                continue
            if name in self.wanted.missing:
                row[name] = None
            else:
                raise RowError(f'the line has no "{name}"', "missing-value", known=dict(row))
        return row


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[_JsonlSource]:
    """Open JSON-lines files as one table."""
    yield _JsonlSource(files, folder, wanted)
