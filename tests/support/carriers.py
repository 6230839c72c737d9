"""Somebody who carries parts away, and what arrives there."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Carrier = Callable[[Path, Path], None]
"""Takes something out of an output folder into a folder of its own."""

_NAME = re.compile(r"part-(\d+)(?:\.r(\d+))?\.jsonl")


def nobody(_output: Path, _there: Path) -> None:
    """Carry nothing away."""


def parts(output: Path, there: Path) -> None:
    """Carry every part away, and the images."""
    there.mkdir(parents=True)
    for path in (*output.glob("part-*"), *output.glob("images")):
        path.rename(there / path.name)


def every_other_part(output: Path, there: Path) -> None:
    """Carry every second part away."""
    there.mkdir(parents=True)
    for path in sorted(output.glob("part-*"))[::2]:
        path.rename(there / path.name)


def folder(output: Path, there: Path) -> None:
    """Carry the whole folder away, with its hidden files."""
    if output.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(output, there)


CARRIERS: Mapping[str, Carrier] = {
    "nobody": nobody, "parts": parts, "every other part": every_other_part, "the folder": folder,
}  # fmt: skip


def delivered(*folders: Path) -> dict[str, bytes]:
    """Return every part that lies in one of the folders, or below; no name may have been given twice."""
    found: dict[str, bytes] = {}
    for place in folders:
        for path in sorted(place.rglob("part-*")):
            assert path.name not in found, f"{path.name} was given twice"
            found[path.name] = path.read_bytes()
    return found


def rows_of(files: Mapping[str, bytes]) -> dict[int, Any]:
    """Return the rows by number, as a reader has them: those of a later file of a part replace those of equal number."""

    def order(name: str) -> tuple[int, int]:
        match = _NAME.fullmatch(name)
        assert match, name
        return int(match[1]), int(match[2] or 0)

    found = {}
    for name in sorted(files, key=order):
        found.update({row["row"]: row for row in map(json.loads, files[name].splitlines())})
    return dict(sorted(found.items()))


def times_delivered(files: Mapping[str, bytes]) -> dict[int, int]:
    """Return how often each row stands in a file."""
    counts: dict[int, int] = {}
    for content in files.values():
        for line in content.splitlines():
            number = json.loads(line)["row"]
            counts[number] = counts.get(number, 0) + 1
    return counts
