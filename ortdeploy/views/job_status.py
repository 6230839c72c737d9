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

    @property
    def kept(self) -> int:
        """Rows of a part that a run ended within, with which the next run goes on; 0 while one is at it."""
        begun = self.record.begun if self.record is not None and self.record.status != "running" else None
        return 0 if begun is None else begun.part.rows
