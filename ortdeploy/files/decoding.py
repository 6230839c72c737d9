"""Turns every exception of a library that decodes a file into one error with a message.

On a damaged file, decoders raise RuntimeError, KeyError, UnicodeDecodeError or classes of their own; no list of them is
complete. So the line that raised decides: if it is a decoder's, the file is damaged; if it is ortdeploy's, ortdeploy
has a bug. ortdeploy checks the content that it parses itself before it looks anything up in it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"

_MISTAKES = (
    NameError, AssertionError, AttributeError, NotImplementedError, LookupError, TypeError, ZeroDivisionError,
)  # fmt: skip
"""Errors that show a bug if a line of ortdeploy raised them; a decoder raises them in its own file."""

_LONGEST = 300
"""Characters of a decoder's message that are shown; some messages quote the file."""


def is_a_bug(error: Exception) -> bool:
    """Return whether an exception is a bug of ortdeploy, and not a decoder's complaint about a file.

    Native decoders have no frame of their own, so ValueError, RuntimeError, OSError and classes of decoders count as
    complaints even if the innermost frame is ortdeploy's.
    """
    if isinstance(error, ImportError):
        return True  # a broken installation, not a broken file
    return isinstance(error, _MISTAKES) and _raised_here(error)


def _raised_here(error: Exception) -> bool:
    """Return whether the innermost frame is a line of ortdeploy."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def reason_of(error: Exception) -> str:
    """Return a decoder's message as one printable line of limited length."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split()) or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


@contextmanager
def decoding(name: str | Callable[[], str], kind: str) -> Iterator[None]:
    """Turn exceptions from reading a file into an OrtdeployError with the file's name and its expected kind.

    The name may be a function, which is called only when an error needs it.
    """
    try:
        yield
    except OrtdeployError:
        raise
    except Exception as error:
        if is_a_bug(error):
            raise
        expected = "" if isinstance(error, OSError) and error.errno else f" as {kind}"
        file = name if isinstance(name, str) else name()
        raise OrtdeployError(f"{file} cannot be read{expected}: {reason_of(error)}") from error
