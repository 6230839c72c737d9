"""Reads manifests and checks their text: shapes, names, and the rules that need no machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.diagnostics import Certainty, Diagnostic, has_errors, sort_diagnostics
from ortdeploy.manifest.loader import Loaded, LoadOptions, find_manifests, load_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.rules.catalogue import SPEC_RULES, load_rules
from ortdeploy.rules.protocol import check_rules

if TYPE_CHECKING:
    from ortdeploy.planning.devices.variants import Choose


class Validated(Struct, frozen=True, kw_only=True):
    """Manifests whose text was checked, and the diagnostics. A manifest has a spec if its text has no error.

    `unchosen` have one too, and no profile could be chosen. `variants` are the specs with each profile, if none was
    asked for. `manifests` and `devices` are the numbers of manifests and of device files that were looked at.
    """

    specs: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    manifests: int = 0
    devices: int = 0
    unchosen: tuple[Spec, ...] = ()
    variants: tuple[Spec, ...] = ()

    @property
    def all_specs(self) -> tuple[Spec, ...]:
        """The specs of all that may run here."""
        return self.specs + self.variants


def validate(
    paths: Sequence[str], options: LoadOptions, *, devices: bool = False, choose: "Choose | None" = None
) -> Validated:
    """Check texts, shapes, names and the rules that need no machine; `devices`: device files may be among the paths.

    `choose` takes one of the profiles; without it, each spec is that of the manifest without any.
    """
    read = read_manifests(paths, options, devices=devices)
    diagnostics = read.diagnostics
    specs: list[Spec] = []
    unchosen: list[Spec] = []
    for loaded, base in read.accepted:
        spec, problem = (base, None) if choose is None else choose(loaded)
        diagnostics += () if problem is None else (problem,)
        specs += [] if spec is None else [spec]
        unchosen += [base] if spec is None else []
    return Validated(
        specs=tuple(specs),
        diagnostics=sort_diagnostics(diagnostics),
        manifests=read.manifests,
        devices=read.devices,
        unchosen=tuple(unchosen),
        variants=tuple(one for loaded, _ in read.accepted for one in loaded.variants),
    )


class Read(Struct, frozen=True, kw_only=True):
    """Manifests whose text has no error, with their specs without a profile, or with the one that was asked for.

    The other fields are those of Validated.
    """

    accepted: tuple[tuple[Loaded, Spec], ...]
    diagnostics: tuple[Diagnostic, ...]
    manifests: int
    devices: int


def read_manifests(
    paths: Sequence[str], options: LoadOptions, *, devices: bool = False, elsewhere: bool = False
) -> Read:
    """Read manifests and check them as `validate` does; `elsewhere`: what this machine lacks is no finding."""
    files, diagnostics = find_manifests(paths)
    accepted: list[tuple[Loaded, Spec]] = []
    described = 0
    for path in files:
        loaded = load_manifest(path, options, devices=devices)
        described += loaded.is_device
        found = loaded.diagnostics + check_specs(loaded)
        if elsewhere:
            found = tuple(one for one in found if one.certainty is not Certainty.MACHINE)
        diagnostics += found
        if loaded.spec is not None and not has_errors(found):
            accepted.append((loaded, loaded.spec))
    manifests = len(files) - described
    return Read(accepted=tuple(accepted), diagnostics=diagnostics, manifests=manifests, devices=described)


def check_specs(loaded: Loaded) -> tuple[Diagnostic, ...]:
    """Apply the rules about texts to the spec of a manifest, and to those with each profile."""
    found: tuple[Diagnostic, ...] = ()
    rules = load_rules(SPEC_RULES)
    for spec in (loaded.spec, *loaded.variants):
        if spec is not None:
            found += check_rules(rules, spec, spec)
    return found
