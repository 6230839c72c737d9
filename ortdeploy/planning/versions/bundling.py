"""What goes into a bundle: a manifest with its overlays, and every file that it names, in each of its profiles.

Files have in a bundle the paths by which the manifest names them, from its folder; those by URL are in `fetched/`.
Inputs, outputs and state are not among them. Whatever could mean something else on a device is refused here.
"""

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ortdeploy.bundles.description import (
    FORMAT_VERSION,
    NAME,
    BundledFile,
    Description,
    Needs,
    objection_to_names,
)
from ortdeploy.bundles.layout import Bundle
from ortdeploy.diagnostics import Diagnostic
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.gate import outside
from ortdeploy.files.listing import expand
from ortdeploy.files.names import STATE_DIR, is_file, relative
from ortdeploy.files.opening import open_regular
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import MAX_BYTES, parse_document, stage_diagnostic
from ortdeploy.manifest.document import Path as At
from ortdeploy.manifest.loader import LoadOptions, load_manifest
from ortdeploy.manifest.named_paths import (
    named_paths,
    path_from_manifest,
    paths_of_bundle,
    pattern_from_manifest,
    pinned_files,
)
from ortdeploy.manifest.option_paths import WRITTEN, find_option_paths
from ortdeploy.manifest.spec import Spec
from ortdeploy.manifest.when import REFUSE
from ortdeploy.planning.joining import look_at_files
from ortdeploy.planning.versions.named_files import NamedFiles, hashed, named_files
from ortdeploy.providers.secrets import masked_document

if TYPE_CHECKING:
    from ortdeploy.facts.data import HashedFile
    from ortdeploy.facts.facts import Facts
    from ortdeploy.facts.problems import Problem

FETCHED = "fetched"
"""The folder of a bundle with files that the manifest names by URL."""
_LFS = b"version https://git-lfs.github.com/spec/"


class Closure(Struct, frozen=True, kw_only=True):
    """A described bundle, and where each of its files lies here."""

    description: Description
    sources: Mapping[str, Path]


class _Files(Struct):
    """The files of a closure by name, where they lie, and who needs them."""

    folder: str
    found: dict[str, BundledFile] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)

    def add(self, name: str, file: "HashedFile", kind: str, stands_for: str | None = None) -> None:
        """Add a file; the first kind and URL of a name count."""
        own = BundledFile(name=name, sha256=file.sha256, size=file.size, kind=kind, stands_for=stands_for)
        self.found.setdefault(name, own)
        self.sources.setdefault(name, Path(file.path))


def close_over(
    manifest: str, options: LoadOptions, *, version: int, label: str, made_by: str, state_dir: str | None
) -> tuple[Closure | None, tuple[Diagnostic, ...]]:
    """Return all that a manifest needs, or why that cannot be bundled."""
    loaded = load_manifest(manifest, options)
    if loaded.spec is None:
        return None, loaded.diagnostics
    spec = loaded.spec
    files = _Files(folder=spec.folder)
    problems = list(_objections_to_text(spec, files, DigestCache(None)))
    for one in (spec, *loaded.variants):
        problems += _add_files(one, files, state_dir)
    if not problems:
        problems += _objections_to_files(spec, files)
    if problems:
        return None, (*loaded.diagnostics, *dict.fromkeys(problems))
    listed = tuple(files.found[name] for name in sorted(files.found))
    description = Description(
        format_version=FORMAT_VERSION,
        name=spec.name,
        version=version,
        label=label,
        manifest=Path(spec.path).name,
        overlays=tuple(relative(os.path.abspath(one), spec.folder) for one in spec.overlays),  # noqa: PTH100
        profiles=tuple(str(one.profile) for one in loaded.variants),
        base=loaded.choosable is None or loaded.choosable.otherwise != REFUSE,
        needs=Needs(ortdeploy=made_by, allow_code=any(file.kind == "code" for file in listed)),
        files=listed,
    )
    return Closure(description=description, sources=files.sources), loaded.diagnostics


