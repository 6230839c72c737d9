"""Remembers what was measured on a job's first rows: batch sizes, thread layouts, row proofs."""

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortdeploy.files.atomic import open_whole

FILE = "choices.json"


@dataclass(slots=True)
class TuningCache:
    """What was chosen before, in a state folder; without one, in this process."""

    folder: Path | None
    _known: dict[str, Any] = field(default_factory=dict)

    def find(self, key: str) -> Any:
        """Return what was chosen for a key, a number or a name; None if nothing was."""
        if self.folder is not None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                known = json.loads((self.folder / FILE).read_text(encoding="utf-8"))["choices"]
                self._known = {key: choice for key, choice in dict(known).items() if type(choice) in {int, str}}
        return self._known.get(key)

    def keep(self, key: str, choice: Any) -> None:
        """Keep a choice; where it cannot be written it is made again the next time."""
        self._known[key] = choice
        if self.folder is not None:
            with suppress(OSError), open_whole(self.folder / FILE) as file:
                file.write(json.dumps({"format_version": 1, "choices": self._known}, indent=2).encode())


def choice_key(what: str, *holds_for: Any) -> str:
    """Return a key for what is chosen on this machine for some things, which JSON can write."""
    return hashlib.sha256(json.dumps([what, platform.node(), *holds_for]).encode()).hexdigest()
