"""Progress file of a running job, replaced about once a second, so that `status` in another terminal can show it."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.durations import Pace
from ortdeploy.files.atomic import open_cached
from ortdeploy.files.disk import make_folders
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text
from ortdeploy.ledger.records import output_file
from ortdeploy.process.leaks import GROWTH
from ortdeploy.process.memory import memory_now, process_usage

FOLDER = "live"
SECONDS_BETWEEN = 1.0
_ALWAYS, _PERHAPS = ("done", "failed", "rows_per_second", "seconds"), ("total", "seconds_left")
_TOGETHER = frozenset({"cpu_seconds_user", "cpu_seconds_system", "major_faults", "involuntary_switches"})


class Live:
    """Writes the progress of one job; `growth` is how its memory grows, if it does.

    Errors of writing are ignored, because no result depends on the file.
    """

    def __init__(self, state_dir: Path, output: str, total: int | None, done: int, failed: int = 0) -> None:
        """Take the job's number of rows, and how many are done and failed already; write the first state."""
        self._path = output_file(state_dir, FOLDER, output, ".json")
        self._pace = Pace(total, done, SECONDS_BETWEEN)
        self._begin, self._usage = time.monotonic(), process_usage()
        self.growth: Mapping[str, float] = {}
        self._write(done, failed, 0.0, None)

    def rows_done(self, done: int, failed: int) -> None:
        """Write how many rows are done, at most about once a second."""
        told = self._pace.told(done)
        if told is None:
            return
        self._write(done, failed, *told)

    def _write(self, done: int, failed: int, rate: float, left: float | None) -> None:
        known = {
            "done": done,
            "total": self._pace.total,
            "failed": failed,
            "rows_per_second": round(rate, 1),
            "seconds_left": left,
            "seconds": round(time.monotonic() - self._begin, 3),
            **memory_now(),
            **({GROWTH: self.growth} if self.growth else {}),
            **{name: round(value - self._usage[name], 3) for name, value in process_usage().items()},
        }
        with suppress(OSError):
            make_folders(self._path.parent)
            with open_cached(self._path) as file:
                file.write(json.dumps(known).encode())

    def end(self) -> None:
        """Remove the file, because the job has ended."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_live(state_dir: Path, output: str) -> Mapping[str, Any] | None:
    """Return the progress of a running job; None if there is no file, or no whole one."""
    try:
        known = read_json(read_text(output_file(state_dir, FOLDER, output, ".json")))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and _is_whole(known) else None


def live_states(state_dir: Path) -> dict[str, tuple[int, int]]:
    """Return the states of all progress files, by path; the state of a job's file changes as the job advances."""
    found = {}
    with suppress(OSError):
        for path in (state_dir / FOLDER).glob("*.json"):
            state = path.stat()
            found[str(path)] = state.st_mtime_ns, state.st_ino
    return found


def _is_whole(known: Mapping[str, Any]) -> bool:
    """Return whether a file has what a running job writes: numbers, of which some may be unknown."""
    growth = known.get(GROWTH, {})
    if not isinstance(growth, dict):
        return False
    plain = [*growth.values(), *(value for name, value in known.items() if name != GROWTH)]
    numbers = all(type(value) in {int, float} for value in plain if value is not None)
    used = {name for name in _TOGETHER if known.get(name) is not None}
    always = all(known.get(name) is not None for name in _ALWAYS)
    return numbers and always and set(_PERHAPS) <= known.keys() and used in (set(), _TOGETHER)
