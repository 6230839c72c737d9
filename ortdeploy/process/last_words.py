"""Says why this process ended if it can no longer say so itself: native code crashed, or the system killed it.

A **watcher** is forked before a command is loaded. It waits at a pipe, takes no time, and shares a page with this
process. This process writes into that page what it does; the end of the pipe tells the watcher that it is gone. If it
has not taken its leave, the watcher says what it was doing, how it ended and what to do next, on standard error. So an
exit status stays what it was: 128 and the number of the signal, as shells have it.

How native code has crashed stands in the pipe, or in the file of `crash_note` while a job runs. If nobody handles the
signals that ask a process to end, faulthandler writes into the pipe that one came, and lets it end the process. Windows
has no fork, and so no watcher; the first process of a container takes its watcher with it.
"""

import faulthandler
import os
import signal
from contextlib import suppress

from ortdeploy.process.held_signals import HeldSignals

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from mmap import mmap
    from pathlib import Path
    from typing import NoReturn

_PAGE = 16 * 1024
_LANES = 64
_TEXT = _LANES * 16
"""Where the text begins in the page: behind the first and the last row that each thread runs, -1 if it runs none."""
_END = b"\0\0"
"""What ends the text."""
_LEAVE = b"\0"
_MOST_FILES = 4096
_SIGNALS = {
    "segmentation fault": "SIGSEGV",
    "floating": "SIGFPE",
    "aborted": "SIGABRT",
    "bus error": "SIGBUS",
    "illegal instruction": "SIGILL",
}
"""The signal that faulthandler names in other words."""
_MARK = "Fatal Python error: "
_ASKING = ("SIGTERM", "SIGHUP")
"""The signals that ask a process to end, and do so where nobody handles them."""


class _Watched:
    """What this process shares with its watcher: a page, the pipe, and what stands in the page."""

    def __init__(self, page: "mmap", pipe: int) -> None:
        self.page, self.pipe = page, pipe
        self.rows = memoryview(page)[:_TEXT].cast("q")
        self.doing: dict[str, str] = {}
        self.opened: dict[str, str] = {}
        self.lanes = 0
        self.is_told = False


_watched: _Watched | None = None


def begin(command: str) -> None:
    """Fork the watcher of this process, which runs a command. Without it, if the system has no process left."""
    global _watched  # noqa: PLW0603  a process has one watcher
    if not hasattr(os, "fork"):
        return
    from mmap import mmap  # noqa: PLC0415  where there is a watcher

    page = mmap(-1, _PAGE)
    page[:_TEXT] = b"\xff" * _TEXT
    reading, writing = os.pipe()
    with HeldSignals():
        try:
            if os.fork() == 0:
                _watch(reading, page, command)
        except OSError:  # the command will say it, if it needs a process
            os.close(writing)
            return
        finally:
            os.close(reading)
    _watched = _Watched(page, writing)
    os.register_at_fork(after_in_child=_forget)
    have_crashes_told()
    have_requests_told()


def have_crashes_told() -> None:
    """Let the watcher know how native code crashes, unless PYTHONFAULTHANDLER has asked for that on standard error."""
    if _watched is not None and not faulthandler.is_enabled():
        faulthandler.enable(_watched.pipe, all_threads=False)
        _watched.is_told = True


def has_crashes_told() -> bool:
    """Return whether the watcher is told how native code crashes."""
    return _watched is not None and _watched.is_told


def have_requests_told() -> None:
    """Let the watcher know of signals that ask this process to end, as long as nobody handles them."""
    if _watched is not None:
        for number in _unhandled():
            faulthandler.unregister(number)  # a handler that has gone took the place of this one
            faulthandler.register(number, _watched.pipe, all_threads=False, chain=True)


def _unhandled() -> "list[int]":
    """Return the signals that would end this process, and do not reach a handler of Python's."""
    numbers = (getattr(signal, name) for name in _ASKING)
    return [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]


def _tell_no_requests() -> None:
    """Let signals that ask this process to end do so without a word."""
    for number in _unhandled():
        faulthandler.unregister(number)


