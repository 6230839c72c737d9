"""What tables hold, read by code that shares nothing with ortdeploy: by the csv and json modules, and by pyarrow.

A row is its cells by column, or None if it is none: then it fails.
"""

import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

Row = dict[str, Any] | None

PACKERS: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "": (bytes, bytes),
    ".gz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lzma.compress, lzma.decompress),
}
"""What compresses a text file and what decompresses it, by suffix."""


def rows_of(path: Path, *, delimiter: str = ",", lines_per_record: int | None = None) -> list[Row]:
    """Return the rows of a file, of the format that its name says."""
    packed = path.suffix if path.suffix in PACKERS else ""
    form = path.name.removesuffix(packed).rpartition(".")[2]
    if form == "parquet":
        return list(parquet.ParquetFile(path).read().to_pylist())
    if form in {"arrow", "arrows"}:
        return _rows_of_arrow(path)
    content = PACKERS[packed][1](path.read_bytes())
    return csv_rows(content, delimiter, lines_per_record) if form == "csv" else jsonl_rows(content)


def _rows_of_arrow(path: Path) -> list[Row]:
    with path.open("rb") as file:
        opened = pa.ipc.open_file(file) if path.suffix == ".arrow" else pa.ipc.open_stream(file)
        return list(opened.read_all().to_pylist())


def jsonl_rows(content: bytes) -> list[Row]:
    """Return the rows of JSON lines."""
    return [_object(line.removeprefix(b"\xef\xbb\xbf")) for line in content.split(b"\n") if line.strip()]


def _object(line: bytes) -> Row:
    try:
        found = json.loads(line.decode(), object_pairs_hook=_unique)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def csv_rows(content: bytes, delimiter: str, lines_per_record: int | None) -> list[Row]:
    """Return the rows of CSV."""
    records = [cells for cells, _ in csv_records(content, delimiter, lines_per_record)]
    header = records[0] or []
    return [
        dict(zip(header, cells, strict=True)) if cells and len(cells) == len(header) else None for cells in records[1:]
    ]


def csv_records(content: bytes, delimiter: str, lines_per_record: int | None) -> list[tuple[list[str] | None, int]]:
    """Return the records of CSV, the header first, each with its first line; None if it is broken.

    Every number of lines that a record may have is tried. One that is broken has one line. Blank lines are no records.
    """
    text = content.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape")
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    found: list[tuple[list[str] | None, int]] = []
    at, width = 0, 0
    while at < len(lines):
        cells, taken = _first_record(lines[at : at + (lines_per_record or 100)], delimiter)
        if cells is not None and taken > 1 and width:
            alone = {line.count(delimiter) for line in lines[at : at + taken]} == {width - 1}
            if len(cells) != width or (lines_per_record is None and alone and taken * (width - 1) > 3):
                cells = None  # a quote that another one closed by chance
        if cells is None or not _is_blank(cells, width):
            is_garbled = cells is not None and (not _is_utf8("".join(cells)) or "\0" in "".join(cells))
            found.append((None if is_garbled else cells, at + 1))
            width = width or len(cells or ())
        at += taken if cells is not None else 1
    return found


def _first_record(lines: Sequence[str], delimiter: str) -> tuple[list[str] | None, int]:
    for count in range(1, len(lines) + 1):
        try:
            (cells,) = csv.reader(lines[:count], delimiter=delimiter, strict=True)
        except csv.Error as error:
            if "end of data" not in str(error):
                break
        else:
            return cells, count
    return None, 1


def _is_blank(cells: list[str], width: int) -> bool:
    return not cells or (len(cells) == 1 and width != 1 and cells[0].isspace())


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