def _refuse(spec: Spec, at: At, detail: str) -> Diagnostic:
    return stage_diagnostic("not-for-bundles", detail, spec.document.locate(at))


def _objections_to_text(spec: Spec, files: _Files, digests: DigestCache) -> Iterator[Diagnostic]:
    """Add the texts, and yield what keeps them from a bundle."""
    if "name" not in spec.document.data:
        yield _refuse(spec, (), "Keys and versions belong to a name. Write name: at the top of the manifest.")
    for path in (spec.path, *spec.overlays):
        full = os.path.abspath(path)  # noqa: PTH100  keeps links
        name = relative(full, spec.folder)
        if name.startswith("../") or outside(full, (spec.folder,)):
            yield _refuse(spec, (), f"{path} does not lie below the manifest's folder, or is a link out of it.")
            continue
        files.add(name, hashed(Path(full), digests.digest(Path(full))), "config")
        with open_regular(full) as file:
            document, _ = parse_document(file.read(), path)
        secret = None if document is None else _first_difference(document.data, masked_document(document.data), ())
        if document is not None and secret is not None:
            where = ".".join(map(str, secret))
            detail = f"{where} is a secret, and everybody who has a bundle can read it."
            yield stage_diagnostic("secret-in-bundle", detail, document.locate(secret))
    command = spec.on_end.command if spec.on_end is not None else None
    if command is not None and "/" in command[0] and not Path(command[0]).is_absolute():
        detail = (
            f"{command[0]} would be a program of the bundle. Install it on the device, and name it by its full path."
        )
        yield _refuse(spec, ("on_end", "command"), detail)


def _first_difference(one: Any, other: Any, at: At) -> At | None:
    if isinstance(one, dict) and isinstance(other, dict):
        found = (_first_difference(value, other.get(key), (*at, key)) for key, value in one.items())
        return next(filter(None, found), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (_first_difference(a, b, (*at, index)) for index, (a, b) in pairs)), None)
    return None if one == other else at


def _add_files(spec: Spec, files: _Files, state_dir: str | None) -> Iterator[Diagnostic]:
    """Add all that one profile of a manifest names; yield what keeps that from a bundle."""
    looked = look_at_files(spec, state_dir)
    if not isinstance(looked[0], Spec):
        yield from looked
        return
    here, facts = looked
    problems = dict(_problems(spec, facts))
    yield from (_refuse(spec, at, problem.detail) for at, problem in problems.items())
    if problems:
        return
    of_url = {file.path: str(file.sha256) for file in pinned_files(spec) if is_url(file.path)}
    for named in (*named_files(here, facts, DigestCache(None)), *_libraries(spec)):
        _add_named(spec, files, named, of_url)
    yield from _uncovered(spec, files)


def _problems(spec: Spec, facts: "Facts") -> "Iterator[tuple[At, Problem]]":
    """Yield the problems with files, each with the place that names it."""
    places = {named.path: named.at for named in named_paths(spec)}
    by_path = [(model.path, facts.models[model.name].problem) for model in spec.models]
    by_path += [(adapter.path, facts.adapters[adapter.name].problem) for adapter in spec.adapters]
    by_path += [(path, found.problem) for path, found in {**facts.labels, **facts.resources}.items()]
    by_path += [
        (pipeline.preset.folder, facts.diffusion[pipeline.name].problem)
        for pipeline in spec.pipelines
        if pipeline.preset is not None
    ]
    by_path += [(path, problem) for (kind, path), problem in facts.path_problems.items() if kind not in WRITTEN]
    yield from ((places.get(path, ()), problem) for path, problem in by_path if problem is not None)


def _libraries(spec: Spec) -> Iterator[NamedFiles]:
    """Yield the libraries that a manifest names by path. What they need beside them must be on the device."""
    named = [entry.library for chain in spec.written_chains() for entry in chain if entry.library is not None]
    named += [option.path for option in find_option_paths(spec) if option.kind == "library"]
    for path in dict.fromkeys(named):
        place = path_from_manifest(spec, path)
        if is_file(place):
            own = hashed(place, DigestCache(None).digest(place))
            yield NamedFiles(path=path, single=True, files=(own,), kind="code")


