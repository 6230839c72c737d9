"""Reads the blocks of a job and makes their tensors: on several threads, where one would hold up the sessions.

Blocks keep their order. Quick ones are prepared by the thread that reads, because handing a block to another thread
takes longer. Pillow, soxr and numpy let other threads work meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.durations import Histogram
from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.feeds.row_sources import prepared_at_once
from ortdeploy.files.memory_budget import release_others
from ortdeploy.plan.steps import RunJob
from ortdeploy.process.daemon_threads import DaemonThreads, Timed, timed
from ortdeploy.results.rows import Block
from ortdeploy.streaming.stall_watch import StallWatch
from ortdeploy.tensors.columns import OpRunners, size_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future

SLOW = 0.005
"""Seconds: preparing a block that takes longer is worth another thread."""


class _Made(Struct, frozen=True, kw_only=True):
    """A block with its tensors, and the bytes that its steps have taken beside them meanwhile."""

    prepared: Prepared
    meanwhile: int


_Ahead = tuple[Block, float, "Future[Timed[_Made]] | None"]
"""A block, the processor seconds in which it was read, and what another thread makes of it; None: it is not begun."""


class BlockReader:
    """Reads the blocks of one job. `read_times` and `prepare_times` say how long that took."""

    def __init__(self, job: RunJob, ops: OpRunners, stall: StallWatch, are_waiting: Callable[[], bool]) -> None:
        """Begin with one thread, that of the caller.

        `ops` run prepare steps that are operators. `are_waiting` says whether sessions have nothing to run.
        """
        self._job = job
        self._ops = ops
        self._stall = stall
        self._are_waiting = are_waiting
        self._feeders = [Feeder(job, ops)]
        self._threads = DaemonThreads("ortdeploy-preparer")
        self._ahead: deque[_Ahead] = deque()
        self._wanted = 1
        self._is_taking = False
        self._failure: Exception | None = None
        self._own_cpu = self._others_cpu = 0.0
        self.read_times, self.prepare_times = Histogram(), Histogram()

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the thread that reads, and of those that decode and prepare for it."""
        return self._own_cpu + self._others_cpu

    def next(self, blocks: Iterator[Block]) -> tuple[Prepared, float] | None:
        """Return the next block with its tensors and the processor seconds that it took; None at the end.

        Raises what reading or preparing it raises, in its turn.
        """
        self._stall.reading = time.perf_counter()
        try:
            self._fill(blocks)
            if not self._ahead and self._failure is not None:
                raise self._failure
            return self._take() if self._ahead else None
        finally:
            self._stall.reading = None

    def next_ahead(self) -> tuple[Prepared, float] | None:
        """Return the next block that is read already, while a later one is read; None if there is none."""
        return self._take() if self._ahead and not self._is_taking else None

    def close(self) -> None:
        """Let the threads end."""
        self._ahead.clear()
        self._threads.close()

    def _fill(self, blocks: Iterator[Block]) -> None:
        """Read a block, and more until as many are under way as are wanted, or until the first of them is prepared.

        Reading may be slow too, and no block is to wait for later ones.
        """
        while self._may_read_ahead() and (read := self._read(blocks)) is not None:
            self._ahead.append((*read, self._begin(read[0])))
            del read  # it may be large, and passed on while the next one is read
            if self._is_first_prepared():
                break

    def _begin(self, block: Block) -> "Future[Timed[_Made]] | None":
        """Let a thread prepare a block, if one is not enough."""
        return self._threads.begin(partial(self._make, block), len(self._ahead)) if self._wanted > 1 else None

    def _is_first_prepared(self) -> bool:
        first = self._ahead[0][2]
        return first is not None and first.done()

    def _may_read_ahead(self) -> bool:
        """Return whether to read another block; none behind one that is so large that it is to be prepared alone."""
        if not self._ahead:
            return True
        last = self._ahead[-1][0]
        return len(self._ahead) < self._wanted and prepared_at_once(self._job, size_bytes(last.columns)) > 1

    def _read(self, blocks: Iterator[Block]) -> tuple[Block, float] | None:
        """Read a block; None at the end, also if it is an error, which waits for the blocks before it."""
        begin = time.perf_counter()
        try:
            block = None if self._failure is not None else next(blocks, None)
        except Exception as error:  # noqa: BLE001  `next` raises it in its turn
            self._failure = error
            return None
        cpu = self._since() + (0.0 if block is None else block.decoding_cpu)
        if block is None:
            return None
        self._others_cpu += block.decoding_cpu
        self.read_times.add(time.perf_counter() - begin, cpu)
        return block, cpu

    def _take(self) -> tuple[Prepared, float]:
        """Return the block that was read first, once it is prepared."""
        block, read_cpu, future = self._ahead.popleft()
        self._since()
        self._is_taking = True
        try:
            done = self._result(block, future)
        finally:
            self._is_taking = False
        own = self._since() if done.cpu == 0 else 0.0  # else this thread has waited
        self._others_cpu += done.cpu
        self.prepare_times.add(done.seconds, own + done.cpu)
        self._wanted = self._useful(done)
        return done.value.prepared, read_cpu + own + done.cpu

    def _result(self, block: Block, future: "Future[Timed[_Made]] | None") -> Timed[_Made]:
        """Return a block with its tensors; one for which there is too little memory beside others is made alone."""
        try:
            return timed(partial(self._make, block)) if future is None else future.result()
        except MemoryError as error:
            error.__traceback__ = None  # it has what was made until then
        self._forget_ahead()
        release_others()
        return timed(partial(self._make, block))

    def _forget_ahead(self) -> None:
        """Let go of what was made of later blocks, once no thread makes any more of it: it is made again."""
        from concurrent.futures import wait  # noqa: PLC0415  only where memory is short

        wait([future for _, _, future in self._ahead if future is not None])
        self._ahead = deque((block, cpu, None) for block, cpu, _ in self._ahead)

    def _make(self, block: Block) -> _Made:
        """Make the tensors of a block, with steps that no other thread uses meanwhile."""
        try:
            feeder = self._feeders.pop()
        except IndexError:  # all are in use
            feeder = Feeder(self._job, self._ops)
        try:
            feeds = feeder.prepare_block(block)
            prepared = Prepared(block=block, feeds=feeds)
            meanwhile = max(sum(made.size for made in feeder.made) - prepared.fed_bytes, 0) + feeder.scratch
            return _Made(prepared=prepared, meanwhile=meanwhile)
        finally:
            self._feeders.append(feeder)

    def _useful(self, done: Timed[_Made]) -> int:
        """Return how many blocks like this one are to be prepared at once."""
        if done.seconds < SLOW or (self._wanted == 1 and not self._are_waiting()):
            return 1
        return prepared_at_once(self._job, done.value.prepared.size_bytes + done.value.meanwhile)

    def _since(self) -> float:
        """Return this thread's processor seconds since the last call."""
        before, self._own_cpu = self._own_cpu, time.thread_time()
        return self._own_cpu - before
