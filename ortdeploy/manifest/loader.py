"""Reads manifest files and takes them through document, overrides, schema and spec."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, Span, has_errors
from ortdeploy.facts.variants import ENVIRONMENT, FLAG, NO_PROFILE, Choice
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import open_regular
from ortdeploy.files.path_suggestions import advice_on_path
from ortdeploy.manifest.document import MAX_BYTES, Document, parse_document, stage_diagnostic
from ortdeploy.manifest.empty_options import drop_empty_options
from ortdeploy.manifest.profiles import check_profiles, profile_names
from ortdeploy.manifest.read_spec import build_spec
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.manifest.spec import Spec
from ortdeploy.manifest.when import PROFILES, Variants, read_variants
from ortdeploy.providers.secrets import remember_secrets
from ortdeploy.shell import command

SUFFIXES = (".yaml", ".yml")
_MODELS = (".onnx", ".ort")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""Bytes that are in every model and in no text."""
_FIRST = 512
"""Bytes of a file that are looked at: a text has no such byte among them."""


class LoadOptions(Struct, frozen=True, kw_only=True):
    """What the command line says about every manifest; `digest` when plans are made of it.

    `profile` is the one that is asked for (NO_PROFILE: none), `from_environment`: by a variable. `device_name` and
    `labels` are what this machine is called, for the `when` of profiles; `choose_anew`: whatever was chosen before.
    `overlays` are files that are laid over it, the last one on top; `sets` are single values over those.
    `texts` are by full path what is read in place of manifests and overlays, and `places` are by the path as written
    where files lie that a manifest names.
    """

    digest: bool = True
    profile: str | None = None
    from_environment: bool = False
    device_name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    choose_anew: bool = False
    sets: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    overlay_documents: tuple[Document, ...] = ()
    texts: Mapping[str, bytes] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


class Loaded(Struct, frozen=True, kw_only=True):
    """One manifest file: its spec when there is one, the specs of its other profiles, and what is wrong with it.

    `choosable`: a profile is to be chosen by these conditions, and `spec` is the manifest without any. `is_device`: it
    is a device file, and has no spec.
    """

    path: str
    spec: Spec | None
    variants: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    is_device: bool = False
    choosable: Variants | None = None

    def chosen(self, choice: Choice) -> Spec | None:
        """Return the spec of a choice among the profiles."""
        specs = (one for one in (self.spec, *self.variants) if one is not None)
        spec = next((one for one in specs if one.profile == choice.name), None)
        return None if spec is None else replace(spec, choice=choice)


def find_manifests(paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[Diagnostic, ...]]:
    """Return the manifest files that the paths name; a folder stands for the *.yaml and *.yml directly in it."""
    files: list[str] = []
    problems: list[Diagnostic] = []
    for text in paths:
        if not is_folder(text):
            files.append(text)
            continue
        inside = sorted(str(child) for child in Path(text).iterdir() if child.suffix in SUFFIXES and child.is_file())
        if not inside:
            detail = f"{text} is a folder without *.yaml or *.yml files directly in it."
            problems.append(_unreadable(detail, text))
        files += inside
    return tuple(dict.fromkeys(files)), tuple(problems)


def load_manifest(path: str, options: LoadOptions, *, devices: bool = False) -> Loaded:
    """Load one file: every problem of its text and shape, and its spec unless one of them is an error.

    `devices`: a device file is held against its own schema; else it is one problem, for it deploys nothing.
    """
    raw, problem = _read(path, options.texts)
    if raw is None:
        return Loaded(path=path, spec=None, variants=(), diagnostics=(problem,) if problem else ())
    document, diagnostics = parse_document(raw, path)
    if document is None:
        return Loaded(path=path, spec=None, variants=(), diagnostics=diagnostics)
    if is_device_file(document):
        detail = f"{path} describes a device and deploys nothing. Plan for it with --device {path}."
        problems = check_document(document, "device") if devices else (_unreadable(detail, path),)
        return Loaded(path=path, spec=None, variants=(), diagnostics=(*diagnostics, *problems), is_device=True)
    overlays, found = _read_overlays(options.overlays, options.texts)
    diagnostics += found
    if has_errors(found):
        return Loaded(path=path, spec=None, variants=(), diagnostics=diagnostics)
    sha256 = _digest(b"".join((raw, *(text for text, _ in overlays)))) if options.digest else ""
    options = replace(options, overlay_documents=tuple(overlay for _, overlay in overlays))
    diagnostics += check_profiles(document)
    spec, found = _specify(document, None if options.profile == NO_PROFILE else options.profile, options, sha256)
    diagnostics += found
    variants = []
    for name in () if options.profile else profile_names(document):
        variant, found = _specify(document, name, options, sha256)
        diagnostics += found
        variants += [variant] if variant else []
    choosable = None
    if spec is None or has_errors(diagnostics):
        spec, variants = None, []
    elif options.profile:
        reason = ENVIRONMENT if options.from_environment else FLAG
        spec = replace(spec, choice=Choice(name=spec.profile, reason=reason))
    else:
        choosable = read_variants(document)
    return Loaded(
        path=path,
        spec=spec,
        variants=tuple(variants),
        diagnostics=tuple(dict.fromkeys(diagnostics)),
        choosable=choosable,
    )


