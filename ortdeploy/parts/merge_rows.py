"""Writes chosen lines of several files of one output into one file, durably, under a hidden name."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from ortdeploy.files.atomic import Hashing, open_synced
from ortdeploy.ledger.records import NewFile
from ortdeploy.sinks.protocol import SinkModule


def write_lines(module: SinkModule, files: Sequence[Path], order: Sequence[int], temporary: Path, name: str) -> NewFile:
    """Write lines, by their places in all `files` together, in this order; the file is to become `name`.

    Raises OSError, ValueError.
    """
    with open_synced(temporary) as target:
        hashing = Hashing(target)
        module.merge(files, order, cast("BinaryIO", hashing))
        written = hashing.written()
    return NewFile(
        temporary=temporary.name, file=name, bytes=written.bytes, sha256=written.sha256, mtime_ns=written.mtime_ns
    )