def doing(**what: str) -> None:
    """Note what this process does: `model` with the `session` that it opens, or with the `job` that it runs."""
    if _watched is not None:
        model = what.get("model", "")
        if "session" in what:
            _watched.opened[model] = what["session"]
        elif "job" in what and model in _watched.opened:
            what = {**what, "session": _watched.opened[model]}
        _watched.doing = {**{name: text for name, text in _watched.doing.items() if name == "note"}, **what}
        _write(_watched)


def noted_in(path: "Path | None") -> None:
    """Note the file in which a crash is noted; None: it is told over the pipe."""
    if _watched is not None:
        _watched.doing.pop("note", None)
        if path is not None:
            _watched.doing["note"] = os.path.abspath(path)  # noqa: PTH100  text
        _write(_watched)


class Lane:
    """The place at which one thread notes the rows that it runs. Of very many threads, some share one."""

    def __init__(self) -> None:
        self._view: memoryview | None = None
        self._begin, self._end, self._has_all = 0, -1, False
        if _watched is not None:
            self._view = _watched.rows
            self._at = _watched.lanes % _LANES * 2
            _watched.lanes += 1

    def block(self, rows: "Sequence[int]") -> None:
        """Note which rows of the job the next parts are of."""
        self._begin, self._end = rows[0], rows[-1]
        self._has_all = self._end - self._begin + 1 == len(rows)

    def part(self, places: range) -> None:
        """Note that rows of the block begin to run, by their places in it; all of a block that lacks some."""
        if self._has_all:
            self.run(self._begin + places.start, self._begin + places.stop - 1)
        else:
            self.run(self._begin, self._end)

    def run(self, first: int, last: int) -> None:
        """Note that these rows of the job begin to run."""
        if self._view is not None:
            self._view[self._at], self._view[self._at + 1] = first, last

    def rest(self) -> None:
        """Note that they have run."""
        if self._view is not None:
            self._view[self._at] = -1


def leave() -> None:
    """Tell the watcher that this process ends, and says itself what there is to say."""
    global _watched  # noqa: PLW0603
    if _watched is not None:
        _tell_no_requests()
        with suppress(OSError):
            os.write(_watched.pipe, _LEAVE)
        _watched = None


def _write(watched: _Watched) -> None:
    """Write what is done into the page: each name with its text and a zero, and one more zero at the end."""
    text = "".join(f"{name}={said}\0" for name, said in watched.doing.items()).encode(errors="surrogatepass")
    text = text[: _PAGE - _TEXT - len(_END)] + _END
    watched.page[_TEXT : _TEXT + len(text)] = text


def _read(page: bytes) -> "dict[str, str]":
    """Return what was done, as it stands in the page; nothing has to be loaded for it. Raises ValueError if cut off."""
    text = page[_TEXT:].partition(_END)[0].decode(errors="surrogatepass")
    return {name: said for name, _, said in (part.partition("=") for part in text.split("\0")) if name}


def _forget() -> None:
    """Let go of the watcher in a fork: it watches this process alone."""
    global _watched  # noqa: PLW0603
    if _watched is not None:
        if _watched.is_told:
            faulthandler.disable()
        _tell_no_requests()
        os.close(_watched.pipe)
        _watched = None


def _watch(reading: int, page: "mmap", command: str) -> "NoReturn":
    """Be the watcher: wait for the end of the process that forked it."""
    try:
        os.setsid()  # signals of a terminal are for the other one
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        os.chdir("/")
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(silence, number)
        os.closerange(3, reading)
        os.closerange(reading + 1, _MOST_FILES)
        before = _memory_kills()
        said = bytearray()
        while piece := os.read(reading, 4096):
            said += piece
        if not said.endswith(_LEAVE):
            _say(bytes(said), bytes(page), command, ran_out=_memory_kills() > before)
    finally:
        os._exit(0)


