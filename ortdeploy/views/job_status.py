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
    def failed(self) -> int:
        """Rows that failed: those of committed parts, and after the run's end all that stand in `_failed.jsonl`."""
        if self.record is None:
            return 0
        of_parts = sum(part.failed for part in self.record.parts)
        return of_parts if self.record.status == "running" else max(of_parts, self.record.noted_failures)

    @property
    def kept(self) -> int:
        """Rows of a part that a run ended within, with which the next run goes on; 0 while one is at it."""
        begun = self.record.begun if self.record is not None and self.record.status != "running" else None
        return 0 if begun is None else begun.part.rows
