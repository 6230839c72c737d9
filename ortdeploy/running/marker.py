"""Writes `_output.json`, which names the ledger of an output folder.

An output whose ledger is lost is refused instead of run again. The file names the ledger to bring back, even if every
part was carried away.
"""

import json
import os
from pathlib import Path

from ortdeploy.files.atomic import open_whole
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.opening import MARKER

FORMAT_VERSION = 1


def write_marker(folder: Path, state_dir: Path, deployment: str, job: str) -> None:
    """Write the file, unless it is there already. Raises OSError."""
    ledger = os.path.relpath(state_dir.absolute() / FILE, folder.absolute())
    known = {
        "format_version": FORMAT_VERSION,
        "ledger": ledger.replace(os.sep, "/"),
        "deployment": deployment,
        "job": job,
    }
    content, path = (json.dumps(known, indent=2) + "\n").encode(), folder / MARKER
    if path.is_file() and path.read_bytes() == content:
        return
    with open_whole(path) as file:
        file.write(content)
