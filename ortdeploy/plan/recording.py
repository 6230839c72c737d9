"""How the recordings of a result are written: one file a row."""

from msgspec import Struct


class Recording(Struct, frozen=True, kw_only=True):
    """The samples a second of a column's recordings, and the format of their files: wav or flac."""

    rate: int
    format: str = "wav"
