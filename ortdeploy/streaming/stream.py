"""Overlaps reading, running and writing: one thread reads and prepares, one per session runs, the caller writes.

Others decode and prepare for the one that reads, if that is slow.

Blocks go from thread to thread through bounded queues and come out in the input's order. Only enough blocks to keep
every session busy are on their way, so memory does not grow with the input.
"""

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.events import log
from ortdeploy.feeds.in_flight import InFlight
from ortdeploy.files.memory_budget import on_memory_pressure
from ortdeploy.plan.steps import RunJob
from ortdeploy.plan.thread_layout import BY_RULE
from ortdeploy.sessions.opening import OpenedModel
from ortdeploy.sources.protocol import Source
from ortdeploy.streaming.block_reader import BlockReader
from ortdeploy.streaming.block_sizes import BlockSizes
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.streaming.member import Finished, Member, Ticket
from ortdeploy.streaming.row_runner import RowRunner
from ortdeploy.streaming.stall_watch import StalledError, StallWatch

PATIENCE = 1.0
"""Seconds to wait for the end of threads that are no longer needed, before they are left behind."""

SECONDS_OF_PYTHON = 50e-6
"""What a run takes of the interpreter lock, about: of shorter runs, other callers only wait for it."""

LEAST_CALLERS = 2
"""Callers that gain however short runs are: one prepares its next run while the other's computes."""

SETTLING = 2
"""Blocks that a caller has run before it may find that runs are too short for it."""

OpenSource = Callable[[], AbstractContextManager[Source]]


