"""Copies of a state folder's ledger: one file with its state at one moment, which may be made beside a live run.

A copy is a zip of `state.db` (by SQLite's backup) and of notes: manifests as they last ran well, the texts with which
outputs were last run, which versions came in bundles, which endings of applies were reported, and what was measured.
Locks, the progress of live runs, models and everything that is made again are left out. A copy is brought back only to
a folder without a ledger, and only if it fits the outputs: their files, here or on an object store, are as the copy
says, and their `_output.json` names the place that it is brought to.
"""

import os
import re
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.names import BUNDLES, KEPT, TEXTS, TOLD
from ortdeploy.files.object_store import url_of_mirror
from ortdeploy.files.opening import copy_into, read_whole, regular_path
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.files.tuning_cache import KIND
from ortdeploy.ledger.check import check_output
from ortdeploy.ledger.damage import FILE, translated
from ortdeploy.ledger.integrity import GONE_FILE, OnDisk, Underway, difference
from ortdeploy.ledger.opening import connection_to, has_ledger, make_folder, named_ledger, read_ledger
from ortdeploy.ledger.records import OutputRecord, part_name
from ortdeploy.ledger.stored_parts import stored_differences
from ortdeploy.state import memo

_NO_COPY = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
"""What zipfile raises over a file that is damaged, or no zip file."""

_MEASURED = f"{memo.FOLDER}/{KIND}"
_FOLDERS = (BUNDLES, KEPT, TEXTS, TOLD, _MEASURED)
_NOTE = re.compile(
    rf"{KEPT}/[0-9a-f]{{64}}\.(json|refused)|{TEXTS}/[0-9a-f]{{16}}\.json|{TOLD}/[0-9a-f]{{16}}\.(txt|refused|profile)"
    rf"|{_MEASURED}/[0-9a-f]{{64}}|{BUNDLES}/[0-9a-f]{{32}}\.json"
)
"""The notes of a copy: all its files but the ledger."""

_MEASURED_BEFORE = "choices.json"
"""What earlier versions have measured, in their copies; nothing reads it any more."""

_MOST = 64 * 1024**3
"""Bytes that a file of a copy may have; one that claims more was not made by `back_up`."""


def back_up(state_dir: Path, target: Path) -> int:
    """Write a copy of a state folder into a new file; return how many outputs it knows. Raises OrtdeployError."""
    _check_absent(target, "Choose another name, or move it away")
    if not has_ledger(state_dir):
        raise OrtdeployError(f"{state_dir} holds no ledger {FILE}; name the state directory with --state-dir")
    with scratch_folder("state") as scratch:
        copy = scratch.path / FILE
        with translated(), closing(connection_to(state_dir / FILE)) as ledger, closing(sqlite3.connect(copy)) as into:
            ledger.backup(into)
        records = _sound_records(scratch.path)
        try:
            with open_whole(target) as file, zipfile.ZipFile(file, "w") as archive:
                with archive.open(_member(FILE), "w", force_zip64=True) as member:
                    copy_into(member, copy)
                for name, content in _notes(state_dir):
                    archive.writestr(_member(name), content)
        except OSError as error:
            raise OrtdeployError(f"{target} cannot be written: {error.strerror}") from error
    return len(records)


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member of a copy without its time, which zip does not know before 1980, as clocks of boards may say."""
    member = zipfile.ZipInfo(name)
    member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    return member


class BroughtBack(Struct, frozen=True, kw_only=True):
    """How many outputs a copy knows, and why it was not compared with those on stores that do not answer.

    `may_repeat` says of outputs whose parts are carried away from where on names and numbers may be given twice.
    """

    outputs: int
    not_compared: tuple[str, ...] = ()
    may_repeat: tuple[str, ...] = ()


def bring_back(source: Path, state_dir: Path) -> BroughtBack:
    """Bring a copy back into a state folder without a ledger. Raises OrtdeployError.

    Nothing is changed if the copy is damaged, or does not fit an output. A store that does not answer is no reason to
    refuse the copy: machines that lost their disk may have no network either.
    """
    not_compared, may_repeat = [], []
    _check_absent(state_dir / FILE, "Move it away first, if the copy is to take its place")
    make_folder(state_dir)
    with tempfile.TemporaryDirectory(prefix="ortdeploy-state-", dir=state_dir) as folder:
        names = _unpack(source, Path(folder))
        for place in (state_dir / one for one in (*_FOLDERS, memo.FOLDER)):
            if place.is_symlink():
                raise OrtdeployError(f"{place} is a link, which may lead anywhere. Remove it. Nothing was changed")
        records = _sound_records(Path(folder))
        for record in records:
            fit = _Fit(record, state_dir)
            if fit.why_not is not None:
                raise OrtdeployError(f"{source} does not fit what is there: {fit.why_not}. Nothing was changed")
            not_compared += [fit.unasked] if fit.unasked is not None else []
            may_repeat += [fit.may_repeat] if fit.may_repeat is not None else []
        try:
            for name in sorted(names, key=FILE.__eq__):  # the ledger last: it is what makes the folder a state
                if not os.path.lexists(state_dir / name):
                    _put(Path(folder) / name, state_dir / name)
        except OSError as error:
            raise OrtdeployError(f"{state_dir} cannot be written: {error.strerror}") from error
    return BroughtBack(outputs=len(records), not_compared=tuple(not_compared), may_repeat=tuple(may_repeat))


def _notes(state_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the notes of a state folder, each with its content. Raises OSError."""
    for path in sorted(one for folder in _FOLDERS for one in (state_dir / folder).glob("*")):
        name = path.relative_to(state_dir).as_posix()
        if _NOTE.fullmatch(name) and not path.is_symlink():
            with suppress(FileNotFoundError):  # a live run may have taken it back
                yield name, read_whole(path)


