"""How a job ends: an exception that ends its work early becomes a status and a reason; the next run continues."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import (
    OrtdeployError,
    OvertakenError,
    ProviderFailedError,
    RefusedError,
    StoppedError,
    failure_at,
)
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.process.native_output import appended_reason
from ortdeploy.results.results import Status
from ortdeploy.retries import limited
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.streaming.stall_watch import StuckRunError
from ortdeploy.units import format_size


class Ending(Struct, frozen=True, kw_only=True):
    """How a job ended, and why. `provider_failed`: another session of its model may continue.

    `stuck` are the rows of a run that only the end of this process can end. `refused`: running again changes nothing.
    `overtaken`: input files have changed or gone, and another plan reads what is there.
    """

    status: Status
    reason: str | None = None
    provider_failed: bool = False
    stuck: tuple[int, ...] = ()
    refused: bool = False
    overtaken: bool = False


def failed_too(ending: Ending, place: Path, error: Exception) -> Ending:
    """Return how a job ended that failed at its end, as its report was written; why it had failed before says more."""
    had_failed = ending.status is Status.FAILED and ending.reason is not None
    return ending if had_failed else replace(ending, status=Status.FAILED, reason=failure_at(place, error))


def carry_out(context: JobContext, memory: MemoryWatch, work: Callable[[], Status]) -> Ending:
    """Do a job's work within its memory limit, and return how it ended. Only bugs are raised."""
    try:
        with memory.bound, limited(context.step.errors.retries, context.stop):
            return Ending(status=work())
    except (StoppedError, KeyboardInterrupt) as error:
        if context.pause.reason is not None and not context.stop_asked():
            return Ending(status=Status.PAUSED, reason=context.pause.reason)
        how = "asked to stop" if isinstance(error, StoppedError) else "stopped at once"
        return Ending(status=Status.INTERRUPTED, reason=f"the run was {how}")
    except OSError as error:
        return Ending(status=Status.FAILED, reason=failure_at(context.output.folder, error))
    except MemoryError as error:
        within = f" within {format_size(memory.limit)}" if memory.limit else ""
        why = f" ({error})" if str(error) else ""
        reason = f"memory ran out{within}; a smaller batch or rows_per_part, or fewer threads, need less{why}"
        return Ending(status=Status.FAILED, reason=reason)
    except ProviderFailedError as error:
        reason = f"{error}{appended_reason(context.native_text())}"
        return Ending(status=Status.FAILED, reason=reason, provider_failed=True)
    except StuckRunError as error:
        return Ending(status=Status.FAILED, reason=str(error), stuck=error.rows)
    except DisagreementError as error:
        doubt = "" if error.since is None else f". Rows from {error.since} on that are made already may be wrong"
        return Ending(status=Status.FAILED, reason=f"{error}{doubt}")
    except OrtdeployError as error:
        refused, overtaken = isinstance(error, RefusedError), isinstance(error, OvertakenError)
        return Ending(status=Status.FAILED, reason=str(error), refused=refused, overtaken=overtaken)
    finally:
        memory.end()
        context.observer.job_ended()
