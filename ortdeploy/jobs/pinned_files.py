"""The files of a plan while it runs: each is opened from the content store, or watched where it lies.

So the model that runs is the one that was hashed. A run holds the files that it opens until it ends. A file in the
store changes only if somebody edits the state directory. If a file cannot be kept (too little room for a copy, or a
state directory without a store), it is opened where it lies, and checked before that, after that, and before each part
gets its name. Messages name files as the plan does.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import HashedFile
from ortdeploy.files.content_store import LOCK, ContentChangedError, ContentStore, StoreFullError, digest_of_names
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.digests import open_file_digest, signature
from ortdeploy.files.opening import open_regular
from ortdeploy.ledger.output_lock import shared_use, sole_use
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedPlace, PlannedWireStep
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, PlannedCheck, RunJob


class Files(Protocol):
    """What a run needs of the files that it opens."""

    def composing(self, pipeline: PlannedPipeline) -> AbstractContextManager[PlannedPipeline]:
        """Give a pipeline whose paths are those to open. Raises OrtdeployError."""

    def check(self) -> None:
        """Raise OrtdeployError if a file that is in use is not what it was when it was opened."""

    def with_manifest_paths(self, text: str) -> str:
        """Return a text with the names that the plan has for files."""


class UnpinnedFiles:
    """Files that are not held: they are opened where they lie, unchecked."""

    @contextmanager
    def composing(self, pipeline: PlannedPipeline) -> Iterator[PlannedPipeline]:
        """Give the pipeline as it is."""
        yield pipeline

    def check(self) -> None:
        """Do nothing."""

    def with_manifest_paths(self, text: str) -> str:
        """Return the text as it is."""
        return text


class PinnedFiles:
    """The held files of one run. Without a store, all of them are watched."""

    def __init__(self, store: ContentStore | None, folder: Path, digests: DigestCache) -> None:
        """Take the store, and the manifest's folder, from which files are named."""
        self._store = store
        self._folder = folder
        self._digests = digests
        self._open = ExitStack()
        self._held: dict[tuple[tuple[HashedFile, ...], bool, bool], Held] = {}
        self._in_use: dict[str, _InUse] = {}
        self._own_names: dict[str, str] = {}
        self._holding = threading.Lock()  # a session and the one that it is compared with are opened at the same time

    def close(self) -> None:
        """Let go of the files."""
        self._open.close()

    def hold(self, files: tuple[HashedFile, ...], *, in_place: bool = False, single: bool = False) -> "Held":
        """Return files as they are to be opened, `single`: as copies with one name each.

        Raises OrtdeployError if one is not what the plan says.
        """
        key = files, in_place, single
        with self._holding:
            if key not in self._held:
                kept = None if in_place else self._kept(files, single=single)
                self._held[key] = kept or self._watched(files)
            return self._held[key]

    def check(self) -> None:
        """Raise OrtdeployError if a file that is in use is not what it was when it was opened."""
        for file in self._in_use.values():
            file.check()

    def with_manifest_paths(self, text: str) -> str:
        """Return a text with the names that the plan has for files, in place of those in the store."""
        for kept, own in self._own_names.items():
            text = text.replace(kept, own)
        return text

    @contextmanager
    def opening(
        self, files: tuple[HashedFile, ...], *, in_place: bool = False, single: bool = False
    ) -> Iterator["Held"]:
        """Hold files while they are opened, `in_place`: where they lie, as something is written beside them.

        `single` is that of `hold`. What goes wrong is told in the plan's names. Raises OrtdeployError.
        """
        held = self.hold(files, in_place=in_place, single=single)
        try:
            yield held
        except OrtdeployError as error:
            raise type(error)(self.with_manifest_paths(str(error))) from error
        for file in held.in_use:
            file.confirm_name()

    @contextmanager
    def composing(self, pipeline: PlannedPipeline) -> Iterator[PlannedPipeline]:
        """Give a pipeline whose paths are those to open. Raises OrtdeployError."""
        with ExitStack() as stack:
            held = [stack.enter_context(self.opening(place.files)) for place in pipeline.places]
            paths = {
                place.path: self._path(place, one.folder) for place, one in zip(pipeline.places, held, strict=True)
            }
            preset = pipeline.preset
            if preset is not None:
                latents = None if preset.latents is None else paths[preset.latents]
                preset = replace(preset, folder=paths[preset.folder], latents=latents)
            yield replace(pipeline, steps=tuple(_with_paths(step, paths) for step in pipeline.steps), preset=preset)

    def _path(self, place: PlannedPlace, folder: Path | None) -> str:
        if folder is None:
            return place.path
        self._own_names[str(folder)] = os.path.dirname(place.path) if place.single else place.path  # noqa: PTH120  text
        return str(folder / place.files[0].name) if place.single else str(folder)

    def _kept(self, files: tuple[HashedFile, ...], *, single: bool) -> "Held | None":
        """Put files into the store and return them there; None if they cannot be kept. Raises OrtdeployError."""
        why: object = "there is no store"
        if self._store is not None:
            try:
                folder = self._single(self._store, files) if single else self._tree(self._store, files)
                str(folder).encode()  # ONNX Runtime opens only paths that are UTF-8
                in_use = tuple(self._use(str(folder / file.name), file, ours=True) for file in files)
                self._own_names.setdefault(str(folder), str(Path(files[0].path).parent))
            except (OSError, StoreFullError, UnicodeEncodeError) as error:
                why = error
            else:
                return Held(folder, in_use)
        log.info("files.watched", files=[self._shown(file) for file in files], reason=str(why))
        return None

    def _tree(self, store: ContentStore, files: tuple[HashedFile, ...]) -> Path:
        for file in files:
            if store.find(file.sha256) is None:
                with self._as_planned([file]):
                    store.put(Path(file.path), file.sha256)
        return store.tree({file.name: file.sha256 for file in files})

    def _single(self, store: ContentStore, files: tuple[HashedFile, ...]) -> Path:
        with self._as_planned(files):
            return store.single(
                {file.name: file.sha256 for file in files}, {file.name: Path(file.path) for file in files}
            )

    @contextmanager
    def _as_planned(self, files: Sequence[HashedFile]) -> Iterator[None]:
        """Say which of these files is not what the plan says."""
        by_path = {file.path: file for file in files}
        try:
            yield
        except ContentChangedError as error:
            raise self._changed(by_path[str(error)]) from None
        except FileNotFoundError as error:
            file = by_path.get(str(error.filename))
            if file is None:
                raise
            raise OrtdeployError(f"{self._shown(file)} is gone since the plan was made") from None

    def _watched(self, files: tuple[HashedFile, ...]) -> "Held":
        """Return files where they lie. Raises OrtdeployError."""
        in_use = []
        for file in files:
            try:
                before = signature(Path(file.path).stat())
                if self._digests.digest(Path(file.path)) != file.sha256:
                    raise self._changed(file)
                one = self._use(file.path, file, ours=False)
            except OSError as error:
                raise OrtdeployError(f"{self._shown(file)} cannot be read: {error.strerror}") from error
            if one.signature != before:
                raise self._changed(file)
            in_use.append(one)
        return Held(None, tuple(in_use))

    def _use(self, path: str, file: HashedFile, *, ours: bool) -> "_InUse":
        if path not in self._in_use:
            self._own_names[path] = file.path
            opened = self._open.enter_context(open_regular(path))
            self._in_use[path] = _InUse(path, opened, file.sha256, self._shown(file), ours=ours)
        return self._in_use[path]

    def _changed(self, file: HashedFile) -> OrtdeployError:
        return OrtdeployError(
            f"{self._shown(file)} is not what it was when the plan was made: it was changed or replaced since. "
            "Apply again, which plans with what it is now"
        )

    def _shown(self, file: HashedFile) -> str:
        path = Path(file.path)
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else file.path


