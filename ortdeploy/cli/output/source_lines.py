"""Reads the lines of files that findings point at, so that a view can show them."""

import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ortdeploy.diagnostics import Span
from ortdeploy.files.opening import open_regular
from ortdeploy.manifest.document import MAX_BYTES
from ortdeploy.providers.secrets import shown_line

_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # where YAML ends a line


class SourceLines:
    """The lines of files, each file read once."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        """Take what was read in place of files, by their full paths."""
        self._files = {path: _split(raw) for path, raw in texts.items()}

    def __call__(self, span: Span) -> str | None:
        """Return a line without secrets; None if the place is a whole file, or the line cannot be read.

        Also None if a secret before the place was taken out, because carets would stand below something else.
        """
        if span.end is None and (span.line, span.column) == (1, 1):
            return None
        if span.path not in self._files:
            self._files[span.path] = _lines(Path(span.path))
        lines = self._files[span.path]
        if span.line > len(lines):
            return None
        shown, place = shown_line(lines, span.line - 1), span.column - 1
        return shown if shown[:place] == lines[span.line - 1][:place] else None


def _lines(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        if stat.S_ISREG(path.stat().st_mode):  # a pipe is read once, and that was the manifest's
            with open_regular(path) as file:
                return _split(file.read(MAX_BYTES))
    return []


def _split(raw: bytes) -> list[str]:
    return _BREAKS.split(raw.decode("utf-8", errors="replace").removeprefix("\ufeff"))
