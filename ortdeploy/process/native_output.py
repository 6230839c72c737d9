"""Keeps prints of native libraries out of results and logs, and returns them if they explain a failure.

ONNX Runtime and its providers print some errors to the process's standard output and error instead of raising them.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from ortdeploy.redaction import without_secrets

_KEPT = 64 * 1024  # bytes of the end of what was printed
_ERROR = r"\[[EF]:onnxruntime:[^\]]*\] ([^\x1b\n]+)"
_LOG_LINE = r"\[[VIW]:onnxruntime:"
_ESCAPES = r"\x1b\[[0-9;]*m"


class NativeOutput:
    """An unnamed file for the prints of native libraries."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Use an open file, or make one; in memory if the system can."""
        self.descriptor = _make_file() if descriptor is None else descriptor

    def take(self) -> str:
        """Return the end of the prints since the last call, and forget them."""
        flush_native()
        size = os.fstat(self.descriptor).st_size
        start = max(0, size - _KEPT)
        os.lseek(self.descriptor, start, os.SEEK_SET)
        text = os.read(self.descriptor, size - start)
        os.ftruncate(self.descriptor, 0)
        return without_secrets(re.sub(_ESCAPES, "", text.decode("utf-8", errors="replace")))

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Redirect the descriptors 1 and 2 to this file inside the block."""
        saved = os.dup(1), os.dup(2)
        for number in (1, 2):
            os.dup2(self.descriptor, number)
        try:
            yield
        finally:
            flush_native()
            for number, before in zip((1, 2), saved, strict=True):
                os.dup2(before, number)
                os.close(before)


@contextmanager
def put_aside() -> Iterator[None]:
    """Keep the prints of native libraries out of a block, for those that tell nothing that their errors do not say.

    What Python prints must go elsewhere: see `private_streams`. Other threads print into it as well.
    """
    with closing(NativeOutput()) as native, native.taking():
        yield


def _make_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ortdeploy-native-output")
        import fcntl  # noqa: PLC0415  where there is memfd_create, there is fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        return descriptor
    import tempfile  # noqa: PLC0415  only where there is no memfd_create

    with tempfile.TemporaryFile("a+b") as file:
        return os.dup(file.fileno())


def flush_native() -> None:
    """Flush the buffers of the C library."""
    with suppress(OSError, TypeError):  # where there is no such C library to name
        ctypes.CDLL(None).fflush(None)


def last_error_line(printed: str) -> str:
    """Return the printed line that says what went wrong, as a sentence to append; empty if there is none."""
    errors = re.findall(_ERROR, printed)
    plain = [line for line in printed.splitlines() if line.strip() and not re.search(_LOG_LINE, line)]
    line = errors[0] if errors else plain[-1] if plain else ""
    return f' It printed: "{line.strip()}".' if line else ""


def appended_reason(printed: str) -> str:
    """Return the same as `last_error_line`, to end a message that has no full stop yet."""
    sentence = last_error_line(printed)
    return f".{sentence.removesuffix('.')}" if sentence else ""
