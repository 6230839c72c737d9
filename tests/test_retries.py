"""What may pass is tried again, with longer and longer waits, until it passes, is tried often enough, or a stop is asked."""

import errno
import socket
import ssl
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.logs import capture_logs

from ortdeploy import retries
from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, StoppedError, TransientError
from ortdeploy.retries import limited, may_pass, persist


class Clock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retries, "time", made)
    return made


class AnswerError(OSError):
    """An error with the status that a server gave."""

    def __init__(self, **given: Any) -> None:
        super().__init__("no")
        self.__dict__.update(given)


def because(cause: BaseException) -> OrtdeployError:
    error = OrtdeployError("it cannot be read")
    error.__cause__ = cause
    return error


PASSING = [
    OSError(errno.EIO, "I/O"), OSError(errno.ETIMEDOUT, "late"), OSError(errno.EAGAIN, "busy"), ConnectionResetError(),
    TimeoutError(), MemoryError(), TransientError("busy"), OutOfMemoryError("full"), AnswerError(status=503),
    AnswerError(code=429), AnswerError(response={"ResponseMetadata": {"HTTPStatusCode": 500}}),
    AnswerError(response=SimpleNamespace(status_code=502)), socket.gaierror(socket.EAI_AGAIN, "later"),
    because(OSError(errno.ESTALE, "stale")),
]  # fmt: skip
CERTAIN = [
    FileNotFoundError(errno.ENOENT, "gone"), PermissionError(errno.EACCES, "no"), OSError(errno.ENOSPC, "full"),
    OSError("not a gzip file"), UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), ValueError(), AnswerError(status=403),
    AnswerError(status=501), socket.gaierror(socket.EAI_NONAME, "unknown"), ssl.SSLCertVerificationError("self-signed"),
    because(PermissionError(errno.EACCES, "no")), OrtdeployError("no"),
]  # fmt: skip


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_may_pass(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize("error", CERTAIN, ids=repr)
def test_what_does_not_pass(error: Exception) -> None:
    assert not may_pass(error)


def failing(*errors: Exception) -> Iterator[Any]:
    yield from errors
    while True:
        yield "done"


def attempt_of(outcomes: Iterator[Any]) -> Any:
    def attempt() -> Any:
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return found

    return attempt


def test_waits_double_and_each_failure_is_logged(clock: Clock) -> None:
    with limited(3, lambda: False), capture_logs() as logs:
        assert persist(attempt_of(failing(*[OSError(errno.EIO, "I/O error")] * 3)), "reading a.npy") == "done"
    told = [one for one in logs if one["event"] == "attempt.failed"]
    assert [(one["what"], one["attempt"], one["of"], one["reason"]) for one in told] == [
        ("reading a.npy", number, 4, "I/O error") for number in (1, 2, 3)
    ]
    for waited, least in zip((one["seconds"] for one in told), (0.1, 0.2, 0.4), strict=True):
        assert least <= waited <= least + 0.1
    assert clock.now == pytest.approx(sum(one["seconds"] for one in told), abs=0.02)


@pytest.mark.usefixtures("clock")
def test_the_last_error_is_raised_and_nobody_tries_all_of_it_again() -> None:
    attempts = failing(*[OSError(errno.EIO, str(number)) for number in range(9)])
    with limited(2, lambda: False):
        with pytest.raises(OSError, match="2") as caught:
            persist(attempt_of(attempts), "reading")
        assert not may_pass(because(caught.value))
    assert next(attempts).strerror == "3"


def test_what_is_certain_or_is_not_to_be_repeated_is_raised_at_once(clock: Clock) -> None:
    for times, error in ((5, FileNotFoundError()), (0, OSError(errno.EIO, "I/O"))):
        with limited(times, lambda: False), pytest.raises(OSError):  # noqa: PT011  the same object
            persist(attempt_of(failing(error)), "reading")
    assert clock.now == 0


def test_a_stop_ends_the_waiting(clock: Clock) -> None:
    def attempt() -> None:
        raise OSError(errno.EIO, "I/O")

    with limited(20, lambda: clock.now > 12), pytest.raises(StoppedError):
        persist(attempt, "reading")
    assert clock.now < 12.2
