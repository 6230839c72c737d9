"""What a page shows beside the numbers: failed rows with their reasons, and some rows with their results."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Picture(Struct, frozen=True, kw_only=True):
    """A picture as a data URL, its size in pixels, and the outlines found in it, in the same pixels, with labels."""

    url: str
    width: float
    height: float
    outlines: tuple[tuple[tuple[float, float], ...], ...] = ()
    labels: tuple[str, ...] = ()


class Example(Struct, frozen=True, kw_only=True):
    """A committed row: what it is called, its values as text, its picture, and the envelope of its recording.

    `envelope` has the least and the largest sample of each piece of the recording, which takes `seconds`.
    """

    name: str
    values: Mapping[str, str]
    picture: Picture | None = None
    envelope: tuple[tuple[float, float], ...] = ()
    seconds: float = 0.0


class Illustrations(Struct, frozen=True, kw_only=True):
    """The first failed rows, how many there are in all, and examples; `why_none` says why there are no examples."""

    failed: tuple[Mapping[str, Any], ...] = ()
    failed_rows: int = 0
    examples: tuple[Example, ...] = ()
    why_none: str = ""


FAILED_COLUMNS = ("row", "source", "stage", "code", "message", "attempts")
_MOST_FAILED = 500
_MOST_TEXT = 100_000  # signs of all rows, as HTML has them
_MOST_SIGNS = 300


class FailedRows:
    """Counts failed rows, and keeps the first ones."""

    def __init__(self, *, wanted: bool = True) -> None:
        """Begin empty; if rows are not `wanted`, they are only counted."""
        self._wanted = wanted
        self.first: list[Mapping[str, Any]] = []
        self.count = 0
        self._text = 0

    def note(self, row: Mapping[str, Any]) -> None:
        """Count a row, and keep it if it is among the first."""
        self.count += 1
        if self._wanted and len(self.first) < _MOST_FAILED and self._text < _MOST_TEXT:
            kept = {name: _cut(row.get(name)) for name in FAILED_COLUMNS}
            self._text += sum(_length(str(value)) for value in kept.values())
            self.first.append(kept)


def _length(text: str) -> int:
    """Return about how long a text is as HTML, in which a few characters become entities."""
    return len(text) + 4 * sum(map(text.count, "<>&\"'"))


def _cut(value: Any) -> Any:
    return f"{value[:_MOST_SIGNS]}…" if isinstance(value, str) and len(value) > _MOST_SIGNS else value