def load_variants(path: str, options: LoadOptions) -> tuple[Spec, ...]:
    """Return the specs of a manifest without and with each profile, whichever is asked for: those without an error."""
    loaded = load_manifest(path, replace(options, profile=None))
    if loaded.spec is not None:
        return (loaded.spec, *loaded.variants)
    asked = load_manifest(path, options).spec if options.profile else None
    return () if asked is None else (asked,)


def is_device_file(document: Document) -> bool:
    """Return whether a document is a device file: it says so by the version of its own format."""
    return isinstance(document.data, dict) and "device_version" in document.data and "version" not in document.data


def find_unchecked(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the folders inside of given folders that hold YAML files, which a folder does not stand for."""
    folders = {
        str(child)
        for text in paths
        if is_folder(text)
        for child in Path(text).iterdir()
        if child.is_dir() and any(one.suffix in SUFFIXES and one.is_file() for one in child.iterdir())
    }
    return tuple(sorted(folders - {str(Path(text)) for text in paths}))


def _read_overlays(
    paths: Sequence[str], texts: Mapping[str, bytes]
) -> tuple[list[tuple[bytes, Document]], tuple[Diagnostic, ...]]:
    """Return the texts of overlay files with their documents."""
    found: list[tuple[bytes, Document]] = []
    diagnostics: tuple[Diagnostic, ...] = ()
    for path in paths:
        raw, problem = _read(path, texts)
        diagnostics += (problem,) if problem else ()
        document, problems = parse_document(raw, path) if raw is not None else (None, ())
        diagnostics += problems
        if raw is not None and document is not None and isinstance(document.data, dict):
            if PROFILES in document.data:
                detail = f"{path} has {PROFILES}:, which is read in the manifest alone: a profile lies below overlays."
                diagnostics += (stage_diagnostic("override-conflict", detail, document.locate_key((PROFILES,))),)
            found.append((raw, document))
        elif document is not None:
            detail = f"{path} is no mapping of manifest keys, such as jobs: and models:."
            diagnostics += (stage_diagnostic("override-conflict", detail, document.locate(())),)
    return found, diagnostics


def _digest(raw: bytes) -> str:
    import hashlib  # noqa: PLC0415  brings OpenSSL, which checking text does without

    return hashlib.sha256(raw).hexdigest()


def _read(path: str, texts: Mapping[str, bytes]) -> tuple[bytes | None, Diagnostic | None]:
    kept = texts.get(str(Path(path).absolute()))
    if kept is not None:
        return kept, None
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None, _unreadable(f"There is no file {path}.{advice_on_path(path, path)}", path)
    except (OSError, ValueError) as error:
        return None, _unreadable(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", path)
    why = _no_manifest(path, raw) if _CONTROL.search(raw, 0, _FIRST) else None
    return (raw, None) if why is None else (None, _unreadable(why, path))


def _no_manifest(path: str, raw: bytes) -> str | None:
    """Say what a file is that holds bytes which no text has; None if that is not known."""
    from ortdeploy.files.content import HEAD, ORT_MODEL, recognise  # noqa: PLC0415  only after a mistake

    content = recognise(raw[:HEAD])
    if content is ORT_MODEL or (content is None and Path(path).suffix.lower() in _MODELS):
        return f"{path} is a model. {command('ortdeploy', 'init', path)} writes a manifest for it."
    return None if content is None else f"{path} is {content.what}, and a manifest is YAML text."


def _unreadable(detail: str, path: str) -> Diagnostic:
    return stage_diagnostic("unreadable-manifest", detail, Span(path=path, line=1, column=1))


def _override(document: Document, profile: str | None, options: LoadOptions) -> tuple[Document, tuple[Diagnostic, ...]]:
    from ortdeploy.manifest.overrides import apply_overlay, apply_profile, apply_sets  # noqa: PLC0415  only for overrides

    diagnostics: tuple[Diagnostic, ...] = ()
    if profile is not None:
        document, diagnostics = apply_profile(document, profile)
    for overlay in options.overlay_documents:
        document = apply_overlay(document, overlay)
    document, found = apply_sets(document, options.sets)
    return document, diagnostics + found


def _specify(
    document: Document, profile: str | None, options: LoadOptions, sha256: str
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Lay profile and --set over a document, check the result, build the spec if it has the right shape."""
    diagnostics: tuple[Diagnostic, ...] = ()
    if profile is not None or options.sets or options.overlay_documents:
        document, diagnostics = _override(document, profile, options)
    drop_empty_options(document.data)
    remember_secrets(document.data)
    diagnostics += check_document(document)
    if has_errors(diagnostics):
        return None, diagnostics
    folder = Path(document.path).absolute().parent
    spec = build_spec(
        document,
        name=os.fsencode(Path(document.path).stem).decode(errors="replace"),
        folder=str(folder),
        roots=tuple(str(Path(root).absolute()) for root in options.roots),
        sha256=sha256,
        profile=profile,
        asked=options.profile,
        sets=options.sets,
        overlays=options.overlays,
    )
    if options.places:
        spec = replace(spec, places=options.places)
    return spec, diagnostics
