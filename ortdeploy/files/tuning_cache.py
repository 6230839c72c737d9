"""Remembers measurements on a job's first rows: batch sizes, thread layouts, row proofs."""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ortdeploy.state import memo

KIND = "tuning"
"""The kind of the choices, of the memo."""


class TuningCache(Struct):
    """Choices by key, in a state folder, or in this process if there is none."""

    folder: Path | None
    _known: dict[str, Any] = field(default_factory=dict)

    def find(self, key: str) -> Any:
        """Return the choice for a key: a number or a name; None if there is none."""
        choice = self._known.get(key) if self.folder is None else memo.get(self.folder, KIND, key)
        return choice if type(choice) in {int, str} else None

    def keep(self, key: str, choice: Any) -> None:
        """Keep a choice; if it cannot be written, the next run measures again."""
        if self.folder is None:
            self._known[key] = choice
        else:
            memo.put(self.folder, KIND, key, choice)


def choice_key(what: str, *holds_for: Any) -> str:
    """Return a key for a kind of choice on this machine; `holds_for` are JSON values that the choice depends on."""
    return hashlib.sha256(json.dumps([what, platform.node(), *holds_for]).encode()).hexdigest()
