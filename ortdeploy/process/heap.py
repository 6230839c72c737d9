"""Settings of the C library's heap while a model is opened: big blocks are mapped alone, and go back when freed.

ONNX Runtime holds weights three times while it opens a model: as read, as tensors, and packed for its kernels. glibc
takes blocks from its heap if larger ones were freed before, and there the holes that freed weights leave between others
stay resident. A model of 34 MB took 77 to 107 MB more memory, depending on what the process had freed before; with its
blocks mapped alone it takes 44 MB (onnxruntime 1.32.0, glibc 2.36).
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as glibc's malloc.h numbers them."""

SMALL = 32 * 1024
"""The smallest block that is mapped alone while a model is opened; glibc begins with four times that."""

LARGE, KEPT = 32 * 1024 * 1024, 64 * 1024 * 1024
"""That size afterwards, and what the heap may keep at its end: the most to which glibc raises both by itself."""


SPARED = 1024 * 1024
"""That size where memory is scarce: values of runs go back when freed, and leave no holes; mapping takes time."""


class Heap:
    """The settings of this process's heap, which all threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening = 0
        self._alone = LARGE

    def spare(self, set_option: Callable[[int, int], int]) -> None:
        """Map big blocks alone from now on, also while no model is opened."""
        with self._lock:
            self._alone = SPARED
            if not self._opening:
                set_option(MMAP_THRESHOLD, SPARED)

    @contextmanager
    def opening(self, set_option: Callable[[int, int], int]) -> Iterator[None]:
        """Map big blocks alone until the last model that is being opened is open."""
        with self._lock:
            self._opening += 1
            set_option(MMAP_THRESHOLD, SMALL)
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1
                if not self._opening:
                    set_option(MMAP_THRESHOLD, self._alone)
                    set_option(TRIM_THRESHOLD, KEPT)


_heap = Heap()


@contextmanager
def weights_mapped_alone() -> Iterator[None]:
    """Map big blocks alone within the context; afterwards, take them from the heap, which is quicker.

    If the C library is not glibc, nothing happens.
    """
    set_option = mallopt()
    if set_option is None:
        yield
        return
    with _heap.opening(set_option):
        yield


def spare_memory() -> None:
    """Give big blocks back as soon as they are freed, until this process ends."""
    set_option = mallopt()
    if set_option is not None:
        _heap.spare(set_option)


@cache
def mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function that sets a parameter of the heap; None if the C library is another."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            found: Callable[[int, int], int] = library.mallopt
            return found
    return None
