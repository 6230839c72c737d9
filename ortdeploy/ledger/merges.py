"""Completes what a retry has begun: a merged file takes its part's place after the ledger says so."""

from collections.abc import Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import sync_folder
from ortdeploy.ledger.ledger import Ledger, Merge, Part, is_as_written


def complete_merges(ledger: Ledger, output: str, folder: Path, parts: Sequence[Part]) -> None:
    """Complete what a retry had begun when it was killed; what it had not begun is forgotten. Raises OrtdeployError."""
    for merge in ledger.merges(output):
        complete(ledger, output, folder, parts[merge.part], merge)
    for path in folder.glob(".part-*.merged"):
        path.unlink(missing_ok=True)


def complete(ledger: Ledger, output: str, folder: Path, part: Part, merge: Merge) -> None:
    """Give a merged file its name, unless it has it already. Raises OrtdeployError if it is damaged."""
    waiting, place = folder / merge.temporary, folder / merge.file
    if waiting.is_file():
        if not is_as_written(waiting, merge, digest=None):
            raise OrtdeployError(
                f"{merge.temporary}, which a retry has made of {merge.file}, is damaged, and was not put into its "
                "place. Bring it back from a copy, or move it away: retry makes it again"
            )
        waiting.replace(place)
    elif not (place.is_file() and is_as_written(place, merge, digest=None)):
        _forget(ledger, output, place, part, merge)
        return
    sync_folder(folder)
    ledger.end_merge(output, part, merge)


def _forget(ledger: Ledger, output: str, place: Path, part: Part, merge: Merge) -> None:
    """Forget a merge whose file is gone, where the part is still the one before. Raises OrtdeployError.

    A file that lies beside its part may have been carried away: its rows run again and get another name.
    """
    if merge.revision and not place.exists():
        ledger.forget_merge(output, merge)
        return
    is_before = not place.exists() if part.file is None else place.is_file() and is_as_written(place, part, digest=None)
    if not is_before:
        raise OrtdeployError(
            f"{merge.file} is neither what was committed nor what a retry has made of it. Bring it back from a copy"
        )
    ledger.forget_merge(output, merge)
