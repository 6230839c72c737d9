"""Files that appear whole or not at all: a temporary name, fsync, rename, fsync of the folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


@contextmanager
def _named_at_the_end(path: Path) -> Iterator[Path]:
    """Give a temporary name, which becomes `path` when the block ends well; the block makes the bytes durable."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends well, and leaves nothing when it does not."""
    with _named_at_the_end(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file under its own name, whose bytes are durable when the block ends; leave nothing when it fails."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Like `open_whole`, for what writes a file by its name: give the name to write."""
    with _named_at_the_end(path) as temporary:
        yield temporary
        with temporary.open("r+b") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Delete what a run left that was killed while it wrote."""
    for path in (*folder.glob(f".*{TEMPORARY}"), *folder.glob(f"*/.*{TEMPORARY}")):
        path.unlink(missing_ok=True)
