"""Completes what a retry has begun: a merged file takes its part's place once the ledger says so."""

from contextlib import suppress
from pathlib import Path

from ortdeploy.files.atomic import sync_folder
from ortdeploy.ledger.ledger import Ledger, Merge


def complete_merges(ledger: Ledger, output: str, folder: Path) -> None:
    """Complete what a retry had begun when it was killed; what it had not begun is forgotten."""
    for merge in ledger.merges(output):
        complete(ledger, output, folder, merge)
    for path in folder.glob(".part-*.merged"):
        path.unlink(missing_ok=True)


def complete(ledger: Ledger, output: str, folder: Path, merge: Merge) -> None:
    """Give a merged file its place, unless it has it already."""
    with suppress(FileNotFoundError):
        (folder / merge.temporary).replace(folder / merge.file)
    sync_folder(folder)
    ledger.end_merge(output, merge)
