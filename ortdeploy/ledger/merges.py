"""Completes merges and replacements: the ledger notes which file takes a part's place, then the file is renamed."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import TEMPORARY, sync_folder
from ortdeploy.files.names import DUE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import Merge, NewFile, Part, Replacement
from ortdeploy.ledger.written import is_as_written

Send = Callable[[Collection[str]], None]
"""Uploads files of an output folder, by their names; they replace the store's objects of these names."""

_HIDDEN = re.compile(rf"\.part-.*\.(merged|replaced)|\..*{re.escape(TEMPORARY)}|{re.escape(DUE)}")


def has_hidden_files(folder: Path) -> bool:
    """Return whether a killed run, retry or compact left files that wait, or an old report. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return any(_HIDDEN.fullmatch(entry.name) for entry in entries)
    except FileNotFoundError:
        return False


def complete_merges(ledger: Ledger, output: str, folder: Path, parts: Sequence[Part], send: Send | None = None) -> None:
    """Complete the merges that a killed retry had begun; delete files of those it had not. Raises OrtdeployError."""
    by_number = {part.number: part for part in parts}
    for merge in ledger.merges(output):
        complete(ledger, output, folder, by_number[merge.part], merge, send)
    for path in folder.glob(".part-*.merged"):
        path.unlink(missing_ok=True)


def complete(ledger: Ledger, output: str, folder: Path, part: Part, merge: Merge, send: Send | None = None) -> None:
    """Give a merged file its name, unless it has it already. Raises OrtdeployError if it is damaged.

    It is sent before the ledger commits its rows: after a kill in between, the next run sends it again.
    """
    waiting, place = folder / merge.temporary, folder / merge.file
    if waiting.is_file():
        if not is_as_written(waiting, merge, digest=None):
            raise OrtdeployError(
                f"{merge.temporary}, which a retry has made of {merge.file}, is damaged, and was not put into its "
                "place. Restore it from a copy, or move it away: retry makes it again"
            )
        waiting.replace(place)
    elif not (place.is_file() and is_as_written(place, merge, digest=None)):
        _forget(ledger, output, place, part, merge)
        return
    sync_folder(folder)
    if send is not None:
        send([merge.file])
    ledger.end_merge(output, part, merge)


def _forget(ledger: Ledger, output: str, place: Path, part: Part, merge: Merge) -> None:
    """Forget a merge whose file is gone, if the part is still as it was before. Raises OrtdeployError if it is not.

    A file that lies beside its part may have been carried away. Then its rows run again and get another name.
    """
    if merge.revision and not place.exists():
        ledger.forget_merge(output, merge)
        return
    is_before = not place.exists() if part.file is None else place.is_file() and is_as_written(place, part, digest=None)
    if not is_before:
        raise OrtdeployError(
            f"{merge.file} is neither what was committed nor what a retry has made of it. Restore it from a copy"
        )
    ledger.forget_merge(output, merge)


def complete_replacements(ledger: Ledger, output: str, folder: Path, send: Send | None = None) -> None:
    """Complete the replacements that a killed run had begun. Raises OrtdeployError."""
    record = ledger.output(output)
    for one in record.replacements if record is not None else ():
        put_in_place(ledger, output, folder, one, send)
    for path in folder.glob(".part-*.replaced"):
        path.unlink(missing_ok=True)


def put_in_place(ledger: Ledger, output: str, folder: Path, one: Replacement, send: Send | None = None) -> bool:
    """Give the files of a replacement their names, send them, and end it in the ledger; return whether it stands.

    It does not stand, and is forgotten, if a file that may be gone is gone. Raises OrtdeployError if one is damaged.
    """
    for file in one.files:
        if not _name(folder, file):
            if (folder / file.file).exists() or not one.may_be_gone:
                raise OrtdeployError(
                    f"{file.file} is neither what was committed nor what was made to take its place. Restore it "
                    "from a copy"
                )
            ledger.forget_replacement(output, one)
            return False
    if one.files:
        sync_folder(folder)  # before what they replace goes: a folder may be carried away after a power cut, too
    for name in one.removed:
        (folder / name).unlink(missing_ok=True)
    if one.removed:
        sync_folder(folder)
    if send is not None and one.files:
        send([file.file for file in one.files])
    ledger.end_replacement(output, one)
    return True


def _name(folder: Path, file: NewFile) -> bool:
    """Give a file its name, unless it has it already; return whether it is there. Raises OrtdeployError."""
    waiting, place = folder / file.temporary, folder / file.file
    if not waiting.is_file():
        return place.is_file() and is_as_written(place, file, digest=None)
    if not is_as_written(waiting, file, digest=None):
        raise OrtdeployError(
            f"{file.temporary}, which takes the place of {file.file}, is damaged, and was not put there. Restore it "
            "from a copy"
        )
    waiting.replace(place)
    return True
