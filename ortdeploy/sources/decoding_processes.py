"""Decodes small files that are a row each in other processes too, where one alone would hold up the sessions.

Most of a small picture's time is Python's own, and threads share one Python. A process is told the paths of some files
and answers with their values. This one decodes what lacks in an answer: files that cannot be read, of which all is said
here, large ones, and all that a process leaves when it ends.
"""

import importlib
import pickle
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from types import TracebackType
from typing import Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.files.memory_budget import limit_budget, room
from ortdeploy.process.child import Asked, Child
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.sources.prefetch import SHARE
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import Decode, Found, RowError, stack, try_row
from ortdeploy.sources.whole_files import WholeFiles
from ortdeploy.tensors.columns import Column, size_bytes

_MOST = 3
"""Processes. To take a small picture from an answer takes a quarter of the time in which it is decoded."""
_PROCESS = 64 * 1024 * 1024
"""Bytes of a process: CPython, numpy, Pillow, and the rows of its chunks."""
_SECONDS, _ROWS, _LEAST = 0.01, 256, 4
"""What a chunk takes to decode, its most rows, and its fewest that are worth a message."""
_LATE, _BYTES = 1.0, 4 * 1024 * 1024
"""Seconds, and bytes of its rows, after which the rest of a chunk is left, and the next one has half the rows."""
_UNDER_WAY = 4
"""Chunks of a process, so that it has the next ones when it has answered."""

_Whole = tuple[int, int, bytes]
"""What is noted of a file that was read whole: its size, its time and a digest."""


class _Answer(Struct, frozen=True):
    """The first rows of a chunk, None for each that lacks. A process tells `cpu`, the processor seconds."""

    rows: Sequence[Found | None]
    cpu: float = 0.0


class _Chunk(Struct, frozen=True):
    """Rows that are decoded together."""

    raw_rows: Sequence[RawRow]
    answer: "Future[_Answer]"


class DecodingProcesses:
    """The processes of one job."""

    def __init__(
        self, form: str, wanted: Wanted, whole: WholeFiles | None, spent: Callable[[float], None], seconds: float
    ) -> None:
        """Take the name of the format, and how many `seconds` a row takes.

        To `whole` is added what is noted of files. `spent` is told the processor seconds of processes.
        """
        told = b64encode(pickle.dumps(replace(wanted, only=None, indexes=None)))
        self._request = {"format": form, "wanted": told.decode("ascii")}
        self._count = min(wanted.processes, _MOST, int(room(None) * SHARE / _PROCESS))
        self._whole = whole
        self._spent = spent
        self.rows_of_a_chunk = max(_LEAST, min(int(_SECONDS / seconds), _ROWS))

    def rows(self, raw_rows: Iterator[RawRow], decode: Callable[[RawRow], Found]) -> Generator[tuple[RawRow, Found]]:
        """Yield rows in their order; end before the last one where a process has ended, or where rows are large.

        `decode` decodes a row in this process.
        """
        ahead: deque[_Chunk] = deque()
        with ExitStack() as stack:
            workers = [stack.enter_context(_Worker(self._request, self._whole)) for _ in range(self._count)]
            while True:
                for worker in workers:
                    while worker.under_way < _UNDER_WAY and (some := self._some(raw_rows)):
                        ahead.append(_Chunk(some, worker.begin(some)))
                if not ahead:
                    return
                may_decode = not ahead[0].answer.done() and len(ahead) <= 2 * _UNDER_WAY * len(workers)
                if may_decode and (some := self._some(raw_rows)):
                    ahead.append(_Chunk(some, _decoded_here(some, decode)))
                    continue
                is_complete = yield from self._taken(ahead.popleft(), decode)
                if not is_complete:
                    self.rows_of_a_chunk //= 2
                    workers = workers if self.rows_of_a_chunk >= _LEAST else []

    def _some(self, raw_rows: Iterator[RawRow]) -> Sequence[RawRow]:
        return list(islice(raw_rows, self.rows_of_a_chunk))

    def _taken(self, chunk: _Chunk, decode: Callable[[RawRow], Found]) -> Generator[tuple[RawRow, Found], None, bool]:
        """Yield the rows of a chunk; return whether its answer was complete."""
        answer = chunk.answer.result()
        self._spent(answer.cpu)
        lacking = [None] * (len(chunk.raw_rows) - len(answer.rows))
        for raw, found in zip(chunk.raw_rows, (*answer.rows, *lacking), strict=True):
            yield raw, decode(raw) if found is None else found
        return not lacking


