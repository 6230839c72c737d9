"""Keeps each manifest as it last ran well, to run that version while a later one is refused.

A record is a version (`versions`) of the manifest: its texts, and the files that it names (`named_files`). Libraries
are opened as they are now, because each may need others beside it.

`last-good/<key>.json` is the record. The key is a digest of the manifest's path and of the options that it was planned
with. That it runs in place of the manifest is among the `refused_applies`.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, UsageError, errors_in, failure_at
from ortdeploy.events import log
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.content_store import LOCK, ContentChangedError, ContentStore, StoreFullError
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.disk import make_folders
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import KEPT, is_file
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.output_lock import shared_use
from ortdeploy.manifest.loader import LoadOptions, find_manifests
from ortdeploy.planning.devices.variants import as_last_chosen
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.refused_applies import Refusal, note_refusal, refused_applies
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.planning.versions.named_files import named_files
from ortdeploy.planning.versions.version import Version, add_place, dump_version, read_version, recall
from ortdeploy.planning.workflow import plan_manifests

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.data import HashedFile
    from ortdeploy.manifest.spec import Spec

_NOTHING = Planned(plans=(), diagnostics=())


def keep_good(deployment: "Deployment", state_dir: Path, now: str) -> None:
    """Keep the files and texts of a deployment that has run well; if that is impossible, log why."""
    spec = deployment.spec
    try:
        with shared_use(state_dir, LOCK):  # so that no new file is pruned before it is referred to
            _keep_version(deployment, state_dir, now)
    except ContentChangedError as error:
        log.warning("manifest.not_kept", manifest=spec.path, reason=f"{error} was changed while it was read")
    except (OSError, StoreFullError, OrtdeployError) as error:
        log.warning("manifest.not_kept", manifest=spec.path, reason=failure_at(state_dir, error))


def _keep_version(deployment: "Deployment", state_dir: Path, now: str) -> None:
    """Put files into the store, refer to them, and write the record. Raises what `put` raises."""
    spec, store = deployment.spec, ContentStore(state_dir)
    key = _key_of(spec.path, _asked_of(spec))
    texts = _keep_texts(store, spec)
    files, places = dict[str, str](), dict[str, str]()
    for number, one in enumerate(named_files(spec, deployment.facts, DigestCache(state_dir))):
        own = {file.name: _keep(store, file) for file in one.files}
        add_place(files, places, number, one.path, own, single=one.single)
    full = os.path.abspath(spec.path)  # noqa: PTH100  keeps links
    version = Version(
        manifest=full, asked=_asked_of(spec), texts=texts, files=files, places=places, kept=now, profile=spec.profile
    )
    store.refer(_owner(key), version.digests, lasting=True)
    record = _record_of(state_dir, key)
    new, before = dump_version(version), _read(record)
    if before is None or {**before, "kept": now} != new:
        make_folders(record.parent)
        with open_whole(record) as file:
            file.write(json.dumps(new).encode())


def _owner(key: str) -> str:
    """Return the owner in whose name a record refers to its files."""
    return f"{KEPT} {key}"


def kept_files(state_dir: Path) -> dict[Path, str | None]:
    """Return the records of a state folder, each with the owner of its references.

    None if its manifest is gone, or the record cannot be read.
    """
    found: dict[Path, str | None] = {}
    for path in sorted((state_dir / KEPT).glob("*.json")):
        known = _read(path)
        manifest = None if known is None else str(known.get("manifest"))
        there = manifest is not None and (is_file(manifest) or not os.path.isabs(manifest))  # noqa: PTH117  text
        found[path] = _owner(path.stem) if there else None
    return found


def with_last_good(
    planned: Planned,
    paths: Sequence[str],
    options: LoadOptions,
    *,
    state_dir: str | None,
    now: str,
    jobs: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
) -> Planned:
    """Return the plans, completed with the last good versions of manifests that are refused; log which."""
    done = {str(Path(plan.folder) / Path(plan.manifest).name) for plan in planned.plans}
    for path in find_manifests(paths)[0]:
        if os.path.abspath(path) not in done:  # noqa: PTH100  keeps links
            reason = _first_error(path, planned.diagnostics)
            then = plan_last_good(path, options, reason, state_dir=state_dir, now=now, jobs=jobs, excluded=excluded)
            own = then.specs if path not in {spec.path for spec in planned.specs} else ()
            planned = replace(planned, stand_ins=(*planned.stand_ins, *then.plans), specs=(*planned.specs, *own))
    return planned


def plan_last_good(
    path: str,
    options: LoadOptions,
    reason: str,
    *,
    state_dir: str | None,
    now: str,
    jobs: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
) -> Planned:
    """Plan a manifest as it last ran well, and note for `status` that it is refused now."""
    folder = state_folder(str(Path(path).absolute().parent), state_dir, options.roots)
    then = _recall(path, folder, options)
    if then is None:
        return _NOTHING
    old, kept, profile = then
    try:
        again = plan_manifests([path], old, state_dir=state_dir, jobs=jobs, excluded=excluded)
    except UsageError as error:  # a job that the last good version does not have
        log.warning("manifest.not_recalled", manifest=path, reason=str(error))
        return _NOTHING
    if not again.plans:
        log.warning("manifest.not_recalled", manifest=path, reason=_first_error(path, again.diagnostics))
        return _NOTHING
    other = next((plan.profile for plan in again.plans if plan.profile != profile), profile)
    if other != profile:  # of whose files nothing was kept
        log.warning("manifest.not_recalled", manifest=path, reason=f"it ran with profile {profile}, and not {other}")
        return _NOTHING
    since = note_refusal(path, folder, reason, now, replaced=True)
    log.warning("manifest.stands_in", manifest=path, refused_since=since, reason=reason, good=kept)
    return replace(again, plans=tuple(replace(plan, gates=()) for plan in again.plans))  # they passed before


def find_refusals(paths: Sequence[str], options: LoadOptions, state_dir: str | None) -> tuple[Refusal, ...]:
    """Return the refusals of manifests whose last good versions run in their place."""
    found = []
    for known in refused_applies(find_manifests(paths)[0], state_dir, replaced=True):
        path = known.manifest
        folder = state_folder(str(Path(path).absolute().parent), state_dir, options.roots)
        then = _recall(path, folder, options)
        if then is None:
            continue
        old, kept, _ = then
        found.append(replace(known, good=kept, specs=validate([path], old, choose=as_last_chosen(state_dir)).specs))
    return tuple(found)


def _key_of(manifest: str, asked: Mapping[str, Any]) -> str:
    full = os.path.abspath(manifest)  # noqa: PTH100  keeps links
    text = json.dumps([full, asked], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _record_of(state_dir: Path, key: str) -> Path:
    return state_dir / KEPT / f"{key}.json"


def _asked(options: LoadOptions) -> dict[str, Any]:
    overlays = [os.path.abspath(one) for one in options.overlays]  # noqa: PTH100  keeps links
    return {"profile": options.profile, "sets": list(options.sets), "overlays": overlays}


def _asked_of(spec: "Spec") -> dict[str, Any]:
    return _asked(LoadOptions(profile=spec.asked, sets=spec.sets, overlays=spec.overlays))


def _keep_texts(store: ContentStore, spec: "Spec") -> dict[str, str]:
    """Keep the manifest and its overlays; return their digests by path. Raises what `put` raises."""
    texts = {os.path.abspath(one): store.put(Path(one)) for one in (spec.path, *spec.overlays)}  # noqa: PTH100
    whole = hashlib.sha256()
    for digest in texts.values():
        kept = store.find(digest)
        whole.update(b"" if kept is None else read_whole(kept))
    if whole.hexdigest() != spec.sha256:
        raise ContentChangedError(spec.path)
    return texts


def _keep(store: ContentStore, file: "HashedFile") -> str:
    return file.sha256 if store.find(file.sha256) is not None else store.put(Path(file.path), file.sha256)


def _recall(path: str, state_dir: Path, options: LoadOptions) -> tuple[LoadOptions, str, str | None] | None:
    """Return the options that load a manifest as it last ran well, the time of that, and its profile.

    None if a file is missing.
    """
    record = _read(_record_of(state_dir, _key_of(path, _asked(options))))
    if record is None:
        return None
    try:
        version = read_version(record)
        profile = version.profile if "profile" in record else options.profile
        return recall(version, state_dir, "", options), version.kept, profile
    except (OSError, StoreFullError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("manifest.not_recalled", manifest=path, reason=f"what was kept of it is not whole: {error}")
        return None


def _first_error(path: str, diagnostics: Sequence[Diagnostic]) -> str:
    """Return why a manifest is refused, in the rule's id and summary."""
    errors = errors_in(diagnostics)
    own = [one for one in errors if one.span.path == path] or errors
    return f"{own[0].rule}: {own[0].summary}" if own else "it could not be planned"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        known = read_json(read_whole(path))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) else None
