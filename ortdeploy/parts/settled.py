"""The types of carried columns that an output was begun with: later parts have the same, whatever later files hold.

The ledger keeps them from the first commit on. Outputs of versions that kept none have those of their first part.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.ledger.archived_outputs import put_aside_before
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import RunJob
from ortdeploy.sinks.catalogue import SINKS

TYPES = "types"
"""The name under which the ledger keeps them, beside a job's statistics."""


def standing_output(step: RunJob, folder: Path, ledger: Ledger) -> OutputRecord | None:
    """Return what the ledger knows of the output that a job continues; None if it starts over."""
    record = ledger.output(ledger.key(folder))
    is_there = step.output.removable or folder.exists()
    if record is None or not is_there or record.run == step.output.replaces:
        return None
    return None if put_aside_before(ledger, folder, record) is not None else record


def files_of(record: OutputRecord | None, folder: Path) -> Iterator[Path]:
    """Yield the files of an output's parts, and of the one that is kept unfinished; some may have been carried away."""
    if record is None:
        return
    kept = [record.begun.part] if record.begun is not None else []
    for part in (*record.parts, *kept):
        yield from (folder / one.file for one in part.files if one.file is not None)


def kept_types(step: RunJob) -> dict[str, dict[str, str]]:
    """Return what the ledger keeps of a job's types; nothing if there are none."""
    return {TYPES: dict(step.output.settled)} if step.output.settled else {}


def with_settled_types(step: RunJob, record: OutputRecord | None, files: Iterable[Path]) -> RunJob:
    """Return a job whose carried columns have the types that its output was begun with. Raises OSError, ValueError.

    `files` are those of its parts; the first that is there is read if the ledger has kept no types.
    """
    output = step.output
    if record is None or not step.input.key or SINKS[output.format].COLUMN_TYPES == "none":
        return step
    known = record.statistics.get(TYPES)
    if known is None:
        known = _types_of_first(files, output.format)
    kept = {name: kind for name, kind in known.items() if name in step.input.key}
    return replace(step, output=replace(output, settled={**output.settled, **kept}))


def _types_of_first(files: Iterable[Path], form: str) -> dict[str, str]:
    for file in files:
        with suppress(FileNotFoundError):
            return dict(SINKS[form].column_types(file))
    return {}