class _Worker:
    """A process, with a thread that waits for its answers."""

    def __init__(self, request: Mapping[str, Any], whole: WholeFiles | None) -> None:
        """Take what the process is told; the `with` block starts it. One that cannot be started has ended."""
        self._child = Child(__name__, request, listens=True)
        self._whole = whole
        self._stack = ExitStack()
        self._changing = threading.Lock()
        self._asked: deque[_Chunk] = deque()
        self._lives = False

    def __enter__(self) -> Self:
        with suppress(OSError, RuntimeError):  # the machine has no room for a process, or for the stack of a thread
            self._stack.enter_context(self._child)
            self._lives = True
            threading.Thread(target=self._listen, name="ortdeploy-decoded", daemon=True).start()
            return self
        self._lives = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def under_way(self) -> int:
        return len(self._asked)

    def begin(self, raw_rows: Sequence[RawRow]) -> "Future[_Answer]":
        """Have rows decoded. If the process ends, the answer has none of them."""
        answer: Future[_Answer] = Future()
        with self._changing:
            if not self._lives:
                answer.set_result(_Answer(()))
                return answer
            self._asked.append(_Chunk(raw_rows, answer))
        self._child.tell(paths=[raw.value for raw in raw_rows])
        return answer

    def _listen(self) -> None:
        """Body of the thread: pass the answers on."""
        try:
            for message in self._child.messages():
                chunk = self._asked[0]
                answer = self._read(chunk.raw_rows, message)
                self._asked.popleft()
                chunk.answer.set_result(answer)
        finally:
            with self._changing:
                self._lives = False
                while self._asked:
                    self._asked.popleft().answer.set_result(_Answer(()))

    def _read(self, raw_rows: Sequence[RawRow], message: Mapping[str, Any]) -> _Answer:
        """Return the answer of a message, and note what it tells of files."""
        columns, noted = pickle.loads(message["blob"])  # noqa: S301  from this same program
        rows: list[Found | None] = [None] * message["count"]
        names = tuple(columns)
        for place, *cells in zip(message["places"], *columns.values(), strict=True):
            rows[place] = (dict(zip(names, cells, strict=True)), 1)
        if self._whole is not None:
            self._whole.update({raw_rows[place].path: one for place, one in noted})
        return _Answer(rows, message["cpu"])


def _decoded_here(raw_rows: Sequence[RawRow], decode: Callable[[RawRow], Found]) -> "Future[_Answer]":
    answer: Future[_Answer] = Future()
    answer.set_result(_Answer(_in_time(decode(raw) for raw in raw_rows)))
    return answer


def _in_time(rows: Iterable[Found | None]) -> list[Found | None]:
    """Return the first rows: those that are decoded in good time, and within the memory of a chunk."""
    until, size, taken = time.perf_counter() + _LATE, 0, list[Found | None]()
    for row in rows:
        taken.append(row)
        if row is not None and not isinstance(row[0], RowError):
            size += size_bytes({name: [value] for name, value in row[0].items()})
        if size > _BYTES or time.perf_counter() > until:
            break
    return taken


def main(asked: Asked) -> None:
    """Be a process: decode the files that are told. What warns, or needs much memory, is left to the parent."""
    limit_budget(_BYTES)
    wanted: Wanted = pickle.loads(b64decode(asked.request["wanted"]))  # noqa: S301  from this same program
    module = importlib.import_module(f"{__package__}.{asked.request['format']}")
    opened = module.open_source((), "", wanted)
    with opened as source, ThreadPoolExecutor(1) as answering, warnings_to(_leave_to_the_parent):
        for message in asked.told():
            begin, paths = time.process_time(), message["paths"]
            rows = _in_time(_decoded(RawRow(path, "", path), source.decode, wanted) for path in paths)
            whole = {} if source.whole is None else source.whole
            noted = [(place, whole.pop(path)) for place, path in enumerate(paths) if path in whole]
            cpu = time.process_time() - begin
            answering.submit(_answer, asked, rows, noted, cpu)  # the pipe may be full until the parent has a moment


def _leave_to_the_parent(_category: str, text: str, _place: str) -> None:
    raise RowError(text)


def _decoded(raw: RawRow, decode: Decode, wanted: Wanted) -> Found | None:
    try:
        values = try_row(raw, decode, wanted)
    except Exception:  # noqa: BLE001  the parent meets it too, and says what is to be said
        return None
    return None if isinstance(values, RowError) else (values, 1)


def _answer(asked: Asked, rows: Sequence[Found | None], noted: Sequence[tuple[int, _Whole]], cpu: float) -> None:
    there: dict[int, Any] = {place: row[0] for place, row in enumerate(rows) if row is not None}
    names = tuple(next(iter(there.values()), ()))
    columns = {name: _together([row[name] for row in there.values()]) for name in names}
    blob = pickle.dumps((columns, noted), pickle.HIGHEST_PROTOCOL)
    asked.say(blob, count=len(rows), places=[*there], cpu=cpu)


def _together(values: list[Any]) -> Column:
    """Return arrays of one shape as one, which is passed on sooner; numbers would not come out as arrays again."""
    return stack(values) if isinstance(values[0], np.ndarray) and values[0].ndim else values
