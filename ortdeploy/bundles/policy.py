"""What a policy allows: which keys speak for which deployment, which versions may run, and which never.

Several policies count together: what one of them does not allow is not allowed.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ortdeploy.bundles.description import Description, shown
from ortdeploy.bundles.statement import Key, objection_to_files, read_envelope, signers
from ortdeploy.diagnostics import OrtdeployError


class Allowed(Struct, frozen=True, kw_only=True):
    """What a policy says of one deployment."""

    keys: tuple[Key, ...]
    oldest_version: int
    allow_code: bool


class Policy(Struct, frozen=True, kw_only=True):
    """A policy, as read from a file. `manifests` are folders whose manifests may run unsigned."""

    path: str
    deployments: Mapping[str, Allowed]
    manifests: tuple[str, ...]
    refuse: frozenset[str]
    keep: int | None


def trust(
    policies: Sequence[Policy], description: Description, identity: str, signatures: Mapping[str, bytes]
) -> tuple[str, ...]:
    """Return why a bundle is trusted, a sentence for each policy. Raises OrtdeployError if one does not allow it."""
    return tuple(_trust(policy, description, identity, signatures) for policy in policies)


def _trust(policy: Policy, description: Description, identity: str, signatures: Mapping[str, bytes]) -> str:
    name, version = shown(description.name), description.version
    if identity in policy.refuse:
        raise OrtdeployError(f"{policy.path} refuses the bundle {identity}")
    allowed = policy.deployments.get(description.name)
    if allowed is None:
        raise OrtdeployError(f"{policy.path} allows no deployment {name}")
    if version < allowed.oldest_version:
        raise OrtdeployError(
            f"{policy.path} allows version {allowed.oldest_version} of {name} and later ones, and this is {version}"
        )
    if description.needs.allow_code and not allowed.allow_code:
        raise OrtdeployError(f"{policy.path} does not allow {name} to bring libraries (allow_code)")
    reasons = []
    for file, raw in signatures.items():
        try:
            envelope = read_envelope(raw, shown(file))
            made = signers(envelope, allowed.keys)
            wrong = "none of the keys that speak for it has made it" if not made else None
            wrong = wrong or objection_to_files(envelope, description, identity)
        except OrtdeployError as error:
            made, wrong = {}, f"{error}"
        if wrong is None:
            return f"{shown(file)} is signed by {', '.join(sorted(key.file for key in made.values()))}"
        reasons.append(f"{shown(file)}: {wrong}")
    why = "; ".join(reasons) or "it has no signature, in it or beside it"
    raise OrtdeployError(f"{policy.path} wants a signature of {name}, and {why}")


def is_free(policies: Sequence[Policy], manifest: str) -> bool:
    """Return whether a manifest, by its full real path, may run unsigned."""
    return all(any(manifest.startswith(f"{folder.rstrip('/')}/") for folder in one.manifests) for one in policies)
