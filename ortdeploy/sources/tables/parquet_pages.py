"""Reads the sizes of a Parquet column's pages: a page is decompressed whole, and pyarrow does not tell its size.

Before each page stands a PageHeader in Thrift's compact protocol (parquet-format, parquet.thrift): fields by number,
of which 1 is the page's type, 2 its size when it is decompressed and 3 its size in the file.
"""

from collections.abc import Iterator
from typing import IO

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError

_TYPE, _UNCOMPRESSED, _COMPRESSED = 1, 2, 3
_DICTIONARY = 2
_AT_ONCE = 8 * 1024
_LONGEST = 16 * 1024 * 1024
"""Bytes of a header, which holds the smallest and the largest value of its page."""

_DOUBLE_BYTES = 8
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = {1, 2}, 3, {4, 5, 6}, 7, 8, {9, 10}, 11, 12
"""Thrift's compact types."""
_DEEPEST = 8
_LONG_LIST = 15
_LONGEST_NUMBER = 64
"""Bits of a number."""


class Page(Struct, frozen=True, kw_only=True):
    """A page of a column: its size when it is decompressed, and whether it is the dictionary of the others."""

    size: int
    is_dictionary: bool


def pages(file: IO[bytes], begin: int, end: int) -> Iterator[Page]:
    """Yield the pages between two places of a file. Raises OrtdeployError, and IndexError for a damaged header."""
    while begin < end:
        fields, length = _read_header(file, begin)
        size = fields.get(_COMPRESSED, -1)
        if size < 0 or fields.get(_UNCOMPRESSED, -1) < 0:
            raise OrtdeployError("a page has no size")
        yield Page(size=fields[_UNCOMPRESSED], is_dictionary=fields.get(_TYPE) == _DICTIONARY)
        begin += length + size


def _read_header(file: IO[bytes], begin: int) -> tuple[dict[int, int], int]:
    """Return the whole numbers of a header by field, and how long it is."""
    count = _AT_ONCE
    while True:
        file.seek(begin)
        reader = _Reader(file.read(count))
        try:
            return reader.struct(), reader.place
        except IndexError:
            if count >= _LONGEST or len(reader.data) < count:
                raise
            count *= 8


class _Reader:
    """Reads Thrift's compact protocol. Raises IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read a struct, and return its whole numbers by field; the others are passed over."""
        if depth > _DEEPEST:
            raise OrtdeployError("a page header is nested too deeply")
        numbers: dict[int, int] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _INTEGERS:
                numbers[field] = self._integer()
            elif kind not in _BOOLEANS:
                self._skip(kind, depth)
        return numbers

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self._integer()
        elif kind == _STRUCT:
            self.struct(depth + 1)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            count = self._varint() if head >> 4 == _LONG_LIST else head >> 4
            for _ in range(count):
                self._skip(head & 15, depth + 1)
        elif kind == _BYTE or kind in _BOOLEANS:
            self._pass(1)
        elif kind == _DOUBLE:
            self._pass(_DOUBLE_BYTES)
        else:
            raise OrtdeployError("a page header is damaged")

    def _byte(self) -> int:
        value = self.data[self.place]
        self.place += 1
        return value

    def _pass(self, count: int) -> None:
        self.place += count
        if self.place > len(self.data):
            raise IndexError("the data ends before")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if not byte & 128:
                return value
            shift += 7
            if shift >= _LONGEST_NUMBER:
                raise OrtdeployError("a page header is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
