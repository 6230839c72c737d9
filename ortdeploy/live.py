"""How far a running job is, for who looks from another terminal: a small file, replaced about once a second."""

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "live"
SECONDS_BETWEEN = 1.0


class Live:
    """Says how far one job is. What cannot be written is left out: it is nobody's result."""

    def __init__(self, state_dir: Path, output: str, total: int | None, done: int) -> None:
        """Take the job's number of rows, and those that are behind it already."""
        self._path = _live_file(state_dir, output)
        self._total = total
        self._first = done
        self._begin = self._last = time.monotonic()

    def rows_done(self, done: int, failed: int) -> None:
        """Write how far the job is, when the time has come."""
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN:
            return
        self._last = now
        rate = (done - self._first) / (now - self._begin)
        left = round((self._total - done) / rate) if self._total is not None and rate else None
        known = {
            "done": done,
            "total": self._total,
            "failed": failed,
            "rows_per_second": round(rate, 1),
            "seconds_left": left,
        }
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps(known), encoding="utf-8")
            temporary.replace(self._path)

    def end(self) -> None:
        """Say nothing more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_live(state_dir: Path, output: str) -> Mapping[str, Any] | None:
    """Return how far a running job is; None where nobody says."""
    try:
        known = json.loads(_live_file(state_dir, output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) else None


def _live_file(state_dir: Path, output: str) -> Path:
    return state_dir / FOLDER / f"{hashlib.sha256(output.encode()).hexdigest()[:16]}.json"
