"""Frees what nothing needs in the caches of a state folder; the ledger, locks and results are not touched.

Pruning needs the sole use of the store: while a run uses it, all of it stays. A job needs what its last run referred
to, as long as its manifest exists and has the job. Whatever is freed is made again when it is wanted.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ortdeploy.events import log
from ortdeploy.files.content_store import LOCK, ContentStore
from ortdeploy.files.names import COMPILED, KEPT, TEXTS, TOLD, is_file
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger import live_progress
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.output_lock import sole_use
from ortdeploy.ledger.records import output_file
from ortdeploy.planning.versions import installed, last_good
from ortdeploy.state import memo

Jobs = Mapping[str, frozenset[str]]
"""The jobs of each manifest that could be read, by its full path."""


class Pruned(Struct, frozen=True, kw_only=True):
    """What is freed of one cache and what stays, in entries and bytes, and why it stays."""

    cache: str
    freed: int
    freed_bytes: int
    kept: int
    kept_bytes: int
    why: str


class PrunedState(Struct, frozen=True, kw_only=True):
    """What is freed of a state folder, or would be; nothing while it is `in_use` by a run."""

    state: str
    dry_run: bool
    in_use: bool
    caches: tuple[Pruned, ...]

    @property
    def freed_bytes(self) -> int:
        """Bytes of all caches that are freed."""
        return sum(one.freed_bytes for one in self.caches)


def prune(state_dir: Path, jobs: Jobs, *, dry_run: bool) -> PrunedState:
    """Free what nothing needs; `dry_run`: only return what that is. Raises OrtdeployError."""
    if not state_dir.is_dir():
        return PrunedState(state=str(state_dir), dry_run=dry_run, in_use=False, caches=())
    with sole_use(state_dir, LOCK) as alone:
        needed = _Needed(state_dir, jobs, dry_run=dry_run or not alone)
        caches = [_prune(name, entries(needed), why, needed, alone=alone) for name, entries, why in _CACHES]
        if not needed.dry_run:
            needed.store.prune(needed.digests)  # and the folders in which what is freed has names
    done = PrunedState(state=str(state_dir), dry_run=dry_run, in_use=not alone, caches=tuple(caches))
    if not needed.dry_run:
        log.info("caches.pruned", state=done.state, bytes=done.freed_bytes)
    return done


class _Needed:
    """What is needed of a state folder."""

    def __init__(self, state_dir: Path, jobs: Jobs, *, dry_run: bool) -> None:
        self.state_dir, self.dry_run = state_dir, dry_run
        self.store = ContentStore(state_dir)
        self.good = last_good.kept_files(state_dir)
        self._jobs, self._owners = jobs, {owner for owner in self.good.values() if owner is not None}
        self._installed = installed.load_all(state_dir)
        self._bundles = None if self._installed is None else installed.owners(self._installed)
        with read_ledger(state_dir) as ledger:
            self.outputs = None if ledger is None else frozenset(one.output for one in ledger.outputs())
        self.digests = self.store.referred(self._is_there, dry_run=dry_run)

    def _is_there(self, owner: str) -> bool:
        """Return whether the owner of references still exists: a job of a manifest, or a kept version."""
        if owner.startswith(f"{KEPT} "):
            return owner in self._owners
        if owner.startswith(installed.OWNER):
            return self._bundles is None or owner in self._bundles
        places = [place for place, sign in enumerate(owner) if sign == " "]  # paths and names of jobs may hold some
        return not os.path.isabs(owner) or any(self._has(owner[:at], owner[at + 1 :]) for at in places)  # noqa: PTH117

    def has_manifest(self, path: str) -> bool:
        """Return whether a manifest is there, or that of an installed version, which lies in the store."""
        if self._installed is None:
            return True
        own = {version.manifest for known in self._installed for version in known.versions}
        return is_file(path) or os.path.basename(path) in own  # noqa: PTH119  text

    def _has(self, manifest: str, job: str) -> bool:
        return job in self._jobs[manifest] if manifest in self._jobs else is_file(manifest)


Entries = dict[Path, bool]
"""The files and folders of a cache, each with whether it is needed."""


def _good(needed: _Needed) -> Entries:
    return {path: owner is not None for path, owner in needed.good.items()}


def _stored(needed: _Needed) -> Entries:
    return {path: path.name in needed.digests for path in needed.store.sizes()}


def _compiled(needed: _Needed) -> Entries:
    folder = needed.state_dir / COMPILED
    if not folder.is_dir():
        return {}
    from ortdeploy.runtime.model_cache import entries  # noqa: PLC0415  brings ONNX Runtime

    return {path: digest in needed.digests for path, digest in entries(folder).items()}


def _remembered(needed: _Needed) -> Entries:
    return {Path(path): is_of_use for path, is_of_use in memo.entries(needed.state_dir).items()}


def _earlier(needed: _Needed) -> Entries:
    """Return what earlier versions have remembered, each in its own way, and nothing reads any more."""
    left = (needed.state_dir / name for name in _OF_EARLIER_VERSIONS)
    return {path: False for path in left if path.exists() and not path.is_symlink()}


def _of_outputs(folder: str) -> Callable[[_Needed], Entries]:
    """Return a function that yields a folder's files, one an output; it is needed while the ledger knows the output."""

    def entries(needed: _Needed) -> Entries:
        known = {output_file(needed.state_dir, folder, one, ".json") for one in needed.outputs or ()}
        return {path: needed.outputs is None or path in known for path in _files(needed.state_dir / folder)}

    return entries


