"""Whisper's tokens: which may follow, and what they say of time. What transformers does stands in the slow tests."""

import numpy as np
import pytest

from ortdeploy.presets.speech import SpeechTokens

pytestmark = pytest.mark.unit

TOKENS = SpeechTokens(
    start=11, end=10, no_timestamps=12, first_stamp=13, transcribe=14, translate=15, languages={"en": 16, "de": 17},
    never=(3,), never_first=(4, 10), stamps_first=5,
)  # fmt: skip
SIZE = 13 + 1501
TEXT, STAMPS = set(range(10)) - {3}, set(range(13, SIZE))


def allowed(written: list[int], *, timestamps: bool = True) -> set[int]:
    """Return the tokens that may follow, of a model that finds text likelier than time stamps."""
    scores = np.where(np.arange(SIZE) < 13, 20, 0).astype(np.float32)
    TOKENS.hold(scores, written, timestamps=timestamps)
    return set(np.flatnonzero(np.isfinite(scores)))


def test_the_first_token_is_an_early_stamp() -> None:
    assert allowed([]) == set(range(13, 18))


def test_text_follows_a_stamp_that_begins() -> None:
    assert allowed([13]) == TEXT | {10, 11}


def test_a_stamp_of_the_end_is_followed_by_a_later_begin_or_nothing() -> None:
    assert allowed([13, 5, 20]) == set(range(20, SIZE)) | {10, 11}


def test_stamps_do_not_go_back() -> None:
    assert allowed([13, 5, 20, 20, 6]) & STAMPS == set(range(21, SIZE))


def test_stamps_that_are_likelier_together_than_any_text_are_written() -> None:
    scores = np.zeros(SIZE, np.float32)
    TOKENS.hold(scores, [13, 5], timestamps=True)
    assert set(np.flatnonzero(np.isfinite(scores))) == set(range(14, SIZE))


def test_without_stamps_only_what_is_never_written_is_left_out() -> None:
    assert allowed([], timestamps=False) == set(range(SIZE)) - {3, 4, 10}
    assert allowed([5], timestamps=False) == set(range(SIZE)) - {3}


@pytest.mark.parametrize(
    ("written", "segments", "behind"),
    [
        ([13, 5, 63, 63, 6, 7, 113], [(0.0, 1.0, [5]), (1.0, 2.0, [6, 7])], 3000),
        ([13, 5, 63, 68, 6], [(0.0, 1.0, [5])], 100),
        ([18, 5, 63], [(0.1, 1.0, [5])], 3000),
        ([13, 5, 6], [(0.0, 30.0, [5, 6])], 3000),
        ([], [(0.0, 30.0, [])], 3000),
        ([13, 13, 5], [(0.0, 0.0, [])], 3000),
    ],
)
def test_segments_lie_between_stamps(
    written: list[int], segments: list[tuple[float, float, list[int]]], behind: int
) -> None:
    assert TOKENS.segments(written, 3000) == (segments, behind)


def test_the_prompt_says_language_task_and_stamps() -> None:
    assert TOKENS.prompt("de", translate=False, timestamps=True) == [17, 14]
    assert TOKENS.prompt("de", translate=True, timestamps=False) == [17, 15, 12]
    assert TOKENS.prompt(None, translate=False, timestamps=False) == [12]
    assert TOKENS.heard(np.eye(SIZE)[17]) == "de"