class _InUse:
    """A file in use: its state when it was opened, to compare with. `ours`: it lies in the store."""

    def __init__(self, path: str, file: BinaryIO, sha256: str, shown: str, *, ours: bool) -> None:
        self._path, self._file, self._sha256, self._shown, self._ours = path, file, sha256, shown, ours
        self.signature = self._now()

    def check(self) -> None:
        """Raise OrtdeployError if the open file was written to. A new file of that name is for the next run."""
        now = self._now()
        if now == self.signature:
            return
        moved = {name for name, value in now.items() if value != self.signature[name]}
        if moved == {"ctime_ns"} and self._has_its_bytes() and self._now() == now:
            self.signature = now  # its rights changed, or its names did: who renames over it takes it one
            return
        raise OrtdeployError(f"{self._shown} was changed while it was in use. {_ADVICE}")

    def confirm_name(self) -> None:
        """Raise OrtdeployError if another file may have had this name when it was opened."""
        try:
            named = signature(os.stat(self._path))  # noqa: PTH116  text
        except OSError:
            named = {}
        if self._ours and named:
            named["ctime_ns"] = self.signature["ctime_ns"]  # other runs give it names too
        if named != self.signature:
            raise OrtdeployError(f"{self._shown} was changed or replaced while it was opened. {_ADVICE}")

    def _has_its_bytes(self) -> bool:
        return open_file_digest(self._file) == self._sha256

    def _now(self) -> dict[str, int]:
        return signature(os.fstat(self._file.fileno()))


