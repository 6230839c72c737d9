"""Writes a damaged record of what is installed anew, from what is certain.

Versions are in the content store with their statements and signatures, which say what they are; references tell which
files belong together. Which one ran last is in the status documents. What nobody knows any more is decided so that
nothing runs that might not: versions above the one that runs count as set aside, and golden checks run again.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.bundles.description import parse
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.content_store import ContentStore, StoreFullError
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_whole
from ortdeploy.planning.versions.installed import (
    CURRENT,
    WHOLE,
    DamagedRecordError,
    Installed,
    installing,
    load_installed,
    owner_of,
    save_installed,
)
from ortdeploy.planning.versions.taking_in import version_of
from ortdeploy.planning.versions.version import Version
from ortdeploy.state.looks import FOLDER


def mend(state_dir: Path, name: str, now: str) -> str | None:
    """Write the record of a deployment anew if it is damaged; return what was damaged and what was found, else None.

    Raises LockedError, OrtdeployError.
    """
    if _damage(state_dir, name) is None:
        return None
    with installing(state_dir, name):
        damage = _damage(state_dir, name)
        if damage is None:  # another process has mended it meanwhile, and perhaps gone on from there
            return None
        found = _recovered(state_dir, name, now)
        save_installed(state_dir, found)
    return f"{damage}. {_told(found)}"


def _damage(state_dir: Path, name: str) -> str | None:
    try:
        load_installed(state_dir, name)
    except DamagedRecordError as error:
        return str(error)
    return None


def _told(found: Installed) -> str:
    current = found.version(found.current)
    if current is None:
        return "Nothing says which version ran; apply its bundle"
    numbers = sorted(one.number or 0 for one in found.versions if one.id != current.id)
    others = f", with {', '.join(map(str, numbers))} beside it" if numbers else ""
    aside = f"; versions up to {found.aside} are set aside, until rollback @{found.name} --unpin" if found.aside else ""
    return f"What is in the store was found again: version {current.number} runs{others}{aside}"


def _recovered(state_dir: Path, name: str, now: str) -> Installed:
    """Return what the store and the status documents tell of a deployment."""
    found = sorted(_kept_versions(state_dir, name, now), key=lambda one: one[0].number or 0)
    numbers = {str(version.id): version.number or 0 for version, _ in found}
    known = Installed(
        name=name,
        versions=tuple(version for version, _ in found),
        signatures={str(version.id): signatures for version, signatures in found},
        reached=dict.fromkeys(numbers, WHOLE),
    )
    ran = next((one for one in _ran_last(state_dir, name) if one in numbers), None)
    if ran is None:
        return known
    highest = max(numbers.values())
    return replace(
        known,
        current=ran,
        wanted=ran,
        reached={**known.reached, ran: CURRENT},
        passed={one: "" for one, number in numbers.items() if number <= numbers[ran]},
        highest=highest,
        aside=highest if highest > numbers[ran] else 0,
    )


def _kept_versions(state_dir: Path, name: str, now: str) -> Iterator[tuple[Version, dict[str, str]]]:
    """Yield each version that is whole in the store, with the digests of its signatures, whose names nobody knows."""
    store = ContentStore(state_dir)
    own = owner_of(name, "")
    for owner, digests in store.owners().items():
        id_ = owner.removeprefix(own)
        if not owner.startswith(own) or any(store.find(one) is None for one in (id_, *digests)):
            continue
        with suppress(OSError, StoreFullError, OrtdeployError):
            description = parse(read_whole(store.find(id_) or id_))
            if description.name == name:
                signatures = digests - {id_, *description.digests.values()}
                yield version_of(description, id_, state_dir, now), {one: one for one in sorted(signatures)}


def _ran_last(state_dir: Path, name: str) -> Iterator[str]:
    """Yield the ids of the bundles that status documents of a deployment say to run, the newest document first."""
    documents = [one for one in (state_dir / FOLDER).glob("*.json") if one.is_file()]
    for path in sorted(documents, key=lambda one: one.stat().st_mtime, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = read_json(read_whole(path))
            if said["deployment"] == name:
                yield str(said["version"]["bundle"])
