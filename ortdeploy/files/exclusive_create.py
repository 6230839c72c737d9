"""Files that the first of several processes creates, whole, and nobody changes afterwards: how machines decide.

`link(2)` fails if the name exists, on local file systems and on NFS; a rename would replace the file. On NFS the answer
may be lost although the link was made. Then the number of links shows it; or, if the client remembers an old number,
that both names lead to one file.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from ortdeploy.diagnostics import RefusedError
from ortdeploy.files.atomic import open_synced, sync_folder

_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
"""How file systems answer that have no hard links."""


def create_only(path: Path, data: bytes) -> bool:
    """Create a file with these bytes, durably; return False if the name exists. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.urandom(16).hex()}")
    try:
        with open_synced(temporary) as file:
            file.write(data)
        try:
            os.link(temporary, path)
        except OSError:
            if not _is_linked(temporary, path):
                if path.exists():
                    return False
                raise
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    sync_folder(path.parent)
    return True


def _is_linked(temporary: Path, path: Path) -> bool:
    """Return whether a file has got its second name although the answer was an error."""
    with suppress(OSError):
        return temporary.stat().st_nlink == 2 or temporary.samefile(path)  # noqa: PLR2004  its own name, and that one
    return False


def check_decides(folder: Path, shown: str | None = None) -> None:
    """Refuse a file system without hard links, where two processes could both create a file; `shown` names the folder.

    Raises RefusedError; OSError if it cannot be tried now, such as with a full disk.
    """
    probe = folder / f".probe-{os.urandom(16).hex()}"
    try:
        decides = create_only(probe, b"") and not create_only(probe, b"")
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise RefusedError(
            f"{shown or folder}: its file system makes no hard links ({error.strerror}), by which shards decide who "
            "writes a part. Choose an output on a local file system or on NFS"
        ) from error
    finally:
        with suppress(OSError):
            probe.unlink()
    if not decides:
        raise RefusedError(
            f"{shown or folder}: its file system lets two processes create the same file; choose another"
        )
