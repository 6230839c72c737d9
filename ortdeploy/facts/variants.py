"""What decides which profile of a manifest runs on a machine, as plain data, and the choice itself."""

from collections.abc import Mapping

from msgspec import Struct, field

FLAG, ENVIRONMENT, WHEN, OTHERWISE, KEPT = "flag", "environment", "when", "otherwise", "kept"
"""Reasons of a choice: who asked for it, a `when` that holds, none that holds, or what the last apply chose."""

NO_PROFILE = "none"
"""What --profile calls the manifest without any profile."""

Fact = str | int | bool | None
"""The value of a fact: a word, bytes or cores, whether something opens; None: it is not there."""


class Choice(Struct, frozen=True, kw_only=True):
    """The profile that was chosen: its name (None: the manifest without one), and why.

    `facts` are those that all `when` asked for, by name; `since` is the time since which it has been chosen, None if
    that is not kept.
    """

    name: str | None
    reason: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    since: str | None = None

    @property
    def shown(self) -> str:
        """The choice in words: `jetson (when)`."""
        return f"{self.name or 'base'} ({self.reason})"


def shown_fact(name: str, value: Fact) -> str:
    """Return the value of a fact in words: `7.30 GiB`."""
    if isinstance(value, bool):
        return "opens" if value else "does not open"
    if value is None:
        return "not there"
    return f"{value / 1024**3:.2f} GiB" if name == "memory" and isinstance(value, int) else str(value)


class OfferedDevice(Struct, frozen=True, kw_only=True):
    """A device that a provider offers, or may offer; what is not known of it is None.

    `opens`: a session was opened on it.
    """

    provider: str
    kind: str | None = None
    vendor: str | None = None
    name: str | None = None
    opens: bool | None = None


class Traits(Struct, frozen=True, kw_only=True):
    """What a machine says of itself without opening anything; None: not known. `memory` is in bytes."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    architecture: str | None = None
    system: str | None = None
    memory: int | None = None
    cores: int | None = None
