"""Writes `_output.json`, which names the ledger and the job of an output folder, and checks it.

An output whose ledger is lost is refused instead of run again. The file names the ledger to bring back, even if every
part was carried away.
"""

import json
import os
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.names import MARKER, relative
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.opening import read_marker
from ortdeploy.ledger.records import OutputRecord

FORMAT_VERSION = 1


def check_marker(folder: Path, state_dir: Path, job: str, known: OutputRecord | None) -> None:
    """Raise OrtdeployError if an output folder is another job's, or another ledger's, which may lead here by a link.

    `known` is what the ledger knows of the output. A job that was renamed goes on in its folder.
    """
    named = read_marker(folder)
    ledger, maker = named.get("ledger"), named.get("job")
    if ledger is None:
        return
    is_other_ledger = os.path.realpath(folder / ledger) != os.path.realpath(state_dir / FILE)
    if known is None or is_other_ledger or maker not in {None, job, known.job}:
        of = f'job "{maker}"' + (f", which the ledger {ledger} knows" if is_other_ledger else "")
        raise OrtdeployError(
            f'{folder} is the output of {of}. A link may lead there. Give job "{job}" a folder of its own'
        )


def write_marker(folder: Path, state_dir: Path, deployment: str, job: str, claim: str | None = None) -> None:
    """Write the file, unless it is there already; a `claim` that it has stays. Raises OSError."""
    claim = read_marker(folder).get("claim", claim)
    known = {
        "format_version": FORMAT_VERSION,
        "ledger": relative(state_dir.absolute() / FILE, folder.absolute()),
        "deployment": deployment,
        "job": job,
        **({} if claim is None else {"claim": claim}),
    }
    content, path = (json.dumps(known, indent=2) + "\n").encode(), folder / MARKER
    if path.is_file() and read_whole(path) == content:
        return
    with open_whole(path) as file:
        file.write(content)
