"""What is said about an error of a store's package, beside what it says itself."""

import ssl

import pytest

from ortdeploy.files.store_errors import advice_on


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (9, "this machine's clock is behind"),
        (10, "this machine's clock is ahead, or the server needs a new"),
        (18, None),
    ],
)
def test_a_certificate_that_is_not_valid_today_may_be_the_clock(number: int, advice: str | None) -> None:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code = number
    wrapped = OSError("cannot connect")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        said = advice_on(one)
        assert said is None if advice is None else (said or "").startswith(advice)
