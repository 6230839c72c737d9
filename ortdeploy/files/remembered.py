"""Remembers measurements on a job's first rows: batch sizes, thread layouts, row proofs."""

import hashlib
import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ortdeploy.files.atomic import open_cached
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text

FILE = "choices.json"
_MOST = 1000
"""Choices that are kept: the newest, for models and settings come and go for years."""


class TuningCache(Struct):
    """Choices by key, in a state folder, or in this process if there is none."""

    folder: Path | None
    _known: dict[str, Any] = field(default_factory=dict)

    def find(self, key: str) -> Any:
        """Return the choice for a key: a number or a name; None if there is none."""
        if self.folder is not None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                known = read_json(read_text(self.folder / FILE))["choices"]
                self._known = {key: choice for key, choice in dict(known).items() if type(choice) in {int, str}}
        return self._known.get(key)

    def keep(self, key: str, choice: Any) -> None:
        """Keep a choice; if it cannot be written, the next run measures again."""
        self._known.pop(key, None)
        self._known = {**dict(list(self._known.items())[1 - _MOST :]), key: choice}
        if self.folder is not None:
            with suppress(OSError), open_cached(self.folder / FILE) as file:
                file.write(json.dumps({"format_version": 1, "choices": self._known}).encode())


def choice_key(what: str, *holds_for: Any) -> str:
    """Return a key for a kind of choice on this machine; `holds_for` are JSON values that the choice depends on."""
    return hashlib.sha256(json.dumps([what, platform.node(), *holds_for]).encode()).hexdigest()
