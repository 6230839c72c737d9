"""What it catches: keys of an input of which each says in its own way which frames are rows: every, fps, key_frames.

Why: one of them would have to be ignored, and the rows would be others than its reader expects.

Example:

    input: {path: clips/*.mp4, every: 500ms, fps: 2}

How to fix: write the one that is meant. fps: 2 is the same as every: 500ms.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="contradictory-input", summary="Keys of an input exclude each other")

_CHOOSING_FRAMES = ("every", "fps", "key_frames")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        said = [key for key in _CHOOSING_FRAMES if job.input.settings.get(key)]
        if len(said) > 1:
            detail = f"{' and '.join(said)} choose frames, each in its own way. Write one of them."
            yield Finding(at=(*job.input.at, said[1]), detail=detail, job=job.name)
