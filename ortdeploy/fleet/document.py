"""The status document: what a device says of one deployment. `schemas/status.schema.json` is the same for others.

Its times are ISO 8601 in UTC. It holds no data, no paths and no words of messages: it leaves the device.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from ortdeploy.facts.variants import Fact

FORMAT_VERSION = 1

State = Literal["current", "running", "paused", "refused", "failed"]


class Device(Struct, frozen=True, kw_only=True):
    """The device: its name, a digest of the machine's id, and its labels, as for `when` of profiles."""

    name: str
    id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Version(Struct, frozen=True, kw_only=True):
    """The version that runs: a bundle's, or a manifest's by its commit and by the digest of its text with overlays."""

    bundle: str | None = None
    number: int | None = None
    label: str | None = None
    commit: str | None = None
    text_digest: str | None = None


class Wanted(Struct, frozen=True, kw_only=True):
    """Whether the version that runs is the one that is wanted; if not, which that is, and which state it reached."""

    same: bool
    state_reached: str
    commit: str | None = None
    text_digest: str | None = None


class Profile(Struct, frozen=True, kw_only=True):
    """The profile that is merged into the manifest, why that one, and the facts that decided it.

    `reason` is None if the manifest has none to choose.
    """

    name: str | None
    reason: str | None
    facts: Mapping[str, Fact]
    since: str

    @property
    def shown(self) -> str:
        """The profile in words: `jetson (when)`."""
        return "-" if self.reason is None else f"{self.name or 'base'} ({self.reason})"


class Refused(Struct, frozen=True, kw_only=True):
    """Why the wanted version is refused; `path` is that of the manifest or overlay, from the manifest's folder."""

    summary: str
    since: str
    rule: str | None = None
    path: str | None = None
    line: int | None = None


class Job(Struct, frozen=True, kw_only=True):
    """A job: its rows, when the last of them was written, and the input files that wait; None: not known.

    `memory_growth` are the bytes by which memory grew with 1,000 rows of its last run; 0 if it did not grow steadily.
    """

    name: str
    status: str
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    left: int | None = None
    last_row: str | None = None
    waiting: int | None = None
    oldest_waiting: str | None = None
    damaged_parts: int = 0
    memory_growth: int = 0


class Versions(Struct, frozen=True, kw_only=True):
    """The versions of ortdeploy, of ONNX Runtime, of Python, and of what carries each provider that is used."""

    ortdeploy: str
    onnxruntime: str
    python: str
    providers: Mapping[str, str]


class Clock(Struct, frozen=True, kw_only=True):
    """The device's clock when the document was written, whether it is synchronised, and the seconds since its boot."""

    now: str
    synchronised: bool | None = None
    uptime: float | None = None
    boot: str | None = None


class Document(Struct, frozen=True, kw_only=True):
    """What a device says of one deployment. `sequence` counts its documents; `jobs_left_out` did not fit in."""

    format_version: int
    deployment: str
    device: Device
    version: Version
    wanted: Wanted
    profile: Profile
    state: State
    refusal: Refused | None
    jobs: tuple[Job, ...]
    jobs_left_out: int = 0
    versions: Versions
    clock: Clock
    sequence: int
    last_look: str
    next_look: str | None


def seconds_of(moment: str) -> float:
    """Return a time of a document in seconds since 1970. Raises ValueError."""
    found = datetime.fromisoformat(moment)
    if found.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    seconds = found.timestamp()
    if not 0 <= seconds <= LAST_SECOND:
        raise ValueError(f"{moment} is no time of a clock")
    return seconds


LAST_SECOND = 250_000_000_000
"""Seconds from 1970 to the year 9892: later ones are beyond what can be shown in every time zone."""
