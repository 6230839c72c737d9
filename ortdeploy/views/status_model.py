"""The facts that `ortdeploy status` shows of a job, in every format."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ortdeploy.reports.memory_told import told

if TYPE_CHECKING:
    from ortdeploy.ledger.records import OutputRecord
    from ortdeploy.results.shares import Shares


class DeliveredFile(Struct, frozen=True, kw_only=True):
    """A file of a job that others read, with those of them that still need it."""

    file: str
    needed_by: tuple[str, ...]


class JobStatus(Struct, frozen=True, kw_only=True):
    """A job of a manifest in `folder`, what the ledger knows of it, and how far it is while it runs.

    `delivered` are its files, if other jobs read them; `shares` what several workers have made of a plan that is not
    finished, and `unread` why that cannot be told; a store was `asked` for it. `changed_rows` are those of input files
    that have changed since they were run, and that run again; for that, the files of the paths `looked_at` were looked
    at. With `keep`, parts are forgotten that were carried away; `held_up_by` is the input file for which they wait.
    `damaged` says of files of committed parts how they differ from what was written.
    """

    job: str
    output: str
    record: "OutputRecord | None"
    folder: str = ""
    deployment: str = ""
    live: Mapping[str, Any] | None = None
    removable: bool = False
    delivered: tuple[DeliveredFile, ...] = ()
    shares: "Shares | None" = None
    unread: str | None = None
    asked: bool = False
    changed_rows: int = 0
    looked_at: tuple[str, ...] = ()
    keep: float | None = None
    held_up_by: str | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """How its last run ended or is; without one, `unfinished` if shards have made parts, else `never-run`."""
        if self.record is not None:
            return self.record.status
        return "never-run" if self.shares is None else "unfinished"

    @property
    def missed(self) -> Sequence[str]:
        """What was not as the manifest expects of the rows of the last run."""
        found: Sequence[str] = self.record.statistics.get("expected", {}).get("missed", ()) if self.record else ()
        return found

    @property
    def memory(self) -> Sequence[str]:
        """What is told of memory that grows while it runs, or that grew in the last run, or exceeded its forecast."""
        return told(self.live if self.live is not None else self.record.statistics if self.record else {})

    @property
    def failed(self) -> int:
        """Failed rows: those of committed parts; after the run, also the others in `_failed.jsonl`."""
        if self.record is None:
            return 0
        return self.record.failed_in_parts if self.record.status == "running" else self.record.all_failed

    @property
    def failed_outside(self) -> int:
        """Failed rows that are in no committed part, with which the next run begins; 0 during a run."""
        return 0 if self.record is None or self.record.status == "running" else self.record.failed_outside

    @property
    def rerun(self) -> int:
        """Rows of changed files that run again: what a run had not done when it ended, and what has changed since."""
        begun = sum(one.end - one.through for one in self.record.reruns) if self.record is not None else 0
        return begun + self.changed_rows

    @property
    def leaving(self) -> int:
        """Rows that will leave their parts, once the new rows of their files are committed."""
        return sum(rows for _, rows in self.record.leaving) if self.record is not None else 0

    @property
    def kept(self) -> int:
        """Rows of an unfinished part from which the next run continues; 0 during a run."""
        begun = self.record.begun if self.record is not None and self.record.status != "running" else None
        return 0 if begun is None else begun.part.rows
