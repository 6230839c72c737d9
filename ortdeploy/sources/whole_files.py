"""Reads small files at once, and notes what they held: a digest of the content beside the state of the file.

The digest lets a later plan know a copy of a file as a copy, and it costs little while the bytes are at hand. The state
tells the end of the job that the file was read as the plan has it.
"""

import os
from io import BytesIO
from typing import BinaryIO

from ortdeploy.files.digests import digest_of
from ortdeploy.files.opening import descriptor_of
from ortdeploy.files.urls import is_url
from ortdeploy.sources.files import state_in_stat

_AT_ONCE = 1 << 20


WholeFiles = dict[str, tuple[int, int, bytes]]
"""Size and modification time of files that were read whole, with the digests of what they held, by the names shown."""


def open_whole(path: str, shown: str, whole: WholeFiles) -> BinaryIO:
    """Open a file; a small one is read at once, which is faster than to make a buffered reader. Raises OSError.

    What a small one held is added to `whole`, if it did not change meanwhile. Of an object it is not: the file is a
    copy with another state.
    """
    descriptor = descriptor_of(path)
    try:
        before = os.fstat(descriptor)
        size = before.st_size
        if size > _AT_ONCE:
            return os.fdopen(os.dup(descriptor), "rb")
        content = os.read(descriptor, size)
        while len(content) < size and (more := os.read(descriptor, size)):
            content += more
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    is_whole = len(content) == size == after.st_size and after.st_mtime_ns == before.st_mtime_ns
    if is_whole and not is_url(shown):
        whole[shown] = (*state_in_stat(after), digest_of(content))
    return BytesIO(content)
