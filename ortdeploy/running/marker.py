"""`_output.json`: says in an output folder which ledger knows what is, or was, in it.

An output whose ledger is lost is refused and not run again; the file says what to bring back, also where every part was
carried away.
"""

import json
import os

from ortdeploy.files.atomic import open_whole
from ortdeploy.ledger.ledger import FILE, MARKER
from ortdeploy.running.job_context import JobContext

FORMAT_VERSION = 1


def write_marker(context: JobContext) -> None:
    """Write the file, unless it is there already. Raises OSError."""
    ledger = os.path.relpath(context.ledger.state_dir.absolute() / FILE, context.folder.absolute())
    known = {
        "format_version": FORMAT_VERSION,
        "ledger": ledger.replace(os.sep, "/"),
        "deployment": context.plan.deployment,
        "job": context.step.job,
    }
    content, path = (json.dumps(known, indent=2) + "\n").encode(), context.folder / MARKER
    if path.is_file() and path.read_bytes() == content:
        return
    with open_whole(path) as file:
        file.write(content)
