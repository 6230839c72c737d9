"""How jobs end, and the observers of a run: values that the executor returns and views print."""

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from ortdeploy.results.shares import Shares


class Status(StrEnum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    NOTHING_TO_DO = "nothing-to-do"


class JobResult(Struct, frozen=True, kw_only=True):
    """How a job ended, with the rows that are committed, failed and skipped over all its runs.

    `kept` rows are through of the part at which the job ended, and the next run goes on behind them; how many of
    these have failed is in `failed`. `dropped` names the sessions, each with its instance, whose provider failed while
    others went on. `stuck` are the rows of a run that nothing but the end of its process can end. `refused`: the job
    cannot run here, and running it again changes nothing. `overtaken`: input files have changed or gone since its plan
    was made, and another plan reads what is there. `shares` say which worker made what, if several did. `ran` are the
    rows of this run, if earlier ones have committed rows too; else 0. `memory` is what is told of memory that grew with
    its rows, or exceeded the forecast.
    """

    job: str
    status: Status
    output: str
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    kept: int = 0
    ran: int = 0
    seconds: float = 0.0
    reason: str | None = None
    provider_failed: bool = False
    dropped: tuple[str, ...] = ()
    stuck: tuple[int, ...] = ()
    refused: bool = False
    overtaken: bool = False
    shares: "Shares | None" = None
    memory: tuple[str, ...] = ()


class Observer(Protocol):
    """Sees a job advance; a progress bar or periodic log lines."""

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Note a job that begins with `done` rows behind it."""

    def rows_done(self, done: int, failed: int) -> None:
        """Note how many rows of the running job are behind it, and how many of them failed."""

    def job_ended(self) -> None:
        """Note that the running job ended, in whatever way."""
