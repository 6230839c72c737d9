"""Keeps a job within its memory limit: watches the resident set between batches, and limits allocation.

What one run allocates shows only when it happens. So on Linux the private memory of the process is limited too: an
allocation beyond the limit fails inside of the run, and the batch is halved, before the kernel's out-of-memory killer
ends the process.
"""

import time
from contextlib import suppress
from typing import Self

from ortdeploy.process.leaks import LeakWatch
from ortdeploy.process.memory import (
    allocated_memory,
    available_memory,
    held_memory,
    memory_of_the_group,
    trim_memory,
)

NEAR = 0.9
"""The share of the limit above which batches get smaller."""

_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_BETWEEN_TRIMS = 0.2
_GROWN = 1.02
_STACK_BYTES = 8 * 1024 * 1024


class MemoryWatch:
    """Watches the memory of one job. `limit` is in bytes: the smaller of the manifest's and the control group's.

    `leak` watches whether it grows.
    """

    def __init__(self, limit: int | None, threads: int, *, trim: bool = False) -> None:
        """Take the manifest's limit in bytes and the number of threads; `trim`: return freed memory as the job runs."""
        self._declared = limit
        self._trim = trim
        self._looked = self._trimmed = 0.0
        self._highest = 0
        self.limit = self._find_limit()
        self.bound = MemoryBound(self.limit, threads)
        self.resident = 0
        self.leak = LeakWatch()

    def _find_limit(self) -> int | None:
        limits = [limit for limit in (self._declared, memory_of_the_group()) if limit is not None]
        return min(limits, default=None)

    def is_near(self) -> bool:
        """Return whether memory is near the limit, and has grown since this was last True."""
        now = time.perf_counter()
        if now - self._looked < _SECONDS_BETWEEN_LOOKS or not (self._trim or self.limit):
            return False
        self._looked = now
        if self._trim and now - self._trimmed > _SECONDS_BETWEEN_TRIMS:
            self._trimmed = now
            trim_memory()
        self.limit = self.bound.limit = self._find_limit()  # that of a control group may change
        self.bound.renew()
        if self.limit is None or not self._is_over(NEAR):
            return False
        trim_memory()
        if not self._is_over(NEAR) or self.resident < self._highest * _GROWN:
            return False
        self._highest = self.resident
        return True

    @property
    def room(self) -> int | None:
        """The bytes that the job may take beside those that it has; None if the system does not tell."""
        held = held_memory()
        return available_memory() if self.limit is None or held is None else max(self.limit - held, 0)

    def end(self) -> None:
        """Give freed memory back, for whatever comes after the job."""
        if self._trim:
            trim_memory()

    @property
    def is_over(self) -> bool:
        """Whether memory is above the limit itself."""
        return self.limit is not None and self._is_over(1.0)

    def _is_over(self, share: float) -> bool:
        self.resident = held_memory() or 0
        return self.limit is not None and self.resident > self.limit * share


class MemoryBound:
    """Keeps the process from allocating more memory than a limit allows; Linux only, otherwise a no-op.

    RLIMIT_DATA counts private writable memory, resident or not, and an arena reserves more than it uses. So the bound
    is computed again from the resident set while the job runs. `threads` is the number of threads whose stacks are to
    come, `mapped` are the bytes of files that are to be mapped: as ONNX Runtime maps them, they count as private.
    """

    def __init__(self, limit: int | None, threads: int, *, mapped: int = 0) -> None:
        """Take the limit in bytes; nothing is limited before `__enter__`."""
        self.limit = limit
        self._to_come = threads * _STACK_BYTES + mapped
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        """Limit allocation from now on."""
        if self.limit is not None and allocated_memory() is not None:
            import resource  # noqa: PLC0415  not on Windows, and allocated_memory tells only on Linux

            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            self.renew()
            _bounds.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the limit."""
        if self._before is not None:
            _bounds.remove(self)
            self._set(self._before[0])
            self._before = None

    def renew(self) -> None:
        """Set the bound to what is allocated now, plus the bytes between the resident set and the limit."""
        allocated, resident = allocated_memory(), held_memory()
        if self._before is not None and allocated is not None and resident is not None and self.limit is not None:
            room = max(self.limit - resident, 0) + self._to_come
            hard = self._before[1]
            self._set(allocated + room if hard < 0 else min(allocated + room, hard))

    def _set(self, soft: int) -> None:
        import resource  # noqa: PLC0415  not on Windows

        if self._before is not None:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (soft, self._before[1]))


_bounds: list[MemoryBound] = []
"""Those that limit this process, the last one in effect."""


def make_room() -> None:
    """Give freed memory back, and let it be allocated again, for something that has lacked it."""
    trim_memory()
    for bound in _bounds[-1:]:
        bound.renew()
