"""Tries again what may succeed later, after 0.1, 0.2, 0.4 seconds and so on, with jitter.

What may pass is told here, for rows, files, servers and runs alike. How often it is tried, and what ends the waiting,
holds for a block of code and for the threads that take its context (`limited`).
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec import Struct

from ortdeploy.diagnostics import OutOfMemoryError, StoppedError, TransientError
from ortdeploy.events import log

T = TypeVar("T")

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
_BETWEEN_LOOKS = 0.1
"""Seconds of waiting after which `stop` is asked again."""

_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EIO", "EAGAIN", "EINTR", "EBUSY", "ETIMEDOUT", "ESTALE", "EREMOTEIO", "ENOMEM", "ENOBUFS", "EMFILE", "ENFILE",
        "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ECONNRESET", "ECONNABORTED",
        "ECONNREFUSED", "EPIPE", "ESHUTDOWN",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""Numbers of errors of the system that may be gone a moment later."""

_PASSING_ANSWERS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that is busy or out of order."""


class _Limits(Struct, frozen=True, kw_only=True):
    """How often something is tried again, and what ends the waiting.

    Outside of a job, such as in a plan, a server that is down costs half a second.
    """

    retries: int = 2
    stop: Callable[[], bool] = lambda: False


_limits: ContextVar[_Limits] = ContextVar("limits", default=_Limits())  # noqa: B039  never changed


@contextmanager
def limited(retries: int, stop: Callable[[], bool]) -> Iterator[None]:
    """Try again up to `retries` times inside the block, and raise StoppedError while waiting if `stop` says so."""
    token = _limits.set(_Limits(retries=retries, stop=stop))
    try:
        yield
    finally:
        _limits.reset(token)


def may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed: not if a file is missing or damaged, or if this was tried already."""
    one: BaseException | None = error
    while one is not None:
        if getattr(one, "__notes__", None) and _TRIED in one.__notes__:
            return False
        if _is_passing(one):
            return True
        one = one.__cause__
    return False


_TRIED = "it was tried several times"
"""The note of an error after the last attempt, so that whoever is told of it does not try all of that again."""


def _is_passing(error: BaseException) -> bool:
    import socket  # noqa: PLC0415  only if something fails
    import ssl  # noqa: PLC0415  as above

    if isinstance(error, TransientError | OutOfMemoryError | MemoryError):
        return True
    if (status := status_of(error)) is not None:
        return status in _PASSING_ANSWERS
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that a server answered, as the packages of stores tell it; None for other errors."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        answer = answer.get("ResponseMetadata", {})
        return answer.get("HTTPStatusCode") if isinstance(answer, dict) else None
    found = (getattr(one, name, None) for one in (error, answer) for name in ("status", "status_code", "code"))
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool)), None)


def try_again(
    failed: T,
    attempt: Callable[[], T],
    why: Callable[[T], str | None],
    what: str,
    retries: int | None = None,
) -> tuple[T, int]:
    """Attempt again what has failed once; return the last result, and the number of attempts with the first.

    `why` returns why a result is a failure that may pass; None if it is not. `retries` is the job's unless it is given.
    Each failure that is followed by another attempt is logged. Raises StoppedError.
    """
    limits = _limits.get()
    retries = limits.retries if retries is None else retries
    if not retries or why(failed) is None:
        return failed, 1
    from tenacity import (  # noqa: PLC0415  only if something fails
        RetryCallState,
        Retrying,
        retry_if_result,
        stop_after_attempt,
        wait_exponential,
        wait_random,
    )

    known = [failed]

    def attempt_after_the_first() -> Any:
        return known.pop() if known else attempt()

    def tell(state: RetryCallState) -> None:
        reason = None if state.outcome is None else why(state.outcome.result())
        number, seconds = state.attempt_number, round(state.upcoming_sleep, 2)
        log.warning("attempt.failed", what=what, attempt=number, of=retries + 1, seconds=seconds, reason=reason)

    retrying = Retrying(
        stop=stop_after_attempt(retries + 1),
        wait=wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT) + wait_random(0, FIRST_WAIT),
        retry=retry_if_result(lambda result: why(result) is not None),
        sleep=lambda seconds: _wait(seconds, limits.stop),
        before_sleep=tell,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else failed,
    )
    result: T = retrying(attempt_after_the_first)
    return result, retrying.statistics["attempt_number"]


def persist(
    attempt: Callable[[], T],
    what: str,
    passes: Callable[[BaseException], bool] = may_pass,
    retries: int | None = None,
) -> T:
    """Attempt it until it succeeds, again after an error that passes. Raises the last error, StoppedError."""

    def outcome() -> tuple[T | None, Exception | None]:
        try:
            return attempt(), None
        except Exception as error:
            if not passes(error):
                raise
            return None, error

    first = outcome()
    (result, error), attempts = try_again(first, outcome, _why, what, retries) if first[1] is not None else (first, 1)
    if error is not None:
        if attempts > 1:
            error.add_note(_TRIED)
        raise error
    return result  # type: ignore[return-value]  # the result of an attempt that did not fail


def _why(outcome: tuple[Any, Exception | None]) -> str | None:
    error = outcome[1]
    if error is None:
        return None
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    """Sleep, unless the run is asked to stop. Raises StoppedError."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stop():
            raise StoppedError("the run was asked to stop while it waited to try something again")
        time.sleep(min(left, _BETWEEN_LOOKS))
