"""Limits of fed values that follow from providers: some compute whole numbers of 64 bits with 32, and say nothing."""

from ortdeploy.deployment.resolved import ResolvedModel, ResolvedProvider
from ortdeploy.providers.catalogue import find_provider, short_name
from ortdeploy.records import record

_Limits = tuple[float, float]

_IN_32_BITS: dict[str | None, _Limits] = {
    "int64": (float(-(2**31)), float(2**31 - 1)),
    "uint64": (0.0, float(2**32 - 1)),
}

_TRUE = (True, "1", "true")


@record
class Narrowing:
    """The `limits` of an input's values, and the short name of the provider that they follow from."""

    limits: _Limits
    provider: str


def narrowing_of(model: ResolvedModel | None, dtype: str | None) -> Narrowing | None:
    """Return the limits of an input of this type where a session may have a provider that narrows it."""
    limits = _IN_32_BITS.get(dtype)
    if limits is None or model is None:
        return None
    chains = (provider for session in model.usable for provider in session.chain)
    return next((Narrowing(limits=limits, provider=short_name(one.name)) for one in chains if _narrows(one)), None)


def _narrows(provider: ResolvedProvider) -> bool:
    """Return whether a provider narrows whole numbers of 64 bits, with the options that it has."""
    known = find_provider(provider.name)
    when = known.narrows_int64 if known is not None else None
    return when is not None and (when == "always" or provider.options.get(when) in _TRUE)


def within(limits: _Limits | tuple[int, int] | None, narrowing: Narrowing | None) -> _Limits | None:
    """Return the limits that an input has, and those of its provider."""
    ranges = [one for one in (limits, narrowing and narrowing.limits) if one]
    return (float(max(low for low, _ in ranges)), float(min(high for _, high in ranges))) if ranges else None


def named(limits: _Limits | None, narrowing: Narrowing | None) -> str | None:
    """Return the provider of whose limits one is an input's limit."""
    if narrowing is None or limits is None or not set(limits) & set(narrowing.limits):
        return None
    return narrowing.provider
