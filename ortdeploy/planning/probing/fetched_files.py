"""Models and adapters that a manifest names by URL: fetched once by each machine, and kept by their digest.

From then on they are files of the content store, and no server is asked for them. A model with external data is several
files. Its digest is that of a list of them, in the form of `sha256sum`; the list is kept by this digest too, and says
which file the model itself is.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.content_store import LOCK, ContentChangedError, ContentStore, StoreFullError
from ortdeploy.files.digests import file_digest, is_digest
from ortdeploy.files.gate import Use, objection, outside
from ortdeploy.files.object_store import fetch_file
from ortdeploy.files.opening import read_whole
from ortdeploy.files.urls import is_url, parse_url
from ortdeploy.ledger.output_lock import shared_use
from ortdeploy.manifest.named_paths import PinnedFile, pinned_files
from ortdeploy.manifest.spec import Spec


def fetch_files(spec: Spec, state_dir: Path) -> Iterator[tuple[PinnedFile, str]]:
    """Fetch the files that a manifest names by URL, unless they are kept; yield those that cannot be fetched, and why.

    The reasons are full sentences.
    """
    wanted = _fetchable(spec)
    if not wanted:
        return
    store = ContentStore(state_dir)
    with shared_use(state_dir, LOCK):
        for file in wanted:
            why = _fetch_all(store, file) if file.beside else _fetch(store, file.path, str(file.sha256))
            if why is not None:
                yield file, why
        needed = {str(file.sha256) for file in wanted}
        store.refer(f"fetched {spec.path}", needed.union(*(_names(store, file).values() for file in wanted)))


def with_fetched(spec: Spec, state_dir: Path) -> Spec:
    """Return a manifest with paths in the content store in place of URLs, for the files that are there."""
    wanted = _fetchable(spec)
    if not wanted:
        return spec
    store = ContentStore(state_dir)
    places = {
        file.path: str(store.tree(names) / _name(file.path))
        for file in wanted
        if (names := _names(store, file)) and all(store.find(digest) is not None for digest in names.values())
    }
    state = str(state_dir.absolute())
    roots = (*spec.roots, state) if outside(state, (spec.folder, *spec.roots)) else spec.roots
    return replace(spec, places={**places, **spec.places}, roots=roots)


def _fetchable(spec: Spec) -> list[PinnedFile]:
    named = [file for file in pinned_files(spec) if is_url(file.path) and file.path not in spec.places]
    return [file for file in named if file.sha256 is not None and objection(file.path, Use.FETCH) is None]


def _names(store: ContentStore, file: PinnedFile) -> Mapping[str, str]:
    """Return the digests of a file and of those beside it by their names; none if the list of them is not kept."""
    if not file.beside:
        return {_name(file.path): str(file.sha256)}
    kept = store.find(str(file.sha256))
    own = "" if kept is None else read_whole(kept).partition(b" ")[0].decode(errors="replace")
    return {_name(file.path): own, **file.beside} if is_digest(own) else {}


def _list_of(file: PinnedFile, own: str) -> bytes:
    """Return what `sha256sum` prints of a model and its external data: the model first, the others by name."""
    lines = [(own, _name(file.path)), *((digest, name) for name, digest in sorted(file.beside.items()))]
    return "".join(f"{digest}  {name}\n" for digest, name in lines).encode()


def _fetch_all(store: ContentStore, file: PinnedFile) -> str | None:
    """Fetch a model and its external data unless they are kept; return why they cannot be fetched, else None."""
    names = _names(store, file)
    why = None
    if not names or store.find(names[_name(file.path)]) is None:
        why = _fetch(store, file.path, None, file)
    folder = file.path.rpartition("/")[0]
    beside = ((f"{folder}/{name}", digest) for name, digest in file.beside.items())
    return why or next(filter(None, (_fetch(store, url, digest) for url, digest in beside)), None)


def _fetch(store: ContentStore, url: str, digest: str | None, listed: PinnedFile | None = None) -> str | None:
    """Fetch a file unless it is kept; return why it cannot be fetched, else None.

    If it is `listed`, the list that names it has the digest.
    """
    shown = parse_url(url).shown
    if digest is not None and store.find(digest) is not None:
        return None
    with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
        target = Path(folder) / "file"
        try:
            fetch_file(url, target)
            digest = digest or file_digest(target)
            if listed is not None:
                names = Path(folder) / "names"
                names.write_bytes(_list_of(listed, digest))
                store.put(names, listed.sha256)
            store.put(target, digest)
        except ContentChangedError:
            if listed is None:
                return f"{shown} is another file than the manifest means: its SHA-256 is not {digest}."
            return (
                f"{shown} has the SHA-256 {digest}. With that and external_data, the list of files has not the "
                f"SHA-256 {listed.sha256}: one of them is another file than the manifest means."
            )
        except StoreFullError as error:
            return f"{shown} cannot be kept: {error}."
        except OrtdeployError as error:
            return f"{error}."
        except OSError as error:
            return f"{shown} cannot be kept: {error.strerror}."
    log.info("file.fetched", url=shown, sha256=digest)
    return None


def _name(url: str) -> str:
    """Return the name of a fetched file, whose suffix tells its format."""
    return PurePosixPath(unquote(urlsplit(parse_url(url).shown).path)).name or "file"
