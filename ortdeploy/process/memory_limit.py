"""Keeps a job within its memory limit: watches the resident set between batches, and bounds allocation.

What one run allocates cannot be seen before it happens, so on Linux the process's private memory is bounded as well:
an allocation beyond the limit fails inside of the run, which is then halved, instead of waking the kernel's
out-of-memory killer.
"""

import time
from contextlib import suppress
from typing import Self

from ortdeploy.process.memory import allocated_memory, held_memory, memory_of_the_group, trim_memory

NEAR = 0.9
"""From this share of the limit on, batches get smaller."""

_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_BETWEEN_TRIMS = 0.2
_GROWN = 1.02
_STACK_BYTES = 8 * 1024 * 1024


class MemoryWatch:
    """Watches one job. `limit` is in bytes: the manifest's, or that of the control group, whatever is less."""

    def __init__(self, limit: int | None, threads: int, *, trim: bool = False) -> None:
        """Take the manifest's limit, and the threads to come; `trim`: freed memory goes back as the job runs."""
        self._declared = limit
        self._trim = trim
        self._looked = self._trimmed = 0.0
        self._highest = 0
        self.limit = self._find_limit()
        self.bound = MemoryBound(self.limit, threads)
        self.resident = 0

    def _find_limit(self) -> int | None:
        limits = [limit for limit in (self._declared, memory_of_the_group()) if limit is not None]
        return min(limits, default=None)

    def is_near(self) -> bool:
        """Return whether memory has come near the limit, and has grown since that was last said."""
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

    def end(self) -> None:
        """Give back what the job has freed, for what comes after it."""
        if self._trim:
            trim_memory()

    @property
    def is_over(self) -> bool:
        """Whether the limit itself is passed."""
        return self.limit is not None and self._is_over(1.0)

    def _is_over(self, share: float) -> bool:
        self.resident = held_memory() or 0
        return self.limit is not None and self.resident > self.limit * share


class MemoryBound:
    """Lets the process allocate no more than a limit has room for; Linux only, elsewhere it does nothing.

    RLIMIT_DATA counts private memory that can be written, also what is not resident yet: an arena asks for more than it
    uses. So the bound is renewed from what is resident as the job runs. `threads` are those whose stacks are to come.
    """

    def __init__(self, limit: int | None, threads: int) -> None:
        """Take the limit; nothing is bounded before `__enter__`."""
        self.limit = limit
        self._stacks = threads * _STACK_BYTES
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        """Bound what can be allocated from now on."""
        if self.limit is not None and allocated_memory() is not None:
            import resource  # noqa: PLC0415  not on Windows, and allocated_memory tells only on Linux

            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            self.renew()
        return self

    def __exit__(self, *_error: object) -> None:
        """Bound nothing any more."""
        if self._before is not None:
            self._set(self._before[0])
            self._before = None

    def renew(self) -> None:
        """Leave room for what lies between the resident set and the limit."""
        allocated, resident = allocated_memory(), held_memory()
        if self._before is not None and allocated is not None and resident is not None and self.limit is not None:
            room = max(self.limit - resident, 0) + self._stacks
            hard = self._before[1]
            self._set(allocated + room if hard < 0 else min(allocated + room, hard))

    def _set(self, soft: int) -> None:
        import resource  # noqa: PLC0415  not on Windows

        if self._before is not None:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (soft, self._before[1]))
