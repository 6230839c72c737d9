"""Keeps the text of the manifest with which each output was last run, so that a later plan can say what has changed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import open_cached
from ortdeploy.files.disk import make_folders
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import TEXTS
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import output_file, output_key
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan


def keep_text(document: Any, plan: Plan, state_dir: Path, run: str) -> None:
    """Keep the manifest for each job that is about to run: with profile, overlays and --set, without secrets.

    The text of the run that the ledger has stays beside it, because this run may not begin. If the text cannot be kept,
    a later plan compares digests only.
    """
    for step in run_jobs(plan):
        output = output_key(Path(plan.folder) / step.output.path, state_dir)
        with suppress(OSError, OrtdeployError):
            with read_ledger(state_dir) as ledger:
                record = ledger.output(output) if ledger else None
            before = {} if record is None else {record.run: kept_text(state_dir, output, record.run)}
            path = _file(state_dir, output)
            make_folders(path.parent)
            with open_cached(path) as file:
                file.write(json.dumps({**before, run: document}).encode(errors="surrogateescape"))


def kept_text(state_dir: Path, output: str, run: str) -> Any:
    """Return the manifest with which an output was run; None if it is not kept."""
    with suppress(OSError, ValueError, AttributeError):
        return read_json(read_whole(_file(state_dir, output))).get(run)


def _file(state_dir: Path, output: str) -> Path:
    return output_file(state_dir, TEXTS, output, ".json")
