"""Keeps the text of the manifest with which each output was last run, so that a later plan can say what has changed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.files.atomic import open_cached
from ortdeploy.files.disk import make_folders
from ortdeploy.files.names import TEXTS
from ortdeploy.ledger.records import output_file, output_key
from ortdeploy.plan.steps import Plan, RunJob


def keep_text(document: Any, plan: Plan, state_dir: Path, run: str) -> None:
    """Keep the manifest for each job that is about to run: with profile, overlays and --set, without secrets.

    If the text cannot be kept, a later plan compares digests only.
    """
    known = {"run": run, "manifest": document}
    for step in plan.steps:
        if isinstance(step, RunJob):
            path = text_of(state_dir, output_key(Path(plan.folder) / step.output.path, state_dir))
            with suppress(OSError):
                make_folders(path.parent)
                with open_cached(path) as file:
                    file.write(json.dumps(known).encode(errors="surrogateescape"))


def text_of(state_dir: Path, output: str) -> Path:
    """Return the file that keeps the text of an output's last run."""
    return output_file(state_dir, TEXTS, output, ".json")
