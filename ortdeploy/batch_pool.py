"""Runs the batches of a job on one session or on several at once, and yields the results in the batches' order."""

import contextvars
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import structlog

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.opening import OpenedSession
from ortdeploy.plan import RunJob
from ortdeploy.rows import Outcome, RowRunner
from ortdeploy.sources.protocol import Batch

log = structlog.get_logger()

_AHEAD = 2  # batches in flight for each session: one that runs, one that waits for it


@dataclass(slots=True, kw_only=True)
class Member:
    """A session of the pool with what it has done; `failure` says why it takes no more batches."""

    opened: OpenedSession
    rows: RowRunner
    batches: int = 0
    done: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A batch that went through all stages, and how long it took."""

    batch: Batch
    outcome: Outcome
    seconds: float


class BatchPool:
    """The sessions that a job runs on. One session runs in the caller's thread, several in one thread each."""

    def __init__(self, job: RunJob, sessions: Sequence[OpenedSession], *, dispensable: bool) -> None:
        """Take the job's sessions; `dispensable` ones may fail while another is left."""
        self.members = [Member(opened=opened, rows=RowRunner(job, opened.session, opened.probe)) for opened in sessions]
        self._dispensable = dispensable

    def run(self, batches: Iterable[Batch]) -> Iterator[Finished]:
        """Run batches as they come. Raises what RowRunner.run raises, ProviderFailedError when no session is left."""
        if len(self.members) == 1:
            only = self.members[0]
            return (_run_on(only, batch) for batch in batches)
        return self._run_together(batches)

    def _run_together(self, batches: Iterable[Batch]) -> Iterator[Finished]:
        idle: SimpleQueue[Member | None] = SimpleQueue()
        for member in self.members:
            idle.put(member)
        waiting: deque[Future[Finished]] = deque()
        with ThreadPoolExecutor(len(self.members), "session") as threads:
            try:
                for batch in batches:
                    context = contextvars.copy_context()  # so that what a thread logs names the job
                    waiting.append(threads.submit(context.run, self._run_somewhere, idle, batch))
                    if len(waiting) >= _AHEAD * len(self.members):
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _run_somewhere(self, idle: "SimpleQueue[Member | None]", batch: Batch) -> Finished:
        """Run a batch on the session that is free first; on another one when its provider fails and may."""
        while True:
            member = idle.get()
            if member is None:
                idle.put(None)  # for the threads that wait behind this one
                raise ProviderFailedError("no session is left")
            try:
                finished = _run_on(member, batch)
            except ProviderFailedError as error:
                member.failure = str(error)
                left = any(other.failure is None for other in self.members)
                if not (self._dispensable and left):
                    idle.put(None)
                    raise
                name = member.opened.candidate.name
                log.warning("session.failed", session=name, instance=member.opened.instance, reason=str(error))
                continue
            except BaseException:
                idle.put(member)
                raise
            idle.put(member)
            return finished


def _run_on(member: Member, batch: Batch) -> Finished:
    begin = time.perf_counter()
    outcome = member.rows.run(batch)
    member.batches += 1
    member.done += batch.count
    return Finished(batch=batch, outcome=outcome, seconds=time.perf_counter() - begin)
