"""CSV as Python's module has it, without two of its traps.

It leaves a carriage return without quotes if lines end in a line feed alone (Python 3.11 and 3.12), and then reads the
rest of the cell as another row. And it refuses cells above 131,072 characters.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_NO_LIMIT = 2**31 - 1
"""Characters of a cell; a C long of Windows holds no more. How long a line may be is for the sources to say."""


def read_cells(lines: Iterable[str], *, strict: bool = False, delimiter: str = ",") -> Iterator[list[str]]:
    """Yield the cells of each row. Raises csv.Error."""
    csv.field_size_limit(_NO_LIMIT)
    return csv.reader(lines, strict=strict, delimiter=delimiter)


def written_rows(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines that end in a line feed; cells with line ends of any kind are in quotes."""
    lines = _Lines()
    csv.writer(lines).writerows(rows)  # \r\n, because the characters of a line's end are always in quotes
    return "".join(lines.found)


class _Lines:
    """What the writer gives a row at a time, with other line ends."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, row: str) -> None:
        self.found.append(f"{row[:-2]}\n")
