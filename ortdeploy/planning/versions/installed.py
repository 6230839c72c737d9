"""Deployments that came in bundles: which versions are here, how far each came, and which one runs.

`bundles/<digest of the name>.json` in the state directory is one record for each deployment, written whole. A version
goes from state to state, each durable before the next: described, trusted, whole (its files are in the content store),
planned, checked, current. Its statement and signatures are kept with its files, so that trust is asked again each time.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.bundles.description import Description, canonical, parse
from ortdeploy.bundles.policy import Policy, trust
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import make_durable_folder, open_whole
from ortdeploy.files.content_store import ContentStore, StoreFullError
from ortdeploy.files.names import BUNDLES
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.versions.version import Version, dump_version, read_version, recall

OWNER = "bundle "
"""How the owners of references in the content store begin that are versions of bundles."""
DESCRIBED, TRUSTED, WHOLE, PLANNED, CHECKED, CURRENT = "described", "trusted", "whole", "planned", "checked", "current"
_BEFORE = {WHOLE: TRUSTED, PLANNED: WHOLE, CHECKED: PLANNED}
"""The last state that a version has reached which was refused at another one."""
_FORMAT_VERSION = 1
_MOST_REFUSALS = 20


class DamagedRecordError(OrtdeployError):
    """A record is not what `save_installed` writes; `recovery` writes it anew."""


class Refused(Struct, frozen=True, kw_only=True):
    """A version that was refused: at which state, why, since when, and by which facts and policies.

    Without an id, it is what lies in the place of the bundle, of which not even the number can be read.
    """

    id: str
    number: int
    label: str
    state: str
    reason: str
    since: str
    facts: str

    @property
    def rule(self) -> str | None:
        """The rule that refuses its plan, with which the reason begins."""
        return self.reason.partition(":")[0] if self.state == PLANNED else None

    @property
    def called(self) -> str:
        """The number of the version, or the word bundle."""
        return f"{self.number}" if self.id else "bundle"


class Installed(Struct, frozen=True, kw_only=True):
    """The versions of one deployment. By id, `reached` is the last state, and `passed` by which facts it was checked.

    `highest` is the highest number that became current, `aside` that up to which versions were rolled back; 0: none.
    `wanted` is the id of the last version that somebody asked for, and `source` the path of its bundle. `begun` is how
    often a plan with golden checks was begun that has not ended, by the version's id and its facts.
    """

    name: str
    versions: tuple[Version, ...] = ()
    signatures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reached: Mapping[str, str] = field(default_factory=dict)
    passed: Mapping[str, str] = field(default_factory=dict)
    current: str | None = None
    highest: int = 0
    aside: int = 0
    wanted: str | None = None
    source: str = ""
    begun: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()

    def version(self, id_: str | None) -> Version | None:
        """Return a version by its id."""
        return next((one for one in self.versions if one.id == id_), None)

    def refusal(self, id_: str | None) -> Refused | None:
        """Return why a version was refused last."""
        return next((one for one in self.refused if one.id == id_), None)

    @property
    def wanted_refusal(self) -> Refused | None:
        """Why the version was refused that was asked for last; None if that one runs, or was not refused."""
        return None if self.wanted == self.current else self.refusal(self.wanted)


class Running(Struct, frozen=True, kw_only=True):
    """What tells the version that runs: the bundle's id, its number and label."""

    bundle: str
    number: int
    label: str


def running_version(state_dir: Path, name: str) -> Running | None:
    """Return what runs of a deployment by name; None if it did not come in a bundle."""
    with suppress(OrtdeployError):
        version = (one := load_installed(state_dir, name)).version(one.current)
        if version is not None and version.id is not None and version.number is not None:
            return Running(bundle=version.id, number=version.number, label=version.label)
    return None


class Wanted(Struct, frozen=True, kw_only=True):
    """The version that was asked for last: whether it runs, the last state that it reached, and its refusal."""

    bundle: str
    same: bool
    reached: str
    refused: Refused | None


def wanted_version(state_dir: Path, name: str) -> Wanted | None:
    """Return which version of a deployment was asked for last; None if none was."""
    with suppress(OrtdeployError):
        found = load_installed(state_dir, name)
        if found.wanted is not None:
            refused = found.refusal(found.wanted)
            reached = found.reached.get(found.wanted) if refused is None else _BEFORE.get(refused.state)
            same = found.wanted == found.current
            return Wanted(bundle=found.wanted, same=same, reached=reached or DESCRIBED, refused=refused)
    return None


def record_of(state_dir: Path, name: str) -> Path:
    """Return the path of a deployment's record."""
    return state_dir / BUNDLES / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


def load_installed(state_dir: Path, name: str) -> Installed:
    """Return what is installed of a deployment. Raises OrtdeployError, DamagedRecordError."""
    try:
        return _load(record_of(state_dir, name))
    except FileNotFoundError:
        return Installed(name=name)
    except OSError as error:
        raise OrtdeployError(f"{record_of(state_dir, name)} cannot be read: {error.strerror}") from error


