"""Models and adapters that a manifest names by URL: fetched once by each machine, and kept by their digest.

From then on they are files of the content store, and no server is asked for them. A file that refers to others beside
it, as a model does to external data, cannot be fetched, because a URL is one file.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.content_store import LOCK, AnotherContentError, ContentStore, NotKeptError
from ortdeploy.files.gate import Use, objection, outside
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
            why = _fetch(store, file)
            if why is not None:
                yield file, why
        store.refer(f"fetched {spec.path}", {str(file.sha256) for file in wanted})


def with_fetched(spec: Spec, state_dir: Path) -> Spec:
    """Return a manifest with paths in the content store in place of URLs, for the files that are there."""
    wanted = _fetchable(spec)
    if not wanted:
        return spec
    store = ContentStore(state_dir)
    places = {
        file.path: str(store.tree({_name(file.path): str(file.sha256)}) / _name(file.path))
        for file in wanted
        if store.find(str(file.sha256)) is not None
    }
    state = str(state_dir.absolute())
    roots = (*spec.roots, state) if outside(state, (spec.folder, *spec.roots)) else spec.roots
    return replace(spec, places={**places, **spec.places}, roots=roots)


def _fetchable(spec: Spec) -> list[PinnedFile]:
    named = [file for file in pinned_files(spec) if is_url(file.path) and file.path not in spec.places]
    return [file for file in named if file.sha256 is not None and objection(file.path, Use.FETCH) is None]


def _fetch(store: ContentStore, file: PinnedFile) -> str | None:
    """Fetch a file unless it is kept; return why it cannot be fetched, else None."""
    digest, shown = str(file.sha256), parse_url(file.path).shown
    if store.find(digest) is not None:
        return None
    from ortdeploy.files.object_store import fetch_file  # noqa: PLC0415  only if something is fetched

    with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
        target = Path(folder) / "file"
        try:
            fetch_file(file.path, target)
            store.put(target, digest)
        except AnotherContentError:
            return f"{shown} is another file than the manifest means: its SHA-256 is not {digest}."
        except NotKeptError as error:
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
