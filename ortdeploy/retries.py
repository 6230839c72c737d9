"""Tries again what may succeed later, after 0.1, 0.2, 0.4 seconds and so on, with jitter."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0


def try_again(failed: T, attempt: Callable[[], T], may_pass: Callable[[T], bool], retries: int) -> tuple[T, int]:
    """Attempt up to `retries` times what has failed once; return the last result, and the attempts with the first."""
    from tenacity import (  # noqa: PLC0415  only jobs with retries: need it, and only when something fails
        Retrying,
        retry_if_result,
        stop_after_attempt,
        wait_exponential,
        wait_random,
    )

    known = iter([failed])

    def attempt_after_the_first() -> Any:
        return next(known, None) or attempt()

    retrying = Retrying(
        stop=stop_after_attempt(retries + 1),
        wait=wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT) + wait_random(0, FIRST_WAIT),
        retry=retry_if_result(may_pass),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else failed,
    )
    result: T = retrying(attempt_after_the_first)
    return result, retrying.statistics["attempt_number"]


def persist(attempt: Callable[[], T], may_pass: Callable[[BaseException], bool], retries: int = 4) -> T:
    """Attempt it until it succeeds, again up to `retries` times after an error that may pass. Raises the last error."""
    from tenacity import (  # noqa: PLC0415  as above
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential,
        wait_random,
    )

    again = Retrying(
        stop=stop_after_attempt(retries + 1),
        wait=wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT) + wait_random(0, FIRST_WAIT),
        retry=retry_if_exception(lambda error: isinstance(error, Exception) and may_pass(error)),
        reraise=True,
    )
    result: T = again(attempt)
    return result
