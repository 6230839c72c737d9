"""Checks what stands under `profiles:` beyond the schema: names, and keys that belong to the whole deployment."""

from collections.abc import Iterator

from ortdeploy.diagnostics import Diagnostic, did_you_mean
from ortdeploy.facts.variants import NO_PROFILE
from ortdeploy.manifest.document import Document, Path, stage_diagnostic
from ortdeploy.manifest.when import BASE, OTHERWISE, PROFILES, REFUSE

_TAKEN = frozenset({NO_PROFILE, BASE, REFUSE})
_OF_THE_WHOLE: tuple[Path, ...] = (("name",), ("version",), (PROFILES,), ("on_end", "command"))
"""What a profile cannot change: who the deployment is, and what is run on the device beside models."""


def profile_names(document: Document) -> tuple[str, ...]:
    """Return the names of the profiles."""
    profiles = document.data.get(PROFILES) if isinstance(document.data, dict) else None
    return tuple(name for name in profiles if name != OTHERWISE) if isinstance(profiles, dict) else ()


def check_profiles(document: Document) -> tuple[Diagnostic, ...]:
    """Return what is wrong with the profiles of a manifest's own text."""
    return tuple(_check(document))


def _check(document: Document) -> Iterator[Diagnostic]:
    names = profile_names(document)
    profiles = document.data[PROFILES] if names else {}
    for name in names:
        if name in _TAKEN:
            detail = f'"{name}" has a meaning of its own for --profile or otherwise:. Call the profile something else.'
            yield stage_diagnostic("value-not-allowed", detail, document.locate_key((PROFILES, name)))
        for at in _OF_THE_WHOLE:
            if _is_in(profiles[name], at):
                key, here = ".".join(map(str, at)), (PROFILES, name, *at)
                detail = (
                    f'"{key}" is not a key of a profile: it is the same for the whole deployment. Write it at the top.'
                )
                yield stage_diagnostic("unknown-key", detail, document.locate_key(here))
    with_when = [name for name in names if _is_in(profiles[name], ("when",))]
    otherwise = profiles.get(OTHERWISE)
    if with_when and OTHERWISE not in profiles:
        detail = (
            f'Profile "{with_when[0]}" has a when:, so profiles needs otherwise: what runs on a device where none '
            "holds. base is the manifest without a profile, refuse refuses the device, and a name takes that profile."
        )
        yield stage_diagnostic("missing-key", detail, document.locate_key((PROFILES,)))
    elif OTHERWISE in profiles and not with_when:
        detail = "otherwise: says what runs where no when: holds, and no profile has one. Remove it, or add a when:."
        yield stage_diagnostic("value-not-allowed", detail, document.locate_key((PROFILES, OTHERWISE)))
    elif isinstance(otherwise, str) and otherwise not in {BASE, REFUSE, *names}:
        detail = f'otherwise: names the profile "{otherwise}". {did_you_mean(otherwise, [BASE, REFUSE, *names])}'
        yield stage_diagnostic("undefined-profile", detail, document.locate((PROFILES, OTHERWISE)))


def _is_in(data: object, at: Path) -> bool:
    for key in at:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True
