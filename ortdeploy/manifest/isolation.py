"""Writes the `sessions:` block that splits a chain whose providers cannot share a session, ready to paste."""

from typing import TYPE_CHECKING, Any

from ortdeploy.manifest.write import flow
from ortdeploy.providers.catalogue import CPU, find_provider, full_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortdeploy.manifest.spec import ProviderSpec


def advise_isolation(chain: "Sequence[ProviderSpec]") -> str:
    """Return a sentence with a session for each provider, those of one device memory together, as they are written."""
    groups: dict[str, list[ProviderSpec]] = {}
    for entry in chain:
        name = full_name(entry.name)
        provider = find_provider(name)
        if name != CPU:
            groups.setdefault((provider.memory if provider else None) or name, []).append(entry)
    sessions = [
        {"name": full_name(group[0].name).removesuffix("ExecutionProvider").lower(), "providers": _chain(group)}
        for group in groups.values()
    ]
    return f"Isolate them, in place of providers: sessions: {flow(sessions)} opens the first that works."


def _chain(entries: "Sequence[ProviderSpec]") -> list[Any]:
    return [*map(_entry, entries), "CPU"]


def _entry(entry: "ProviderSpec") -> Any:
    """Return a chain's entry as it would be written."""
    rest = {"device": entry.device, "library": entry.library, "options": dict(entry.options) or None}
    given = {key: value for key, value in rest.items() if value is not None}
    return {"provider": entry.name, **given} if given else entry.name