def _add_named(spec: Spec, files: _Files, named: NamedFiles, of_url: Mapping[str, str]) -> None:
    url = named.path if named.path in of_url else None
    if url is not None:
        folder = f"{FETCHED}/{of_url[named.path]}"
    else:
        folder = relative(path_from_manifest(spec, named.path), spec.folder)
        folder = posixpath.dirname(folder) if named.single else folder
    for index, file in enumerate(named.files):
        name = posixpath.normpath(posixpath.join(folder, file.name))
        files.add(name, file, named.kind, url if index == 0 else None)


def _uncovered(spec: Spec, files: _Files) -> Iterator[Diagnostic]:
    """Yield what a manifest names and no file of the bundle is, but for what is read or written as data."""
    fetched = {file.stands_for for file in files.found.values()}
    for named in (one for one in paths_of_bundle(spec) if one.path not in fetched):
        name = relative(path_from_manifest(spec, named.path), spec.folder)
        if Path(named.path).is_absolute() or name.startswith("../"):
            yield _refuse(spec, named.at, f"{named.path} is no path from the manifest into its own folder tree.")
        elif name not in files.found and not any(one.startswith(f"{name}/") for one in files.found):
            yield _refuse(spec, named.at, f"{named.path} has no file that a bundle could take.")


def _objections_to_files(spec: Spec, files: _Files) -> Iterator[Diagnostic]:
    wrong = objection_to_names((*files.found, NAME))
    if wrong is not None:
        yield _refuse(spec, (), f"{wrong}. Rename it.")
    data = {os.path.realpath(one) for job in spec.jobs for one in _inputs(spec, job.input.paths)}
    made = [relative(path_from_manifest(spec, job.output.path), spec.folder) for job in spec.jobs]
    for name, source in files.sources.items():
        if not name.startswith(f"{FETCHED}/") and outside(str(source), (spec.folder,)):
            yield _refuse(spec, (), f"{name} is a link out of the manifest's folder tree.")
        if os.path.realpath(source) in data:
            yield _refuse(spec, (), f"{name} is an input of a job, and inputs stay where they are.")
        if any(name.startswith(f"{one}/") for one in (*made, STATE_DIR)):
            yield _refuse(spec, (), f"{name} lies in an output or in the state directory, which are not for bundles.")
        if files.found[name].size < 1024 and _is_pointer(source):  # noqa: PLR2004  such a pointer has 130
            detail = f"{name} is a pointer of Git LFS and not the file itself. Fetch it: git lfs pull."
            yield _refuse(spec, (), detail)


def _inputs(spec: Spec, patterns: "tuple[str, ...]") -> Iterator[str]:
    for pattern in patterns:
        if not is_url(pattern):
            yield from expand(pattern_from_manifest(spec, pattern))


def _is_pointer(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(_LFS)) == _LFS


def needed_by(bundle: Bundle) -> dict[str, list[str]]:
    """Return the places of the manifest that name each file of a bundle; none if its text cannot be read."""
    description, texts = bundle.description, dict[str, bytes]()
    for file in description.files:
        if file.name in {description.manifest, *description.overlays}:
            with bundle.opened(file) as opened:
                texts[os.path.abspath(file.name)] = opened.read(MAX_BYTES)  # noqa: PTH100  as the loader looks for it
    options = LoadOptions(digest=False, texts=texts, overlays=description.overlays)
    loaded = load_manifest(description.manifest, options)
    of_url = {file.stands_for: file.name for file in description.files}
    found: dict[str, list[str]] = {}
    for named in (one for spec in (loaded.spec, *loaded.variants) if spec is not None for one in named_paths(spec)):
        path = of_url.get(named.path) or posixpath.normpath(named.path)
        who = ".".join(map(str, named.at[:2]))
        for name in description.digests:
            if (name == path or name.startswith(f"{path}/")) and who not in found.setdefault(name, []):
                found[name].append(who)
    return found
