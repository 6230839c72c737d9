"""Compares the digests that a manifest pins with those of the files."""

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.facts.models import DiffusionFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import Path as DocumentPath
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.pipelines import CONSTANT, PresetSpec, walk
from ortdeploy.manifest.spec import Spec
from ortdeploy.manifest.when import PROFILES
from ortdeploy.planning.probing.probe import probe_adapter, probe_constant, probe_model, read_preset
from ortdeploy.rules.catalogue import load_rule
from ortdeploy.rules.protocol import Finding, diagnose


class Digested(Struct, frozen=True, kw_only=True):
    """A file whose digest a manifest may pin, its place in the manifest, and whether it is locked, open or changed."""

    name: str
    path: str
    sha256: str
    at: DocumentPath
    state: str

    def written(self) -> "Digested":
        """Return the file as it is after its digest was written."""
        return self if self.state == "locked" else replace(self, state="written")


def probe_digests(spec: Spec) -> tuple[tuple[Digested, ...], tuple[Diagnostic, ...]]:
    """Return the digests of a manifest's models, adapters, constants and presets, and problems with their files."""
    roots = (spec.folder, *spec.roots)
    files: list[Digested] = []
    problems: list[Diagnostic] = []
    for model in spec.models:
        if model.at[0] != "models":  # a component's file is pinned with its preset's folder
            continue
        if is_url(model.path):  # it is pinned by its digest already
            files += _digested(model.name, model.path, model.sha256, model.sha256 or "", model.at)
            continue
        facts = probe_model(spec, model, roots, DigestCache(None))
        files += _digested(model.name, model.path, model.sha256, facts.sha256, model.at)
        problems += _unusable(spec, (*model.at, "path"), "unreadable-model", facts.problem)
    for adapter in spec.adapters:
        if is_url(adapter.path):
            files += _digested(adapter.name, adapter.path, adapter.sha256, adapter.sha256 or "", adapter.at)
            continue
        file = probe_adapter(path_from_manifest(spec, adapter.path), adapter.path, roots, DigestCache(None))
        files += _digested(adapter.name, adapter.path, adapter.sha256, file.sha256, adapter.at)
        problems += _unusable(spec, (*adapter.at, "path"), "unreadable-adapter", file.problem)
    for step in (step for one in spec.pipelines for step in walk(one.steps) if CONSTANT in step.options):
        path = step.options[CONSTANT]
        constant = probe_constant(spec, path, roots, DigestCache(None))
        files += _digested(step.outputs[0][1], path, step.options.get("sha256"), constant.sha256, step.at)
        problems += _unusable(spec, (*step.at, CONSTANT), "unusable-option-path", constant.problem)
    for pipeline, preset in ((one, one.preset) for one in spec.pipelines if one.preset is not None):
        found = _probe_preset(spec, preset, roots)
        files += _digested(pipeline.name, preset.folder, preset.sha256, found.folder_sha256, pipeline.at)
        problems += _unusable(spec, (*pipeline.at, "from"), "unusable-preset", found.problem)
    return tuple(files), tuple(problems)


def probe_digests_of_profile(spec: Spec, base: Spec) -> tuple[tuple[Digested, ...], tuple[Diagnostic, ...]]:
    """Return the digests of the files that a profile names in place of the manifest's own, at their places in it.

    What the manifest pins beside its own path is the digest of another file.
    """
    files, problems = probe_digests(spec)
    own = []
    for file in files:
        at = (PROFILES, spec.profile or "", *file.at)
        keys = base.document.keys
        if (*at, "path") in keys or (*at, "from") in keys:
            own.append(replace(file, at=at, state=file.state if (*at, "sha256") in keys else "open"))
    return tuple(own), problems


def _probe_preset(spec: Spec, preset: PresetSpec, roots: tuple[str, ...]) -> DiffusionFacts:
    digests = DigestCache(None)
    names = set(preset.parts.values())
    parts = {one.name: probe_model(spec, one, roots, digests) for one in spec.models if one.name in names}
    adapters = {
        one.name: probe_adapter(path_from_manifest(spec, one.path), one.path, roots, digests) for one in spec.adapters
    }
    return read_preset(spec, preset, parts, adapters)


def _digested(name: str, path: str, pinned: str | None, digest: str, at: DocumentPath) -> list[Digested]:
    if not digest:
        return []
    state = "open" if pinned is None else "locked" if pinned == digest else "changed"
    return [Digested(name=name, path=path, sha256=digest, at=at, state=state)]


def _unusable(spec: Spec, at: DocumentPath, rule: str, problem: Problem | None) -> list[Diagnostic]:
    if problem is None:
        return []
    return [diagnose(load_rule(rule).RULE, Finding(at=at, detail=problem.detail), spec)]