def _load(path: Path) -> Installed:
    """Read a record. Raises OSError, OrtdeployError, DamagedRecordError."""
    try:
        data = json.loads(read_whole(path))
        versions = tuple(map(read_version, data.pop("versions")))
        if data.pop("format_version") != _FORMAT_VERSION:
            raise OrtdeployError(f"{path} was written by a newer ortdeploy")
        found = msgspec.convert({**data, "versions": ()}, Installed, strict=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        raise DamagedRecordError(f"{path} is damaged: {error}") from error
    if found.current is not None and found.current not in {one.id for one in versions}:
        raise DamagedRecordError(f"{path} is damaged: the version that runs is none of those that it lists")
    return replace(found, versions=versions)


def save_installed(state_dir: Path, installed: Installed) -> None:
    """Write a record, durable at the end. Raises OrtdeployError."""
    path = record_of(state_dir, installed.name)
    data = {name: getattr(installed, name) for name in installed.__struct_fields__}
    data["versions"] = [dump_version(one) for one in installed.versions]
    document = {"format_version": _FORMAT_VERSION, **msgspec.to_builtins(data)}
    try:
        make_durable_folder(path.parent)
        with open_whole(path) as file:
            file.write(json.dumps(document).encode())
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def installing(state_dir: Path, name: str) -> Iterator[None]:
    """Keep other processes from changing what is installed of a deployment. Raises LockedError, OrtdeployError."""
    with hold_output(state_dir, f"bundle {name}"):
        yield


def trust_again(installed: Installed, version: Version, state_dir: Path, policies: Sequence[Policy]) -> tuple[str, ...]:
    """Ask for the trust of an installed version, from what is kept of it; return why. Raises OrtdeployError."""
    if not policies:
        return ()
    store, id_ = ContentStore(state_dir), str(version.id)
    description = parse(_kept(store, id_))
    signatures = {name: _kept(store, digest) for name, digest in installed.signatures.get(id_, {}).items()}
    return trust(policies, description, id_, signatures)


def _kept(store: ContentStore, digest: str) -> bytes:
    with _in_words():
        return read_whole(store.required(digest))


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise OrtdeployError for what the store raises, with what to do."""
    try:
        yield
    except StoreFullError as error:
        raise OrtdeployError(f"{error}. Apply the bundle again") from error
    except OSError as error:
        raise OrtdeployError(f"{error.strerror or error}") from error


def is_set_aside(installed: Installed, id_: str) -> bool:
    """Return whether a version is here, and a rollback went back behind it."""
    version, current = installed.version(id_), installed.version(installed.current)
    number = 0 if version is None else version.number or 0
    return current is not None and (current.number or 0) < number <= installed.aside


def objection_to_number(installed: Installed, description: Description, id_: str) -> str | None:
    """Say why the number of a version keeps it from being installed; None if it does not."""
    number = description.version
    known = {one.number: one for one in installed.versions}
    other = known.get(number)
    if other is not None and other.id != id_:
        return f"version {number} is here already with the id {other.id}. A bundle with other content has a higher one"
    if id_ == installed.current:
        return None
    if number <= installed.aside:
        return (
            f"version {number} was set aside by a rollback; a version above {installed.aside} is taken, or "
            f"this one after: ortdeploy rollback @{installed.name} --unpin"
        )
    if number < installed.highest:
        return (
            f"version {installed.highest} ran here before, and {number} is older. "
            f"Go back to an installed one with: ortdeploy rollback @{installed.name}"
        )
    return None


def with_state(installed: Installed, id_: str, state: str) -> Installed:
    """Return a record in which a version has reached a state."""
    known = {one.id for one in installed.versions}
    reached = {one: before for one, before in installed.reached.items() if one in known}
    return replace(installed, wanted=id_, reached={**reached, id_: state})


def with_passed(installed: Installed, id_: str, facts: str) -> Installed:
    """Return a record in which a version's golden checks have passed with these facts."""
    return replace(installed, passed={**installed.passed, id_: facts}, begun={})


def rolled_back(installed: Installed, number: int | None) -> tuple[Installed, Version]:
    """Return a record in which an older version is current, by its number or the next lower one, and that version.

    All above it are set aside. Raises OrtdeployError.
    """
    current = installed.version(installed.current)
    if current is None:
        raise OrtdeployError(f"nothing is installed as @{installed.name}")
    ran = [one for one in installed.versions if one.id in installed.passed]
    older = sorted(one.number or 0 for one in ran if (one.number or 0) < (current.number or 0))
    wanted = number if number is not None else older[-1] if older else None
    target = next((one for one in ran if one.number == wanted), None)
    if target is None or target.id is None or wanted not in older:
        known = f"those that are: {', '.join(map(str, older))}" if older else f"{current.number} is the oldest"
        raise OrtdeployError(f"there is no such older version of {installed.name} here; {known}")
    reached = {**installed.reached, target.id: CURRENT}
    aside = max(installed.aside, installed.highest)
    return replace(installed, current=target.id, wanted=target.id, aside=aside, reached=reached), target


def with_refusal(installed: Installed, refused: Refused) -> Installed:
    """Return a record with a refusal; of the same facts, the first time counts."""
    before = installed.refusal(refused.id)
    if before is not None and (before.facts, before.state) == (refused.facts, refused.state):
        refused = replace(refused, since=before.since)
    others = [one for one in installed.refused if one.id != refused.id]
    return replace(installed, wanted=refused.id, refused=(*others[-_MOST_REFUSALS + 1 :], refused))


def with_unreadable(installed: Installed, reason: str, now: str) -> Installed:
    """Return a record in which what was asked for last cannot even be described."""
    return with_refusal(
        installed, Refused(id="", number=0, label="", state=DESCRIBED, reason=reason, since=now, facts="")
    )


def asked_for(installed: Installed, id_: str, source: str) -> Installed:
    """Return a record in which somebody asks for a version, of which a bundle lies at a path and can be read."""
    return replace(installed, source=source, wanted=id_, refused=tuple(one for one in installed.refused if one.id))


def with_current(installed: Installed, id_: str, keep: int) -> tuple[Installed, tuple[Version, ...]]:
    """Return a record in which a version is current, and the versions that it does not keep any more."""
    version = installed.version(id_)
    number = version.number if version is not None and version.number is not None else 0
    aside = 0 if number > installed.aside else installed.aside
    refused = {one.id for one in installed.refused}
    good = (one for one in installed.versions if one.id not in refused)
    newest = sorted(good, key=lambda one: one.number or 0, reverse=True)
    kept = list(dict.fromkeys((id_, installed.current or id_, *(one.id for one in newest))))[:keep]
    gone = tuple(one for one in installed.versions if one.id not in kept)
    ids = {one.id for one in gone}
    changed = replace(
        with_state(installed, id_, CURRENT),
        current=id_,
        highest=max(installed.highest, number),
        aside=aside,
        versions=tuple(one for one in installed.versions if one.id not in ids),
        reached={one: state for one, state in {**installed.reached, id_: CURRENT}.items() if one not in ids},
        passed={one: facts for one, facts in installed.passed.items() if one not in ids},
        signatures={one: names for one, names in installed.signatures.items() if one not in ids},
        refused=tuple(one for one in installed.refused if one.id != id_),
    )
    return changed, gone


def sizes_of(installed: Installed, state_dir: Path) -> dict[str, int]:
    """Return the bytes of each version's files in the store, by id; those that several share count for each."""
    kept = {path.name: size for path, size in ContentStore(state_dir).sizes().items()}
    return {str(one.id): sum(kept.get(digest, 0) for digest in one.digests) for one in installed.versions}


def release(state_dir: Path, name: str, gone: Sequence[Version]) -> None:
    """Let the store give up the files of versions that are not kept; the next run prunes them."""
    store = ContentStore(state_dir)
    for version in gone:
        with suppress(OSError, StoreFullError):
            store.release(owner_of(name, str(version.id)))


def options_of(version: Version, state_dir: Path, folder: str) -> LoadOptions:
    """Return the options that load an installed version in a folder. Raises OrtdeployError."""
    overlays = tuple(os.path.join(folder, name) for name in list(version.texts)[1:])  # noqa: PTH118
    with _in_words():
        return recall(version, state_dir, folder, LoadOptions(overlays=overlays))


def load_all(state_dir: Path) -> list[Installed] | None:
    """Return all that is installed; None if a record cannot be read."""
    try:
        return [_load(path) for path in (state_dir / BUNDLES).glob("*.json")]
    except (OSError, OrtdeployError):
        return None


def owners(records: Sequence[Installed]) -> set[str]:
    """Return the owners in whose names the store keeps files of bundles.

    The version that somebody asked for last is one of them, before it is whole.
    """
    return {
        owner_of(known.name, str(one))
        for known in records
        for one in {*(version.id for version in known.versions), known.wanted} - {None}
    }


def name_from(state_dir: Path, source: str, *, but: str | None = None) -> str | None:
    """Return the name of the deployment whose last bundle lay at a path, if one runs; None if none does but that."""
    for path in sorted((state_dir / BUNDLES).glob("*.json")):
        with suppress(OSError, OrtdeployError):
            known = _load(path)
            if known.source == source and known.current is not None and known.name != but:
                return known.name
    return None


def own_source(installed: Installed, state_dir: Path) -> None:
    """Let no other deployment be the one whose bundle lay at this one's path. Raises OrtdeployError."""
    while (other := name_from(state_dir, installed.source, but=installed.name)) is not None:
        save_installed(state_dir, replace(load_installed(state_dir, other), source=""))


def owner_of(name: str, id_: str) -> str:
    """Return in whose name the store keeps the files of a version."""
    return f"{OWNER}{name} {id_}"


def facts_key(*facts: Any) -> str:
    """Return a digest of facts that decide about a version."""
    return hashlib.sha256(canonical(msgspec.to_builtins(facts))).hexdigest()
