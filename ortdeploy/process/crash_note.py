"""Notes a crash of native code in a file, so that it can be told from a kill or a power cut."""

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ortdeploy.process import last_words


@contextmanager
def crashes_noted_in(path: Path | None) -> Iterator[None]:
    """Append to a file how this process crashes, if it does so in the block: a line, and the stack of the thread.

    The stacks of the other threads are left out: they run on while theirs are read, and the note itself would crash.
    """
    if path is None:
        yield
        return
    is_asked_for = faulthandler.is_enabled() and not last_words.has_crashes_told()
    with path.open("ab") as file:
        faulthandler.enable(file, all_threads=False)
        last_words.noted_in(path)
        try:
            yield
        finally:
            faulthandler.disable()
            last_words.noted_in(None)
            if is_asked_for:  # by PYTHONFAULTHANDLER
                with suppress(OSError, ValueError, AttributeError, RuntimeError):
                    faulthandler.enable(sys.__stderr__ or sys.stderr)
            else:
                last_words.have_crashes_told()