def _say(said: bytes, page: bytes, command: str, *, ran_out: bool) -> None:
    """Write the last words of the process."""
    doing: Mapping[str, str] = {}
    with suppress(ValueError):
        doing = _read(page)
    note = said.decode(errors="replace")
    if "note" in doing:
        with suppress(OSError), open(doing["note"], "rb") as file:  # noqa: PTH123  ours
            note += file.read(1 << 16).decode(errors="replace")
    numbers = memoryview(page)[:_TEXT].cast("q").tolist()
    rows = sorted({run for run in zip(numbers[::2], numbers[1::2], strict=True) if run[0] >= 0})
    words = last_words(command, doing, rows, crash=_crash_in(note), was_asked=bool(said), ran_out=ran_out)
    start = "\n" if os.isatty(2) else ""  # a live line may stand there
    os.write(2, f"{start}ortdeploy: {words}\n".encode(errors="replace"))


def _crash_in(note: str) -> str | None:
    """Return the signal of a crash that was noted, or what was noted of it; None if there is none."""
    if _MARK not in note:
        return None
    words = note.partition(_MARK)[2].partition("\n")[0].strip()
    return next((name for like, name in _SIGNALS.items() if like in words.lower()), words)


def last_words(
    command: str,
    doing: "Mapping[str, str]",
    rows: "list[tuple[int, int]]",
    *,
    crash: str | None,
    was_asked: bool,
    ran_out: bool,
) -> str:
    """Return in sentences how a process ended that runs a command, what it was doing, and what to do next.

    `rows` are the first and last rows of the runs that had begun. `crash` is the signal by which native code ended it,
    None if a signal came from outside. `was_asked`: by such a one to end; `ran_out`: the system killed it for memory.
    """
    if crash is not None:
        how = f"was ended by {crash}, as native code is that crashes"
    elif was_asked:
        how = f"was ended by {' or '.join(_ASKING)}, which ask a process to end"
    elif ran_out:
        how = "was killed by the system, because memory ran out"
    else:
        how = "was killed, as by SIGKILL; the system does that if memory runs out, see its log"
    what = f"the process that {what_it_did(doing, rows, command)} {how}."
    return f"{what} {_next(command, crash, is_run='job' in doing)}"


def what_it_did(doing: "Mapping[str, str]", rows: "list[tuple[int, int]]", command: str = "") -> str:
    """Say in words what a process was doing when it ended."""
    if "session" in doing and "job" not in doing:
        return f'opened session {doing["session"]} of model "{doing["model"]}"'
    if "job" in doing:
        on = f"session {doing['session']} of " if doing.get("session") else ""
        which = f" rows {_spans(rows)} of" if rows else ""
        return f'ran{which} job {doing["job"]} on {on}model "{doing["model"]}"'
    return f"ran ortdeploy {command}" if command else "ran the plan"


def _spans(rows: "list[tuple[int, int]]") -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in rows)


def _next(command: str, crash: str | None, *, is_run: bool) -> str:
    """Return what to do after an end."""
    if command in {"apply", "retry"}:
        again = f"What is committed stays. Give the same {command} again"
        if crash is None:
            return f"{again}: it goes on behind it."
        if is_run:
            return f"{again}: it looks for the rows that crash, notes them as failed rows, and goes on with the others."
        return f"{again}; if it ends so each time, open the model alone with ortdeploy check or try."
    if crash is None:
        return f"Give the same {command or 'command'} again."
    if is_run:
        return (
            "The model cannot take one of these rows on this machine: look at their values. An apply notes such rows "
            "as failed rows, as many as errors: {max_failed} allows."
        )
    return "A file that it reads may be damaged, or a native library: a newer version of that may help."


def _memory_kills() -> int:
    """Return how many processes of this control group the system has killed for memory; 0 if it does not say."""
    with suppress(OSError, ValueError):
        with open("/proc/self/cgroup", encoding="utf-8") as groups:  # noqa: PTH123  pathlib takes longer
            path = groups.read().rpartition("::")[2].partition("\n")[0]
        with open(f"/sys/fs/cgroup{path}/memory.events", encoding="utf-8") as events:  # noqa: PTH123
            return next(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
    return 0
