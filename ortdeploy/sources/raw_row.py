"""A row as a format's reader finds it, before it is decoded."""

from typing import Any, NamedTuple


class RawRow(NamedTuple):
    """A row before it is decoded: its file, its place in it, and the value for the format's `decode`.

    `number` is its number in the file. For a text file, `begin` says how many lines and bytes are in front of it.
    """

    path: str
    place: str
    value: Any
    number: int = 0
    begin: tuple[int, int] = (0, 0)

    @property
    def source(self) -> str:
        """The file with the row's place in it, for messages."""
        return f"{self.path}{self.place}"