_ADVICE = "Replace a file by renaming a new one into its place, which the next run takes"


class Held(Struct, frozen=True):
    """Files that a run may open: in a `folder` under their names, or, without one, where they lie."""

    folder: Path | None
    in_use: tuple[_InUse, ...]


def _with_paths(step: PlannedWireStep, paths: Mapping[str, str]) -> PlannedWireStep:
    """Return a step with other paths in its options, inner steps included."""
    options = {
        name: paths.get(value, value) if isinstance(value, str) else value for name, value in step.options.items()
    }
    return replace(step, options=options, steps=tuple(_with_paths(one, paths) for one in step.steps))


def may_be_cut(plan: Plan, state_dir: Path) -> bool:
    """Return whether a file may be mapped where it lies: if somebody cuts it, touching its end kills the process."""
    store = ContentStore(state_dir)
    return not all(store.has_room(file.sha256, file.size) for file in mapped_files(plan))


def mapped_files(plan: Plan) -> Iterator[HashedFile]:
    """Yield the files that ONNX Runtime maps: external data and adapters."""
    for step in plan.steps:
        if isinstance(step, OpenSession):
            yield from step.files[1:]
        elif isinstance(step, LoadAdapter):
            yield adapter_file(step)


def cut_files(plan: Plan) -> list[str]:
    """Return the mapped files and libraries of a plan that are not of their size any more."""
    found = []
    of_options = (file for step in plan.steps if isinstance(step, OpenSession) for file in step.option_files)
    for file in (*mapped_files(plan), *of_options):
        with suppress(OSError):
            if os.stat(file.path).st_size != file.size:  # noqa: PTH116  text
                found.append(file.path)
    return found


def adapter_file(step: LoadAdapter) -> HashedFile:
    """Return the file of an adapter."""
    return HashedFile(name=Path(step.path).name, path=step.path, sha256=step.sha256, size=step.size)


@contextmanager
def hold_files(plan: Plan, state_dir: Path) -> Iterator[PinnedFiles]:
    """Hold the files of a plan from when each is opened. First remove from the store what no plan needs."""
    store, manifest = ContentStore(state_dir), Path(plan.folder) / Path(plan.manifest).name
    with suppress(OSError, StoreFullError):  # then its entries are not known to be needed, and come again next time
        for job in (step for step in plan.steps if isinstance(step, RunJob)):
            store.refer(f"{manifest} {job.job}", _digests(keep_jobs(plan, [job.job])))
    with sole_use(state_dir, LOCK) as alone:
        given_back = store.prune(store.referred()) if alone else 0
    if given_back:
        log.info("store.pruned", bytes=given_back)
    with held_in(store, state_dir, Path(plan.folder)) as held:
        yield held


@contextmanager
def hold_for_check(check: PlannedCheck, state_dir: Path) -> Iterator[PinnedFiles]:
    """Hold the files of a golden check; if the state folder takes none, watch them."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(held_in(ContentStore(state_dir), state_dir, Path(check.root)))
        except OrtdeployError:
            held = stack.enter_context(closing(PinnedFiles(None, Path(check.root), DigestCache(None))))
        yield held


@contextmanager
def held_in(store: ContentStore | None, state_dir: Path, folder: Path) -> Iterator[PinnedFiles]:
    """Hold files of a manifest's folder, and keep the store from being pruned. Raises OrtdeployError."""
    with shared_use(state_dir, LOCK):
        held = PinnedFiles(store, folder, DigestCache(state_dir))
        try:
            yield held
        finally:
            held.close()


def _digests(plan: Plan) -> set[str]:
    """Return the digests of all files that a plan's steps open, and those by which compiled models know theirs."""
    found: set[str] = set()
    for step in plan.steps:
        match step:
            case OpenSession():
                found.update((step.sha256, *(file.sha256 for file in step.files)))
                found.add(digest_of_names({file.name: file.sha256 for file in step.files}))
            case LoadAdapter():
                found.add(step.sha256)
            case RunJob() if step.pipeline is not None:
                found.update(file.sha256 for place in step.pipeline.places for file in place.files)
    return found