class Stream:
    """The threads of one job."""

    def __init__(self, job: RunJob, opened: OpenedModel, hooks: Hooks) -> None:
        """Make a thread's work of each of the job's sessions; none starts yet.

        If a hook wants to be told of each run, all threads work in turn, so that a crash can only be that run's;
        the executor has set `limits: {threads: 1}` then, so that no others decode or prepare.
        """
        self._job, self._hooks, self._layout = job, hooks, opened.layout
        sessions = opened.sessions
        self.members = [Member(opened=one, rows=RowRunner(job, one, hooks)) for one in sessions]
        self._waiting: SimpleQueue[Ticket | None] = SimpleQueue()
        self._began = time.perf_counter()
        self._left: list[float] = []
        self._quickest = math.inf
        self._threads: list[threading.Thread] = []
        self._dispensable = opened.dispensable
        self._stop = hooks.stop
        self._in_order: SimpleQueue[Ticket | BaseException | None] = SimpleQueue()
        self._in_flight = InFlight(len(sessions))
        self._alone: AbstractContextManager[object] = threading.Lock() if hooks.on_run else nullcontext()
        self._ending = threading.Lock()
        self._error: BaseException | None = None
        self._closed = False
        self._stall = StallWatch(job.errors.progress_timeout, self.members)
        self.reader = BlockReader(job, sessions[0].ops, self._stall, self._in_flight.lacks_blocks)
        self.stopped = False

    def run(self, open_source: OpenSource, start: int) -> Iterator[Finished]:
        """Yield every block of the source from row `start` on, in order.

        Raises what the source raises, ProviderFailedError when no session is left, StalledError, StuckRunError.
        """
        sizes = BlockSizes(self._job, start, len(self.members))
        self._threads.append(self._thread("reader", self._read, open_source, sizes, start))
        self._threads += [self._thread("session", self._serve, member, sizes) for member in self.members]
        try:
            while True:
                ticket = self._next_ticket()
                if ticket is None:
                    self._compare_last()
                    return
                if self._stop() and ticket.finished.claim():  # what has not begun is left to the next run
                    self.stopped = True
                    return
                finished = self._result(ticket)
                yield finished
                self._stall.progress()  # a slow disk is no session that hangs
                self._in_flight.release(ticket.size_bytes)
                del ticket, finished  # their memory is for the next block
        finally:
            self._close()

    def _compare_last(self) -> None:
        """Compare the last rows of each session, all of whose blocks are through. Raises as `RowRunner.run`."""
        for member in self.members:
            if member.failure is None:
                with self._alone:
                    member.rows.runs.finish()

    @property
    def session_seconds(self) -> float:
        """Seconds in which sessions were open to blocks, of all callers together."""
        now = time.perf_counter()
        return (now - self._began) * len(self.members) - sum(now - left for left in self._left)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the job's threads, without the sessions' own threads."""
        return self.reader.cpu_seconds + sum(member.cpu_seconds for member in self.members)

    def _thread(self, name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start a daemon thread with the logging context of this one."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(target, *arguments), name=f"ortdeploy-{name}", daemon=True)
        thread.start()
        return thread

    def _close(self) -> None:
        """End the threads; one that hangs in native code or on a file is left behind."""
        self._closed = True
        self._in_flight.close()
        self._end_sessions()
        patient_until = time.perf_counter() + PATIENCE
        for thread in self._threads:
            thread.join(max(patient_until - time.perf_counter(), 0))

    def _end_sessions(self) -> None:
        """Let the threads of the sessions end, once they are through with their blocks."""
        for _ in self.members:
            self._waiting.put(None)

    def _read(self, open_source: OpenSource, sizes: BlockSizes, start: int) -> None:
        """Body of the reader's thread: read blocks, prepare their tensors, pass them on."""
        try:
            if self._hooks.on_run is None:  # else nothing runs while this thread reads
                on_memory_pressure(self._let_go)
            with open_source() as source:
                blocks = source.blocks(start, sizes)
                while self._may_read():
                    with self._alone:
                        read = self.reader.next(blocks)
                    if read is None:
                        break
                    self._pass_on(Ticket(*read))
                    del read  # as in `run`
            self._in_order.put(None)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            self._in_order.put(error)
        finally:
            self.reader.close()

    def _pass_on(self, ticket: Ticket) -> None:
        """Offer a block that is read to the sessions."""
        self._in_flight.acquire(ticket.size_bytes)
        self._in_order.put(ticket)
        self._submit(ticket)

    def _let_go(self) -> None:
        """Pass on the blocks that are read, and wait until all have run: the thread that reads lacks their memory."""
        while self._may_read() and (read := self.reader.next_ahead()) is not None:
            self._pass_on(Ticket(*read))
            del read
        self._in_flight.wait_for_none()

    def _may_read(self) -> bool:
        """Wait for room; return whether another block is wanted."""
        if self._stop():
            self.stopped = True
            return False
        return self._in_flight.wait()

    def _serve(self, member: Member, sizes: BlockSizes) -> None:
        """Body of a session's thread: run waiting blocks until there are no more or the provider fails."""
        while (ticket := self._waiting.get()) is not None:
            if self._closed or not ticket.begin():
                return
            member.current = ticket
            try:
                with self._alone:
                    finished = self._run_on(member, ticket, sizes)
            except ProviderFailedError as error:
                member.failure = str(error)
                self._give_back(member, ticket, error)
                return
            except BaseException as error:  # noqa: BLE001  the caller raises it
                self._give_up(ticket, error)
                return
            if member.failure is not None:  # it was given up as hung, and another session has the block
                return
            member.current = None
            ticket.finished.set_result(finished)
            del ticket, finished  # as in `run`
            if self._is_too_many(member):
                self._left.append(time.perf_counter())
                return

    def _is_too_many(self, member: Member) -> bool:
        """Return whether runs are too short for as many callers as the cores have."""
        if self._layout != BY_RULE.name or member.blocks < SETTLING:
            return False
        return member.opened.instance >= max(LEAST_CALLERS, self._quickest / SECONDS_OF_PYTHON)

    def _run_on(self, member: Member, ticket: Ticket, sizes: BlockSizes) -> Finished:
        block = ticket.prepared.block
        begin = time.perf_counter()
        outcome = member.rows.run(ticket.prepared)
        seconds = time.perf_counter() - begin
        member.blocks += 1
        member.done += block.count
        member.cpu_seconds = time.thread_time()
        runs = -(-block.count // (self._job.batching.size or 1))
        self._quickest = min(self._quickest, seconds / max(runs, 1))
        sizes.learn(block.count, max(seconds, ticket.read_seconds), ticket.size_bytes + outcome.size_bytes)
        self._in_flight.learn(outcome.size_bytes)
        self._stall.progress()
        return Finished(block=block.without_values(), outcome=outcome, seconds=seconds)

    def _give_back(self, member: Member, ticket: Ticket, error: OrtdeployError) -> None:
        """Give the block of a failed session to another one; the job fails if none is left or none may fail."""
        left = any(other.failure is None for other in self.members)
        if not (self._dispensable and left):
            self._give_up(ticket, error)
            return
        opened = member.opened
        log.warning("session.failed", session=opened.candidate.name, instance=opened.instance, reason=str(error))
        self._submit(ticket)

    def _submit(self, ticket: Ticket) -> None:
        """Offer a block to the sessions; if none takes blocks any more, end it with the error that ended the job."""
        with self._ending:
            if self._error is None:
                self._waiting.put(ticket)
            elif ticket.begin():
                ticket.finished.set_exception(self._error)

    def _give_up(self, ticket: Ticket, error: BaseException) -> None:
        """End a block and all that wait for a session with an error."""
        with self._ending:
            self._error = error
            ticket.finished.set_exception(error)
            with suppress(Empty):
                while True:
                    waiting = self._waiting.get_nowait()
                    if waiting is not None and waiting.begin():
                        waiting.finished.set_exception(error)
            if self._closed:
                self._end_sessions()

    def _next_ticket(self) -> Ticket | None:
        """Return the next block on its way; None at the end, and once none has come since a stop was asked for.

        Raises what ended the reading, StalledError, StuckRunError.
        """
        while True:
            try:
                ticket = self._stall.patiently(lambda seconds: self._in_order.get(timeout=seconds))
            except Empty:
                if self._stop():
                    return self._last_ticket()
                self._stall.end_late_runs()
                self._stall.check()
                continue
            if isinstance(ticket, BaseException):
                raise ticket
            return ticket

    def _last_ticket(self) -> Ticket | None:
        """Return a block that has just come, for a session may have begun it; None if what is read is left as it is."""
        self._closed = True  # no session begins another one
        with suppress(Empty):
            ticket = self._in_order.get_nowait()
            if isinstance(ticket, BaseException):
                raise ticket
            return ticket
        self.stopped = True
        return None

    def _result(self, ticket: Ticket) -> Finished:
        """Wait for a block. Raises what running it raised, StalledError, StuckRunError."""
        while True:
            try:
                return self._stall.patiently(ticket.finished.result)
            except TimeoutError:
                if ticket.finished.done():  # since then, or it is the run that raised this
                    return ticket.finished.result()
                self._stall.end_late_runs()
                self._replace_hung(ticket)

    def _replace_hung(self, ticket: Ticket) -> None:
        """Give the block of a session that hangs to another one. Raises StalledError if there is none."""
        if not self._stall.is_stalled:
            return
        hung = next((member for member in self.members if member.current is ticket and member.failure is None), None)
        if hung is None:
            self._stall.check()
            return
        others = [other for other in self.members if other is not hung and other.failure is None]
        if not (self._dispensable and others):
            self._stall.check()
        hung.failure = self._stall.describe()
        self._stall.progress()
        self._give_back(hung, ticket, StalledError(hung.failure))
