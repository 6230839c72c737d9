"""What `ortdeploy status` shows of a job, in every form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortdeploy.ledger.ledger import OutputRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job of a manifest, what the ledger knows of it, and how far it is while it runs."""

    job: str
    output: str
    record: "OutputRecord | None"
    live: Mapping[str, Any] | None = None
