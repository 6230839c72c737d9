"""Takes the files of a bundle into the content store, after which its version is whole, and reads its texts before."""

import errno
import io
import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.bundles.description import BundledFile, Description, identity
from ortdeploy.bundles.layout import Bundle
from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.files.content_store import LOCK, ContentChangedError, ContentStore, StoreFullError
from ortdeploy.files.disk import free_at
from ortdeploy.files.urls import is_url
from ortdeploy.ledger.output_lock import shared_use, sole_use
from ortdeploy.manifest.document import MAX_BYTES
from ortdeploy.manifest.loader import LoadOptions, load_manifest
from ortdeploy.manifest.named_paths import paths_of_bundle
from ortdeploy.planning.versions.installed import WHOLE, Installed, options_of, owner_of, with_state
from ortdeploy.planning.versions.version import Version

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RESERVE = 64 * 1024 * 1024
"""Bytes of the disk that a bundle leaves free, for the ledger and the results of jobs."""


def is_kept(bundle: Bundle, installed: Installed, state_dir: Path) -> bool:
    """Return whether the statement and signatures of an installed bundle are here, and it brings no others."""
    store, kept = ContentStore(state_dir), installed.signatures.get(bundle.id, {}).values()
    brought = set(map(identity, bundle.signatures.values()))
    return brought <= {*kept} and all(store.find(one) is not None for one in (bundle.id, *kept))


def take_in(bundle: Bundle, installed: Installed, state_dir: Path, now: str) -> Installed:
    """Copy a bundle's files into the store, and return the record in which its version is whole. Raises OrtdeployError.

    If that fails, nothing of it is left that another version does not need; of one that was whole here before, all is.
    """
    store, owner = ContentStore(state_dir), owner_of(installed.name, bundle.id)
    try:
        with shared_use(state_dir, LOCK):
            return _take_in(bundle, installed, state_dir, now, store, owner)
    except (OSError, StoreFullError, OrtdeployError) as error:
        if installed.version(bundle.id) is None:
            _give_up(store, owner, state_dir)
        wrong = f"{error}"
        if isinstance(error, OSError):
            wrong = f"{bundle.path} cannot be copied: {error.strerror or error}"
            if error.errno in _NO_ROOM:
                wrong = f"there is no room for it: {failure_at(state_dir, error)}"
        raise OrtdeployError(wrong) from error


def _take_in(
    bundle: Bundle, installed: Installed, state_dir: Path, now: str, store: ContentStore, owner: str
) -> Installed:
    description = bundle.description
    signatures = {name: identity(raw) for name, raw in bundle.signatures.items()}
    small = {identity(raw): raw for raw in (bundle.raw, *bundle.signatures.values())}
    sizes = {file.sha256: file.size for file in description.files}
    missing = {digest: size for digest, size in sizes.items() if store.find(digest) is None}
    _require_room(state_dir, sum(missing.values()))
    for file in description.files:
        if file.sha256 in missing:
            bundle.opened(file).close()  # what is missing or cut off is told before anything is copied
    store.refer(owner, {*small, *sizes}, lasting=True)
    for digest, raw in small.items():
        if store.find(digest) is None:
            store.take(io.BytesIO(raw), digest, digest, _any_room)
    for file in description.files:
        if file.sha256 in missing and store.find(file.sha256) is None:
            try:
                with bundle.opened(file) as source:
                    store.take(source, file.name, file.sha256, _any_room)
            except ContentChangedError:
                raise _changed(bundle, file) from None
    version = version_of(description, bundle.id, state_dir, now)
    versions = (*(one for one in installed.versions if one.id != bundle.id), version)
    changed = replace(installed, versions=versions, signatures={**installed.signatures, bundle.id: signatures})
    return with_state(changed, bundle.id, WHOLE)


def _changed(bundle: Bundle, file: BundledFile) -> OrtdeployError:
    return OrtdeployError(
        f"{file.name} in {bundle.path} is not what was described: its SHA-256 is not {file.sha256}. "
        "The copy is damaged; remove that blob, and copy it again"
    )


def _require_room(state_dir: Path, size: int) -> None:
    folder = next(one for one in (state_dir, *state_dir.absolute().parents) if one.is_dir())
    free = free_at(folder)
    if size and size + _RESERVE > free:
        raise StoreFullError(f"its files take {size:,} bytes, and of {free:,} that are free, {_RESERVE:,} stay so")


def _any_room(_folder: Path) -> None:
    """Refuse no copy: `_require_room` has looked at all of them together."""


def _give_up(store: ContentStore, owner: str, state_dir: Path) -> None:
    with suppress(OSError, StoreFullError, OrtdeployError):
        store.release(owner)
        with sole_use(state_dir, LOCK) as alone:
            freed = store.prune(store.referred()) if alone else 0
        log.info("store.pruned", bytes=freed)


def version_of(description: Description, id_: str, state_dir: Path, now: str) -> Version:
    """Return the version of a bundle whose files are all in the store; places are those that its manifest names.

    Raises OrtdeployError, OSError, StoreFullError.
    """
    digests = description.digests
    texts = {name: digests[name] for name in (description.manifest, *description.overlays)}
    version = Version(
        manifest=description.manifest,
        texts=texts,
        files=digests,
        places={},
        kept=now,
        id=id_,
        number=description.version,
        label=description.label,
    )
    folder = str(state_dir.absolute().parent)
    loaded = load_manifest(os.path.join(folder, description.manifest), options_of(version, state_dir, folder))  # noqa: PTH118
    if loaded.spec is None:
        first = next(iter(loaded.diagnostics))
        raise OrtdeployError(f"its manifest is refused: {first.rule}: {first.detail.rstrip('.')}")
    if loaded.spec.name != description.name:
        raise OrtdeployError(f"its manifest is called {loaded.spec.name}, and the bundle {description.name}")
    of_url = {file.stands_for: file.name for file in description.files if file.stands_for is not None}
    places: dict[str, str] = {}
    for spec in (loaded.spec, *loaded.variants):
        for named in paths_of_bundle(spec):
            places[named.path] = of_url.get(named.path) or _below(named.path)
    return replace(version, places=places)


def _below(path: str) -> str:
    """Return the name in a bundle of what a manifest names. Raises OrtdeployError if it cannot be in one."""
    name = os.path.normpath(path).replace(os.sep, "/")
    if is_url(path) or name.startswith(("/", "../")) or name in {".", ".."}:
        raise OrtdeployError(f"its manifest names {path}, which is no file of the bundle")
    return name


def options_of_bundle(bundle: Bundle, folder: str) -> LoadOptions:
    """Return the options that load the manifest of a bundle from the bundle itself: its texts, and no other file.

    Raises OSError, OrtdeployError.
    """
    description, texts = bundle.description, dict[str, bytes]()
    files = {file.name: file for file in description.files}
    for name in (description.manifest, *description.overlays):
        with bundle.opened(files[name]) as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) <= MAX_BYTES and identity(raw) != files[name].sha256:
            raise _changed(bundle, files[name])
        texts[os.path.join(folder, name)] = raw  # noqa: PTH118  text; the loader says if it is too large
    return LoadOptions(texts=texts, overlays=tuple(list(texts)[1:]))
