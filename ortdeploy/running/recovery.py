"""Recovers an output: every command that writes into one first finishes what a killed command has begun there.

The ledger notes an intent before a name is replaced or deleted, or may be carried away: a merge, a rewrite, or a
whole part that is about to get its name. Recovery finishes each of them, or drops it where that is safe. Then it
deletes the hidden files that nothing names.

Whether kept rows of an unfinished part can be used is a question of the job, which has a plan; so is what becomes of
files that have changed since.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.atomic import make_durable_folder, remove_temporaries, sync_folder
from ortdeploy.ledger.check import check_output
from ortdeploy.ledger.damage import undamaged
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import Merge, NewFile, OutputRecord, Part, Rewrite
from ortdeploy.ledger.rewrites import hidden_files
from ortdeploy.ledger.written import is_as_written
from ortdeploy.running.begun_part import give_name
from ortdeploy.running.committed import Output, check_files
from ortdeploy.running.job_context import JobContext
from ortdeploy.running.settled import kept_types
from ortdeploy.running.statistics import check_statistics
from ortdeploy.sinks.catalogue import SINKS

Send = Callable[[Collection[str]], None]
"""Uploads files of an output folder, by their names; they replace the store's objects of these names."""

_NOTHING: Mapping[str, Any] = {}


def recover_for(context: JobContext) -> OutputRecord:
    """Recover the output of a job that runs; see `recover`."""
    if context.upload is not None:
        context.upload.check_alone()
    output = context.step.output
    return recover(context.ledger, context.folder, output, context.send, to_keep=kept_types(context.step))


def recover(
    ledger: Ledger,
    folder: Path,
    output: Output,
    send: Send | None = None,
    *,
    to_keep: Mapping[str, Any] = _NOTHING,
) -> OutputRecord:
    """Recover an output, and return what the ledger knows of it then. Raises OrtdeployError, OSError.

    Nothing is changed if the ledger contradicts itself about the output, or a committed part is not what was written.
    `to_keep` are the types that the ledger keeps with the commit of a part, if it has none.
    """
    key = ledger.key(folder)
    known = _known(ledger, key)
    check_output(ledger, known, SINKS[output.format].SUFFIX)
    with undamaged():
        check_statistics(known.statistics)
    check_files(ledger, folder, output)
    make_durable_folder(folder)  # files that go from it are gone with it if it was carried away
    _finish_merges(ledger, key, folder, known.parts, send)
    for one in known.rewrites:
        put_in_place(ledger, key, folder, one, send)
    _finish_append(ledger, folder, known, to_keep)
    known = _known(ledger, key)
    kept = known.begun.part.file if known.begun is not None else None
    for name in hidden_files(folder):
        if name != kept:
            (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder)  # of pictures, too
    return known


def _known(ledger: Ledger, key: str) -> OutputRecord:
    known = ledger.output(key)
    if known is None:
        raise AssertionError("the ledger knows this output")
    return known


def _finish_merges(ledger: Ledger, output: str, folder: Path, parts: Sequence[Part], send: Send | None = None) -> None:
    """Complete the merges that a killed retry had begun. Raises OrtdeployError."""
    by_number = {part.number: part for part in parts}
    for merge in ledger.merges(output):
        complete(ledger, output, folder, by_number[merge.part], merge, send)


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


def _finish_append(ledger: Ledger, folder: Path, known: OutputRecord, to_keep: Mapping[str, Any]) -> None:
    """Commit a part that a killed run was renaming. Its rows run again if its file is gone: it was carried away.

    Raises OSError, OrtdeployError.
    """
    begun = known.begun
    if begun is None or begun.name is None or begun.part.file is None:
        return
    hidden, place = folder / begun.part.file, folder / begun.name
    if _is_there(hidden, begun.part):
        give_name(folder, hidden.name, place.name)
    elif not _is_there(place, begun.part):
        if place.exists():
            raise OrtdeployError(f"{place.name} is not what was written. Restore it from a copy, or move it away")
        log.warning("part.lost", part=begun.part.number, rows=begun.part.rows, file=begun.name)
        ledger.lose_begun(known.output)
        return
    state = {} if begun.state is None else {"state": begun.state}
    kept = to_keep if known.statistics else {}
    part = replace(begun.part, file=begun.name)
    ledger.commit_part(known.output, part, [], statistics={**kept, **known.statistics, **state})
    log.info("part.committed", part=part.number, rows=part.rows, failed=part.failed, file=part.file)


def _is_there(path: Path, part: Part) -> bool:
    """Return whether the file of a part is there as it was written. Raises OSError."""
    try:
        return is_as_written(path, part, digest=None)
    except FileNotFoundError:
        return False


def put_in_place(ledger: Ledger, output: str, folder: Path, one: Rewrite, send: Send | None = None) -> bool:
    """Give the files of a rewrite their names, send them, and end it in the ledger; return whether it stands.

    It does not stand, and is forgotten, if a file that may be gone is gone. Raises OrtdeployError if one is damaged.
    """
    for file in one.files:
        if not _name(folder, file):
            if (folder / file.file).exists() or not one.may_be_gone:
                raise OrtdeployError(
                    f"{file.file} is neither what was committed nor what was made to take its place. Restore it "
                    "from a copy"
                )
            ledger.forget_rewrite(output, one)
            return False
    if one.files:
        sync_folder(folder)  # before what they replace goes: a folder may be carried away after a power cut, too
    for name in one.removed:
        (folder / name).unlink(missing_ok=True)
    if one.removed:
        sync_folder(folder)
    if send is not None and one.files:
        send([file.file for file in one.files])
    ledger.end_rewrite(output, one)
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
