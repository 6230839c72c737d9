"""Bundles as OCI image layouts with the media types of ModelPack: one layer a file, as it is.

What a layout says of itself is read and compared before any file of it is: index, manifest, config and
`deployment.json`, each bounded. The manifest must list exactly the files of `deployment.json`, and signatures; names
and media types of layers follow from it. So whatever a registry, a mirror or a tool writes anew, the id stays.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from ortdeploy.bundles.carrier import (
    INDEX,
    MARK,
    TAR_END,
    Carrier,
    blob,
    open_carrier,
    tar_header,
    tar_padding,
)
from ortdeploy.bundles.description import (
    KINDS,
    LARGEST,
    MOST_FILES,
    NAME,
    BundledFile,
    Description,
    canonical,
    dump,
    identity,
    is_digest,
    objection_to_name,
    objection_to_names,
    parse,
    shown,
)
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import open_synced, open_whole, sync_folder
from ortdeploy.files.disk import make_folders, remove_folder
from ortdeploy.files.opening import open_regular, read_whole

_SIGNATURE = "application/vnd.cncf.model.doc.v1.raw"
_ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
_CONFIG = "application/vnd.cncf.model.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_FILEPATH, _TITLE = "org.cncf.model.filepath", "org.opencontainers.image.title"
_TAG = "org.opencontainers.image.ref.name"
_MOST_MANIFESTS, _MOST_SIGNATURES = 1000, 100
_PIECE = 1024 * 1024


class Bundle(Struct, frozen=True, kw_only=True):
    """A described bundle: `raw` is its deployment.json, `signatures` are texts by name; its files are not read yet."""

    path: str
    description: Description
    raw: bytes
    manifest_digest: str
    signatures: Mapping[str, bytes]
    carrier: Carrier

    @property
    def id(self) -> str:
        """The bundle's id."""
        return identity(self.raw)

    def opened(self, file: BundledFile) -> BinaryIO:
        """Open a file of the bundle, which nobody has compared with its digest. Raises OSError, OrtdeployError."""
        _check_size(self.carrier, file.sha256, file.size, file.name)
        return self.carrier.opened(blob(file.sha256))


@contextmanager
def open_bundle(path: Path, tag: str | None = None) -> Iterator[Bundle]:
    """Open a bundle, and read what it says of itself. Raises OrtdeployError, which says what is wrong with it."""
    try:
        with ExitStack() as stack:
            try:
                carrier = stack.enter_context(open_carrier(path))
            except OrtdeployError as error:
                raise OrtdeployError(f"{path} is no bundle: {error}") from error
            yield _describe(path, carrier, tag)
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be read: {error.strerror or error}") from error


def _describe(path: Path, carrier: Carrier, tag: str | None) -> Bundle:
    try:
        entry = _choose(_document(_read(carrier, INDEX), INDEX), tag)
        manifest = _document(_blob(carrier, entry, "the manifest", _MANIFEST), "the manifest")
        layers = _layers(manifest)
        _check_config(carrier, manifest, layers)
        raw = _blob(carrier, layers.get(NAME), NAME, KINDS["config"])
        description = parse(raw)
        signatures = _signatures(carrier, description, layers)
    except OrtdeployError as error:
        raise OrtdeployError(f"{path} is no bundle: {error}") from error
    beside = signature_beside(path)
    if os.path.lexists(beside):
        name = os.path.basename(beside)  # noqa: PTH119  text
        try:
            with open_regular(beside) as file:
                signatures[name] = _bounded(file, name)
        except OSError as error:
            raise OrtdeployError(f"{beside} cannot be read: {error.strerror or error}") from error
    return Bundle(
        path=str(path),
        description=description,
        raw=raw,
        manifest_digest=str(entry["digest"]),
        signatures=signatures,
        carrier=carrier,
    )


def signature_beside(path: Path | str) -> str:
    """Return the path of the signature that may lie beside a bundle."""
    return f"{os.path.abspath(path)}.sig"  # noqa: PTH100  text


