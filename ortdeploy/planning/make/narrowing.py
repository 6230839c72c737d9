"""Limits of fed values that follow from providers: some compute whole numbers of 64 bits with 32, and say nothing."""

from ortdeploy.deployment.resolved import ResolvedModel, ResolvedProvider
from ortdeploy.plan.narrowed import IN_32_BITS, Limits
from ortdeploy.providers.catalogue import find_provider

_TRUE = (True, "1", "true")


def narrowing_of(model: ResolvedModel | None, dtype: str | None) -> Limits | None:
    """Return the limits of an input of this type where a session may have a provider that narrows it."""
    limits = IN_32_BITS.get(dtype or "")
    if limits is None or model is None:
        return None
    chains = (provider for session in model.usable for provider in session.chain)
    return limits if any(map(_narrows, chains)) else None


def _narrows(provider: ResolvedProvider) -> bool:
    """Return whether a provider narrows whole numbers of 64 bits, with the options that it has."""
    known = find_provider(provider.name)
    when = known.narrows_int64 if known is not None else None
    return when is not None and (when == "always" or provider.options.get(when) in _TRUE)


def within(*limits: Limits | tuple[int, int] | None) -> Limits | None:
    """Return the limits within all of those that there are; None if there are none."""
    ranges = [one for one in limits if one]
    return (float(max(low for low, _ in ranges)), float(min(high for _, high in ranges))) if ranges else None
