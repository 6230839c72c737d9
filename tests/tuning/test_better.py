"""What is better: only what is clearly faster."""

import pytest

from ortdeploy.tuning.better import WORTH, first_of_the_fastest, is_better


@pytest.mark.parametrize(("rate", "expected"), [(1.0, False), (WORTH, False), (WORTH + 0.001, True)])
def test_what_is_hardly_faster_is_not_better(rate: float, expected: bool) -> None:
    assert is_better(rate, 1.0) is expected


def test_of_settings_that_are_as_fast_the_first_is_taken() -> None:
    assert first_of_the_fastest({"little": 1.0, "more": WORTH, "most": 1.0}) == "little"
    assert first_of_the_fastest({"little": 1.0, "more": 1.1, "most": 1.12}) == "more"
