"""Failed rows as the ledger and `_failed.jsonl` hold them: one JSON object each."""

import json
from collections.abc import Mapping
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import open_text
from ortdeploy.ledger.records import UNREADABLE, FailedBefore
from ortdeploy.plan.steps import DeadLetter
from ortdeploy.results.rows import FailedRow

_LETTER: Mapping[str, Any] = {
    "key": dict, "source": str, "row": int, "stage": str, "code": str, "message": str, "attempts": int,
}  # fmt: skip
_LETTER_SINCE_VERSION_4: Mapping[str, Any] = {
    **_LETTER, "path": str, "row_in_file": int | None, "sha256": str | None, "run": str, "plan": str,
}  # fmt: skip


def read_letters(path: str) -> tuple[DeadLetter, ...]:
    """Return the failed rows of a `_failed.jsonl`, which may be another machine's. Raises OrtdeployError."""
    try:
        with open_text(path) as file:
            letters = (_letter(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.strip())
            return tuple(one for one in letters if one is not None)
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OrtdeployError(f"{path} is not UTF-8 text; name a _failed.jsonl") from error


def _letter(line: str, place: str) -> DeadLetter | None:
    """Return a failed row; None if it stands for a file that could not be read, which only apply runs."""
    kinds = _LETTER_SINCE_VERSION_4
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OrtdeployError(f"{place} is not JSON: {error}") from error
    wrong = next((name for name in kinds if not isinstance(entry, dict) or not _has(entry, name)), None)
    if wrong is not None:
        raise OrtdeployError(
            f'{place} is no line of a _failed.jsonl of this version: "{wrong}" is missing, or not what it should be'
        )
    if entry["code"] == UNREADABLE:
        reason = "the file could not be read there; apply runs its rows where it can be read"
        log.warning("row.not_taken", source=entry["path"], rows=[], count=1, reason=reason)
        return None
    if entry["row_in_file"] is None or not entry["path"]:
        raise OrtdeployError(f"{place} does not say in which file, or as which row of it, the row failed")
    return DeadLetter(
        path=entry["path"],
        file_row=entry["row_in_file"],
        **{name: entry[name] for name in ("sha256", "source", "stage", "code", "message", "key")},
    )


def _has(entry: Mapping[str, Any], name: str) -> bool:
    return name in entry and isinstance(entry[name], _LETTER_SINCE_VERSION_4[name])


def failed_before(row: Any, text: str) -> FailedBefore:
    """Return how often a failed row was tried, and its place. Raises ValueError if the entry is damaged."""
    entry = read_json(text)
    kinds = _LETTER_SINCE_VERSION_4
    if (
        not isinstance(entry, dict)
        or entry.keys() not in (_LETTER.keys(), kinds.keys())
        or any(not isinstance(value, kinds[name]) for name, value in entry.items())
    ):
        raise ValueError(f"what stands there of failed row {row!r} is not what was written")
    if entry["row"] != row:
        raise ValueError(f"failed row {row!r} is called {entry['row']} too")
    return FailedBefore(
        attempts=entry["attempts"],
        path=entry.get("path", ""),
        file_row=entry.get("row_in_file"),
        sha256=entry.get("sha256"),
        run=entry.get("run", ""),
        unreadable=entry["code"] == UNREADABLE,
        source=entry["source"],
        message=entry["message"],
    )


def letter(failure: FailedRow) -> str:
    """Return a failed row as a line of JSON."""
    return json.dumps(entry_of(failure))


def entry_of(failure: FailedRow) -> dict[str, Any]:
    """Return a failed row as its JSON object."""
    return {
        "key": dict(failure.key),
        "source": failure.source,
        "row": failure.row,
        "stage": failure.stage,
        "code": failure.code,
        "message": failure.message,
        "attempts": failure.attempts,
        "path": failure.path,
        "row_in_file": failure.file_row,
        "sha256": failure.sha256,
        "run": failure.run,
        "plan": failure.plan,
    }
