"""Counts the rows of text files for a plan that fixes parts: large files in several processes at once."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ortdeploy.files.decoding import decoding
from ortdeploy.files.stored_file import StoredFile
from ortdeploy.process.child import ask
from ortdeploy.process.cores import usable_cores
from ortdeploy.sources.files import shown
from ortdeploy.sources.row_index import KeptIndexes, ReadRows, count_rows

_CHILD = "ortdeploy.sources.row_counts_child"

WORTH_A_PROCESS = 32 * 1024 * 1024
"""Bytes of a file that take longer to read than a process takes to start."""


def count_files(
    files: Sequence[str], patterns: Sequence[str], indexes: KeptIndexes, limit: int | None, read: ReadRows
) -> int:
    """Return how many rows files have. Raises OrtdeployError.

    `patterns` are the paths of the input as the manifest has them, `limit` is the memory limit of the job.
    """
    counted: dict[str, int] = {}
    shares = _shares([path for path in files if _size(path) >= WORTH_A_PROCESS and indexes.of(path).rows is None])
    if len(shares) > 1:
        with ThreadPoolExecutor(len(shares)) as pool:
            told = {
                "kind": indexes.kind, "folder": indexes.base, "state_dir": str(indexes.state_dir), "limit": limit,
                "told": indexes.told, "patterns": list(patterns), "records": indexes.dialect.records,
            }  # fmt: skip
            asked = [[[path, *(getattr(path, "state", None) or (0, 0))] for path in share] for share in shares]
            found = pool.map(lambda share: ask(_CHILD, {**told, "files": share}).messages, asked)
            counted.update((message["file"], message["rows"]) for messages in found for message in messages)
    left = [path for path in files if path not in counted]  # also those of a child that ended early, to learn why
    return sum(counted.values()) + count_each(left, indexes, read)


def count_each(files: Iterable[str], indexes: KeptIndexes, read: ReadRows) -> int:
    """Return how many rows files have, as `count_files` does, in this process."""
    kind, folder = indexes.kind, indexes.base
    total = 0
    for path in files:
        with decoding(lambda path=path: shown(path, folder), kind):  # type: ignore[misc]
            total += count_rows([path], read, indexes)
    return total


def _shares(files: Sequence[str]) -> list[list[str]]:
    """Return files in one share for each usable core, of about the same number of bytes."""
    shares: list[list[str]] = [[] for _ in range(min(usable_cores(), len(files)))]
    taken = [0] * len(shares)
    for path in sorted(files, key=_size, reverse=True):
        place = taken.index(min(taken))
        shares[place].append(path)
        taken[place] += _size(path)
    return shares


def _size(path: str) -> int:
    if isinstance(path, StoredFile):
        return path.state[0] if path.state else 0
    try:
        return os.stat(path).st_size  # noqa: PTH116  text
    except OSError:
        return 0  # reading it will say why
