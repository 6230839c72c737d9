"""Versions of a deployment that are kept by content: the texts and files with which it can be planned again.

A version has the texts of a manifest and its overlays, and the files that they name, all by their SHA-256 in the
content store. `last_good` keeps one of each manifest that ran well, and `installed` those that came in bundles. All
files of a version stand in one folder of the store (`ContentStore.tree`), and `places` say where in it each path that
the manifest names is. Inputs, outputs and what is written lie where they always do.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.files.content_store import ContentStore
from ortdeploy.files.opening import read_whole
from ortdeploy.manifest.loader import LoadOptions

FORMAT_VERSION = 2


class Version(Struct, frozen=True, kw_only=True):
    """A version: its manifest and texts by path, its files by name, and since when it is kept.

    Paths of texts are full, or relative to the folder that `recall` takes. `asked` are the options that it was planned
    with, and `profile` is the one that was chosen. Versions that came in a bundle have its id, number and label.
    """

    manifest: str
    texts: Mapping[str, str]
    files: Mapping[str, str]
    places: Mapping[str, str]
    kept: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    number: int | None = None
    label: str = ""
    profile: str | None = None

    @property
    def digests(self) -> set[str]:
        """The digests of all that the version needs."""
        return {*self.texts.values(), *self.files.values(), *([self.id] if self.id else [])}


def dump_version(version: Version) -> dict[str, Any]:
    """Return a version as JSON."""
    return {"format_version": FORMAT_VERSION, **{name: getattr(version, name) for name in version.__struct_fields__}}


def read_version(record: Mapping[str, Any]) -> Version:
    """Read the JSON of a version, also that of format version 1, which had the files by place.

    Raises KeyError, TypeError, ValueError, AttributeError.
    """
    if "files" in record:
        known = {name: record[name] for name in Version.__struct_fields__ if name in record}
        try:
            return msgspec.convert(known, Version)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
    files, places = dict[str, str](), dict[str, str]()
    for number, (path, place) in enumerate(record["places"].items()):
        add_place(files, places, number, path, dict(place["files"]), single=place["single"])
    return Version(
        manifest=str(record["manifest"]),
        asked=dict(record["asked"]),
        texts=dict(record["texts"]),
        files=files,
        places=places,
        kept=str(record["kept"]),
    )


def add_place(
    files: dict[str, str], places: dict[str, str], number: int, path: str, own: Mapping[str, str], *, single: bool
) -> None:
    """Add the files of a path that a manifest names, in a folder of their own; of a `single` one, the first is it.

    Raises ValueError if a single one has no file.
    """
    if single and not own:
        raise ValueError(f"{path} has no file")
    files.update({f"{number}/{name}": digest for name, digest in own.items()})
    places[path] = f"{number}/{next(iter(own))}" if single else str(number)


def recall(version: Version, state_dir: Path, folder: str, options: LoadOptions) -> LoadOptions:
    """Return the options that load a version as it was kept. Raises OSError, StoreFullError if something is gone."""
    store = ContentStore(state_dir)
    texts = {os.path.join(folder, name): read_whole(store.required(digest)) for name, digest in version.texts.items()}  # noqa: PTH118  as text
    for digest in set(version.files.values()):
        store.required(digest)
    tree = store.tree(version.files)
    places = {path: str(tree / name) for path, name in version.places.items()}
    return replace(options, texts=texts, places=places, roots=(*options.roots, str(state_dir.absolute())))