def _told(needed: _Needed) -> Entries:
    return {path: _is_of_a_manifest(path, needed) for path in _files(needed.state_dir / TOLD)}


def _is_of_a_manifest(note: Path, needed: _Needed) -> bool:
    with suppress(OSError):
        lines = os.fsdecode(read_whole(note)).split("\n", 1)
        return len(lines) == 1 or needed.has_manifest(lines[1].removesuffix("\n"))
    return False


def _logs(needed: _Needed) -> Entries:
    return dict.fromkeys(_files(needed.state_dir / "logs"), True)


_OF_EARLIER_VERSIONS = (
    "checked-plans.json", "choices.json", "graphs", "known-digests.json", "nothing-to-do.json",
    "opened-models.json", "future-files.json", "row-index", "tune",
)  # fmt: skip

_CACHES: Sequence[tuple[str, Callable[[_Needed], Entries], str]] = (
    (KEPT, _good, "what manifests were when they last ran well"),
    ("store", _stored, "jobs and last good versions need them"),
    (COMPILED, _compiled, "sessions of jobs open them"),
    (TEXTS, _of_outputs(TEXTS), "ortdeploy diff compares with them"),
    (live_progress.FOLDER, _of_outputs(live_progress.FOLDER), "of outputs that the ledger knows"),
    (TOLD, _told, "of manifests that are there"),
    ("logs", _logs, "the last 50 are kept"),
    (memo.FOLDER, _remembered, "used lately"),
    ("earlier", _earlier, "of earlier versions"),
)
"""Each cache, its entries, and why some of them stay. Last good versions come first, because they refer to others."""


def _prune(name: str, entries: Entries, why: str, needed: _Needed, *, alone: bool) -> Pruned:
    sizes = {path: _size(path) for path in entries}
    freed = [path for path, is_needed in entries.items() if alone and not is_needed]
    if not needed.dry_run:
        for path in freed:
            _remove(path)
    gone = sum(sizes[path] for path in freed)
    return Pruned(
        cache=name,
        freed=len(freed),
        freed_bytes=gone,
        kept=len(entries) - len(freed),
        kept_bytes=sum(sizes.values()) - gone,
        why=why if alone else "a run is using the state directory",
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that is no link, which may lead anywhere."""
    if folder.is_dir() and not folder.is_symlink():
        yield from sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder; one that is deleted meanwhile has none."""
    with suppress(OSError):
        return sum(map(_size, path.iterdir())) if path.is_dir() and not path.is_symlink() else path.lstat().st_size
    return 0


def _remove(path: Path) -> None:
    """Remove a file or a folder. Raises OSError."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