def _choose(index: Mapping[str, Any], tag: str | None) -> Mapping[str, Any]:
    """Return the entry of the bundle in an index. Raises OrtdeployError."""
    entries = index.get("manifests")
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MOST_MANIFESTS:
        raise OrtdeployError("its index names no manifest, or too many")
    found = [_descriptor(one, "the index") for one in entries]
    if tag is not None:
        found = [one for one in found if _annotations(one, "the index").get(_TAG) == tag]
        if not found:
            raise OrtdeployError(f"its index has no tag {shown(tag)}")
    if len(found) > 1:
        tags = sorted(str(_annotations(one, "the index").get(_TAG)) for one in found)
        raise OrtdeployError(f"its index names {len(found)} manifests; choose one with --tag: {shown(' '.join(tags))}")
    return found[0]


def _layers(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the layers of a manifest by their names. Raises OrtdeployError."""
    if manifest.get("artifactType", _ARTIFACT) != _ARTIFACT or manifest.get("schemaVersion") != 2:  # noqa: PLR2004
        raise OrtdeployError("its manifest is not that of a model")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_FILES + _MOST_SIGNATURES + 1:
        raise OrtdeployError("its manifest has no list of layers, or too long a one")
    found: dict[str, Mapping[str, Any]] = {}
    for one in layers:
        layer = _descriptor(one, "a layer")
        annotations = _annotations(layer, "a layer")
        name = annotations.get(_FILEPATH)
        if not isinstance(name, str) or annotations.get(_TITLE) != name:
            raise OrtdeployError(f"a layer has not one name, in {_FILEPATH} and {_TITLE}")
        if name in found:
            raise OrtdeployError(f"the layer {shown(name)} is there twice")
        found[name] = layer
    return found


def _check_config(carrier: Carrier, manifest: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]]) -> None:
    config = _document(_blob(carrier, manifest.get("config"), "the config", _CONFIG), "the config")
    listed = config.get("modelfs")
    digests = listed.get("diffIds") if isinstance(listed, dict) else None
    if digests != [layer["digest"] for layer in layers.values()]:
        raise OrtdeployError("its config does not list the digests of its layers")


def _signatures(
    carrier: Carrier, description: Description, layers: Mapping[str, Mapping[str, Any]]
) -> dict[str, bytes]:
    """Return the signatures; all other layers must be the files of deployment.json. Raises OrtdeployError."""
    files = {file.name: (KINDS[file.kind], f"sha256:{file.sha256}", file.size) for file in description.files}
    rest = {name: layer for name, layer in layers.items() if name != NAME and name not in files}
    missing = next((name for name in files if name not in layers), None)
    if missing is not None:
        raise OrtdeployError(f"{shown(missing)} of {NAME} is no layer of it")
    for name, wanted in files.items():
        layer = layers[name]
        if (layer.get("mediaType"), layer["digest"], layer["size"]) != wanted:
            raise OrtdeployError(f"the layer {shown(name)} is not the file that {NAME} lists")
    if len(rest) > _MOST_SIGNATURES:
        raise OrtdeployError(f"it has more than {_MOST_SIGNATURES} signatures")
    for name, layer in rest.items():
        if layer.get("mediaType") != _SIGNATURE or objection_to_name(name) is not None:
            raise OrtdeployError(f"the layer {shown(name)} is neither in {NAME} nor a signature")
    return {name: _blob(carrier, layer, shown(name), _SIGNATURE) for name, layer in rest.items()}


def _descriptor(value: Any, what: str) -> Mapping[str, Any]:
    """Return a descriptor of OCI that leads nowhere else. Raises OrtdeployError."""
    if not isinstance(value, dict):
        raise OrtdeployError(f"{what} is not described in it")
    other = next((key for key in ("urls", "data") if key in value), None)
    if other is not None:
        raise OrtdeployError(f"{what} has {other}, and a bundle has its files in itself")
    algorithm, _, digest = str(value.get("digest")).partition(":")
    size = value.get("size")
    if algorithm != "sha256" or not is_digest(digest):
        raise OrtdeployError(f"{what} has the digest {shown(str(value.get('digest')))}, and only sha256 is taken")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise OrtdeployError(f"{what} has no size")
    return value


def _annotations(value: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = value.get("annotations", {})
    if not isinstance(found, dict):
        raise OrtdeployError(f"{what} has no annotations")
    return found


def _blob(carrier: Carrier, value: Any, what: str, media_type: str) -> bytes:
    """Return what a descriptor of a small document names. Raises OrtdeployError."""
    entry = _descriptor(value, what)
    if entry.get("mediaType") != media_type:
        raise OrtdeployError(f"{what} is of the type {shown(str(entry.get('mediaType')))}, and not {media_type}")
    digest, size = str(entry["digest"]).removeprefix("sha256:"), int(entry["size"])
    if size > LARGEST:
        raise OrtdeployError(f"{what} has {size:,} bytes, and {LARGEST:,} are the most")
    _check_size(carrier, digest, size, what)
    raw = _read(carrier, blob(digest))
    if identity(raw) != digest:
        raise OrtdeployError(f"{what} is not what its digest says. {_AGAIN}")
    return raw


_AGAIN = "The copy is damaged; remove that blob, and copy it again"


def _check_size(carrier: Carrier, digest: str, size: int, what: str) -> None:
    found = carrier.size(blob(digest))
    if found is None:
        raise OrtdeployError(f"{what} is missing: there is no {blob(digest)}. Copy it again")
    if found != size:
        raise OrtdeployError(f"{what} has {found:,} bytes of {size:,} in {blob(digest)}. {_AGAIN}")


def _read(carrier: Carrier, name: str) -> bytes:
    if carrier.size(name) is None:
        raise OrtdeployError(f"there is no {name}")
    with carrier.opened(name) as file:
        return _bounded(file, name)


def _bounded(file: BinaryIO, what: str) -> bytes:
    raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise OrtdeployError(f"{what} has more than {LARGEST:,} bytes")
    return raw


def _document(raw: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object. Raises OrtdeployError."""
    data = strict_json(raw, what)
    if not isinstance(data, dict):
        raise OrtdeployError(f"{what} is no JSON object")
    return data


def strict_json(raw: bytes, what: str) -> Any:
    """Return what a JSON text says; one that readers may understand in two ways is refused. Raises OrtdeployError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise OrtdeployError(f"{what} has a key twice")
        return dict(pairs)

    try:
        return json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise OrtdeployError(f"{what} is no JSON") from error


def write_bundle(
    target: Path, description: Description, sources: Mapping[str, Path], signatures: Mapping[str, bytes]
) -> str:
    """Write a bundle as a tar archive, or as a folder if its name has no .tar; return the digest of its manifest.

    A source that is not the described file is refused. Raises OSError, OrtdeployError.
    """
    texts, manifest = _documents(description, signatures)
    pieces = {INDEX: _index_of(manifest, description), MARK: canonical({"imageLayoutVersion": "1.0.0"})}
    for name, raw in (("its manifest", manifest), (NAME, texts[identity(dump(description))])):
        if len(raw) > LARGEST:
            raise OrtdeployError(
                f"{name} would have {len(raw):,} bytes, and {LARGEST:,} are the most; bundle fewer files"
            )
    small = {**pieces, **{blob(digest): raw for digest, raw in sorted(texts.items())}}
    files = {file.sha256: (sources[file.name], file.size) for file in description.files if file.sha256 not in texts}
    if target.suffix == ".tar":
        _write_tar(target, small, files)
    else:
        _write_folder(target, small, files)
    return identity(manifest)


def _documents(description: Description, signatures: Mapping[str, bytes]) -> tuple[dict[str, bytes], bytes]:
    """Return the small blobs of a bundle by digest, and its manifest, which is one of them. Raises OrtdeployError."""
    raw = _text_of(description, signatures)
    rows = [(NAME, KINDS["config"], identity(raw), len(raw))]
    rows += [(file.name, KINDS[file.kind], file.sha256, file.size) for file in description.files]
    rows += [(name, _SIGNATURE, identity(text), len(text)) for name, text in sorted(signatures.items())]
    layers = [
        {**_entry(kind, digest, size), "annotations": {_FILEPATH: name, _TITLE: name}}
        for name, kind, digest, size in rows
    ]
    config = canonical(
        {
            "descriptor": {"name": description.name, "version": str(description.version)},
            "config": {"format": "onnx"},
            "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},
        }
    )
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": _ARTIFACT,
            "config": _entry(_CONFIG, identity(config), len(config)),
            "layers": layers,
        }
    )
    return {identity(one): one for one in (raw, config, manifest, *signatures.values())}, manifest


def _text_of(description: Description, signatures: Iterable[str] = ()) -> bytes:
    """Return the text of a description. Raises OrtdeployError if it would be no bundle to those who read it."""
    raw = dump(description)
    try:
        parse(raw)
        wrong = objection_to_names((NAME, *description.digests, *signatures))
    except OrtdeployError as error:
        wrong = f"{error}"
    if wrong is not None:
        raise OrtdeployError(f"the bundle cannot be made: {wrong}")
    return raw


def _index_of(manifest: bytes, description: Description) -> bytes:
    entry = {**_entry(_MANIFEST, identity(manifest), len(manifest)), "artifactType": _ARTIFACT}
    tagged = {**entry, "annotations": {_TAG: str(description.version)}}
    return canonical({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [tagged]})


def _entry(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _write_tar(target: Path, small: Mapping[str, bytes], files: Mapping[str, tuple[Path, int]]) -> None:
    with open_whole(target) as out:
        for name, raw in small.items():
            out.write(tar_header(name, len(raw)) + raw + tar_padding(len(raw)))
        for digest, (source, size) in sorted(files.items()):
            out.write(tar_header(blob(digest), size))
            copy_as(source, out, digest, size)
            out.write(tar_padding(size))
        out.write(TAR_END)


def _write_folder(target: Path, small: Mapping[str, bytes], files: Mapping[str, tuple[Path, int]]) -> None:
    if os.path.lexists(target):
        raise OrtdeployError(f"{target} is there already, and is not overwritten")
    with _folder_at_the_end(target) as folder:
        make_folders(folder / "blobs/sha256")
        for name, raw in small.items():
            with open_synced(folder / name) as out:
                out.write(raw)
        for digest, (source, size) in sorted(files.items()):
            with open_synced(folder / blob(digest)) as out:
                copy_as(source, out, digest, size)


def write_files(target: Path, description: Description, sources: Mapping[str, Path]) -> None:
    """Write the files of a bundle into a new folder under their names, for a tool that signs folders.

    Raises OSError, OrtdeployError.
    """
    if os.path.lexists(target):
        raise OrtdeployError(f"{target} is there already, and is not overwritten")
    raw = _text_of(description)
    with _folder_at_the_end(target) as folder:
        make_folders(folder)
        with open_synced(folder / NAME) as out:
            out.write(raw)
        for file in description.files:
            make_folders((folder / file.name).parent)
            with open_synced(folder / file.name) as out:
                copy_as(sources[file.name], out, file.sha256, file.size)


@contextmanager
def _folder_at_the_end(target: Path) -> Iterator[Path]:
    """Yield a hidden folder that gets its name, durable, when the block succeeds; else it is removed."""
    temporary = target.with_name(f".{target.name}.partial")
    remove_folder(temporary)
    try:
        yield temporary
        for folder, _, _ in os.walk(temporary):
            sync_folder(Path(folder))
        temporary.rename(target)
    except BaseException:
        remove_folder(temporary)
        raise
    sync_folder(target.absolute().parent)


def copy_as(source: Path, out: BinaryIO, digest: str, size: int) -> None:
    """Copy a file that must have a digest and a size. Raises OSError, OrtdeployError."""
    found, count = hashlib.sha256(), 0
    with open_regular(source) as file:
        while piece := file.read(_PIECE):
            found.update(piece)
            count += len(piece)
            out.write(piece)
    if (found.hexdigest(), count) != (digest, size):
        raise OrtdeployError(f"{source} was changed while the bundle was made. Make it again")


def read_signature(path: str) -> bytes:
    """Return the text of a signature. Raises OSError, OrtdeployError."""
    raw = read_whole(path) if os.stat(path).st_size <= LARGEST else bytes(LARGEST + 1)  # noqa: PTH116  text
    if len(raw) > LARGEST:
        raise OrtdeployError(f"{path} has more than {LARGEST:,} bytes, and is no signature")
    return raw
