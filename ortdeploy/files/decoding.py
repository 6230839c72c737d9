"""Turns every exception of a library that decodes a file into one error with a message.

Decoders raise what a damaged file makes them trip over: RuntimeError, KeyError, UnicodeDecodeError, classes of their
own. No list of them is ever complete, so everything counts as damage except what only a mistake of ortdeploy can raise.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"

_MISTAKES = (NameError, AssertionError, AttributeError, NotImplementedError)
"""What a line of ortdeploy's own raises when it is wrong; a decoder that raises one of them does so in its own file."""

_LONGEST = 300
"""Characters of a decoder's message that are shown: some quote the file."""


def is_a_bug(error: Exception) -> bool:
    """Return whether an exception is a mistake of ortdeploy, and not what a decoder says of a file.

    Native decoders leave no frame of their own, so a type that content can cause in them counts as damage.
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
    """Return what a decoder says, in one printable line that is not too long."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split()) or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


@contextmanager
def decoding(name: str | Callable[[], str], kind: str) -> Iterator[None]:
    """Turn what reading a file raises into an OrtdeployError with the file's name, and the kind of file it should be.

    A name that is only known when something is wrong can be given as a function.
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