def _check_absent(path: Path, advice: str) -> None:
    if os.path.lexists(path):
        raise OrtdeployError(f"{path} is there already, and is not overwritten. {advice}")


def _sound_records(folder: Path) -> tuple[OutputRecord, ...]:
    """Return the outputs that a copy knows. Raises OrtdeployError if it is damaged, or a newer ortdeploy wrote it."""
    with translated(), closing(connection_to(folder / FILE)) as copy:
        (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
    if verdict != "ok":
        raise OrtdeployError(f"the ledger {FILE} in it is damaged ({verdict})")
    with read_ledger(folder) as ledger:
        if ledger is None:
            return ()
        records = ledger.outputs()
        for record in records:
            names = [str(file.file) for part in record.parts for file in part.files]
            check_output(ledger, record, Path(names[0]).suffix if names else "")
        return records


def _unpack(source: Path, folder: Path) -> list[str]:
    """Unpack a copy into a folder, and return the names of its files. Raises OrtdeployError for any other file."""
    try:
        with zipfile.ZipFile(regular_path(source)) as archive:
            names = [name for name in archive.namelist() if name != _MEASURED_BEFORE]
            others = {*names} - {FILE}
            if FILE not in names or not all(map(_NOTE.fullmatch, others)) or len(names) != len({*names}):
                raise OrtdeployError(f"{source} is not a copy of a state directory")
            if any(one.file_size > _MOST for one in archive.infolist()):
                raise OrtdeployError(
                    f"{source} is not a copy of a state directory: it says that it holds {_MOST} bytes"
                )
            for name in names:
                archive.extract(name, folder)
            return names
    except FileNotFoundError:
        raise OrtdeployError(f"there is no file {source}") from None
    except _NO_COPY as error:
        raise OrtdeployError(f"{source} is not a copy of a state directory, or it is damaged: {error}") from error


class _Fit:
    """How a copy fits an output that it knows.

    `why_not` says how they differ, and `unasked` why its store was not compared; each is None if there is nothing to
    say. A missing file is no difference: it may be carried away. Then parts that were written after the copy may be
    carried away too, and nothing here tells; `may_repeat` says which names and numbers the next parts get.
    """

    def __init__(self, record: OutputRecord, state_dir: Path) -> None:
        """Compare a record of a copy with what is there."""
        self._folder = Path(os.path.normpath(state_dir.absolute() / record.output))
        self.unasked: str | None = None
        self.may_repeat: str | None = None
        self.why_not = self._other_ledger(state_dir) or next(self._differences(record), None)

    def _other_ledger(self, state_dir: Path) -> str | None:
        named, ours = named_ledger(self._folder), (state_dir.absolute() / FILE).resolve()
        if named is None or (self._folder / named).resolve() == ours:
            return None
        return f"{self._folder} names another ledger, {named}"

    def _differences(self, record: OutputRecord) -> Iterator[str]:
        """Yield how files differ; those that are not here, but may be on a store, are looked for there."""
        underway = Underway(record.rewrites)
        elsewhere = list[tuple[str, Sequence[OnDisk]]]()
        for part in record.parts:
            for file in part.files:
                name, records = str(file.file), [file, *underway.instead_of(part, file)]
                how = difference(self._folder / name, records, None)
                if how == GONE_FILE:
                    elsewhere.append((name, records))
                    self.may_repeat = self._next_part(record)
                elif how is not None:
                    yield f"{self._folder / name} {how}; the copy may be older than it"
        url = url_of_mirror(self._folder)
        if url is not None and elsewhere:
            yield from self._differences_there(url, elsewhere)

    def _next_part(self, record: OutputRecord) -> str:
        name = part_name(record.next_part, record.part_digits, "")
        return f"{self._folder}: the next part is {name}, with rows from {record.rows} on"

    def _differences_there(self, url: str, files: Sequence[tuple[str, Sequence[OnDisk]]]) -> Iterator[str]:
        try:
            difference_of = stored_differences(url)
        except OrtdeployError as error:
            self.unasked = str(error)
            return
        for name, records in files:
            how = difference_of(name, records)
            if how not in {None, GONE_FILE}:
                yield f"{url}/{name} {how}; the copy may be older than it"


def _put(source: Path, target: Path) -> None:
    """Put a file in its place, durably. Raises OSError, OrtdeployError."""
    make_folder(target.parent)
    with open_whole(target) as file:
        copy_into(file, source)
