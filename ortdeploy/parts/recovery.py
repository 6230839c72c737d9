"""Recovers an output: every command that writes into one first finishes what a killed command has begun there.

The ledger notes an intent before a name is replaced or deleted, or may be carried away: a rewrite, or a
whole part that is about to get its name. Recovery finishes each of them, or drops it where that is safe. Then it
deletes the hidden files that nothing names.

Whether kept rows of an unfinished part can be used is a question of the job, which has a plan; so is what becomes of
files that have changed since.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.atomic import make_durable_folder, remove_temporaries, sync_folder
from ortdeploy.ledger.changes import rows_in
from ortdeploy.ledger.integrity import OnDisk, is_as_written
from ortdeploy.ledger.records import NewFile, OutputRecord, Rewrite
from ortdeploy.ledger.rewrites import hidden_files
from ortdeploy.parts.begun_part import give_name
from ortdeploy.parts.committed import DeclaredOutput, check_files, check_record
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.reports.report import report_due
from ortdeploy.sinks.row_files import named_in

_NOTHING: Mapping[str, Any] = {}


def recover(output: OpenOutput, declared: DeclaredOutput, *, to_keep: Mapping[str, Any] = _NOTHING) -> OutputRecord:
    """Recover an output, and return what the ledger knows of it then. Raises OrtdeployError, OSError.

    Nothing is changed if the ledger contradicts itself about the output, or a committed part is not what was written.
    `to_keep` are the types that the ledger keeps with the commit of a part, if it has none.
    """
    known = _known(output)
    check_record(output, declared, known)
    check_files(output, declared)
    folder = output.folder
    make_durable_folder(folder)  # files that go from it are gone with it if it was carried away
    if known.rewrites:
        report_due(folder)
    for one in known.rewrites:
        finish(output, one)
    _finish_append(output, known, to_keep)
    known = _known(output)
    kept = known.begun.part.file if known.begun is not None else None
    for name in hidden_files(folder):
        if name != kept:
            (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder)  # of pictures, too
    return known


def _known(output: OpenOutput) -> OutputRecord:
    known = output.record()
    if known is None:
        raise AssertionError("the ledger knows this output")
    return known


def _finish_append(output: OpenOutput, known: OutputRecord, to_keep: Mapping[str, Any]) -> None:
    """Commit a part that a killed run was renaming. Its rows run again if its file is gone: it was carried away.

    Raises OSError, OrtdeployError.
    """
    begun = known.begun
    if begun is None or begun.name is None or begun.part.file is None:
        return
    folder, ledger = output.folder, output.ledger
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


def _is_there(path: Path, record: OnDisk) -> bool:
    """Return whether a file is there as it was written. Raises OSError."""
    try:
        return is_as_written(path, record, digest=None)
    except FileNotFoundError:
        return False


def commit(output: OpenOutput, one: Rewrite, made_by: MadeBy | None = None) -> bool:
    """Rewrite a part: note in the ledger what is to be done, and do it; return whether it stands, as `finish` does.

    `made_by` has made its new rows, if there are any.
    """
    sync_folder(output.folder)
    output.ledger.begin_rewrite(output.name, one, made_by)
    return finish(output, one)


def finish(output: OpenOutput, one: Rewrite) -> bool:
    """Give the files of a rewrite their names, send them, delete those that they replace, and end it in the ledger.

    Return whether the rewrite stands. If a file is missing, it is undone, where the part is as before, or files may be
    gone. Raises OrtdeployError if a file is another one; nothing was touched then.
    """
    folder = output.folder
    waiting = [file for file in one.files if (folder / file.temporary).is_file()]
    for file in one.files:
        if not _is_there(folder / (file.temporary if file in waiting else file.file), file):
            _undo(output, one, file)
            return False
    for file in waiting:
        (folder / file.temporary).replace(folder / file.file)
    if one.files:
        sync_folder(folder)  # before what they replace goes: a folder may be carried away after a power cut, too
    if one.files and output.upload is not None:
        rows = {*rows_in(one.spans, one.part.start, one.part.end)}  # whose pictures the store has of before
        output.send({*named_in(folder, rows), *(file.file for file in one.files)})
    for name in one.removed:
        (folder / name).unlink(missing_ok=True)
    if one.removed:
        sync_folder(folder)
    output.ledger.end_rewrite(output.name, one)
    return True


def _undo(output: OpenOutput, one: Rewrite, wrong: NewFile) -> None:
    """Drop a rewrite of which a file is gone, if all files are as before it, or may have been carried away.

    Raises OrtdeployError if they are not, or if the file is another one.
    """
    folder, numbers = output.folder, {*one.absorbed, one.part.number}
    before = {file.file: file for part in _known(output).parts if part.number in numbers for file in part.files}
    is_free = not any((folder / file.file).exists() for file in one.files if file.file not in before)
    is_before = is_free and all(_is_there(folder / str(name), file) for name, file in before.items())
    if (folder / wrong.temporary).is_file():
        advice = ", or move it away: the part stays as it was" if is_before else ""
        raise OrtdeployError(
            f"{wrong.temporary}, which takes the place of {wrong.file}, is damaged, and was not put there. Restore it "
            f"from a copy{advice}"
        )
    if not (is_before or (is_free and one.may_be_gone)):
        raise OrtdeployError(
            f"{wrong.file} is neither what was committed nor what was made to take its place. Restore it from a copy"
        )
    output.ledger.forget_rewrite(output.name, one)
