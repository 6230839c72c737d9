"""What it catches: keys of an input that say in two ways which rows it has, or not in a whole one.

Those are every, fps and key_frames of a video, of which one chooses frames; and in a window of lines, rows and
duration, of which it needs one. A duration and a gap need the order that tells the time of a line.

Why: one of them would have to be ignored, and the rows would be others than its reader expects.

Example:

    input: {path: clips/*.mp4, every: 500ms, fps: 2}

How to fix: write the one that is meant. fps: 2 is the same as every: 500ms.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="contradictory-input", summary="Keys of an input exclude or lack each other")

_CHOOSING_FRAMES = ("every", "fps", "key_frames")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        said = [key for key in _CHOOSING_FRAMES if job.input.settings.get(key)]
        if len(said) > 1:
            detail = f"{' and '.join(said)} choose frames, each in its own way. Write one of them."
            yield Finding(at=(*job.input.at, said[1]), detail=detail, job=job.name)
        wrong = _wrong_window(job.input.settings.get("window", {"rows": 1}))
        if wrong is not None:
            yield Finding(at=(*job.input.at, "window"), detail=wrong, job=job.name)


def _wrong_window(window: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a window."""
    if ("rows" in window) == ("duration" in window):
        return "A window has rows: N lines, or those of a duration:. Write one of the two."
    timed = next((key for key in ("duration", "gap") if key in window), None)
    if timed is not None and "order" not in window:
        return f"{timed}: needs the column with the time of a line. Write order: COLUMN."
    if "rows" in window and not isinstance(window.get("hop", 1), int):
        return f"hop: {window['hop']} is a time, and with rows: it is a number of lines. Write that."
    return None
