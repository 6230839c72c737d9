"""How far a job is that several workers run: who has made what, who is slow, and what is left."""

from msgspec import Struct


class WorkerShare(Struct, frozen=True, kw_only=True):
    """What one worker has made: its host and its shard, or its name at an engine; `seconds` of all its parts."""

    name: str
    parts: int
    rows: int
    failed: int
    seconds: float

    @property
    def seconds_a_part(self) -> float:
        """Seconds of a part on average."""
        return self.seconds / self.parts


class SlowPart(Struct, frozen=True, kw_only=True):
    """A part that took, or has been left unwritten for, much longer than the others take: rows `start` to `end`.

    `worker` made it; None if it is not decided: nothing was written into it for these `seconds`.
    """

    part: int
    start: int
    end: int
    seconds: float
    worker: str | None


class ProcessorShare(Struct, frozen=True, kw_only=True):
    """How many parts workers with one kind of processor have made."""

    processor: str
    parts: int


class Shares(Struct, frozen=True, kw_only=True):
    """The parts of one job of one plan. `left` are the first and last number of each run of parts that are not decided.

    `median` is that of the seconds of a part; None if no part is decided. `slow` are the slowest, the worst first.
    `mixed_workers` is empty if all parts were made on equal processors; else the last digits of results may differ.
    """

    parts: int
    decided: int
    rows: int
    all_rows: int
    failed: int
    workers: tuple[WorkerShare, ...]
    slow: tuple[SlowPart, ...]
    left: tuple[tuple[int, int], ...]
    median: float | None
    mixed_workers: tuple[ProcessorShare, ...] = ()
