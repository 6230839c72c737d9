"""How Whisper writes down what it hears: which tokens it begins with, which may follow, and what they say of time.

As OpenAI's decoding and transformers' generation have it. A recording is heard in windows of 30 seconds. With time
stamps, a window begins where the last whole segment of the one before has ended; else it begins where that one ends.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from ortdeploy.tensors.columns import Array

RATE, HOP, WINDOW, FFT = 16_000, 160, 3000, 400
"""Samples a second, those from one frame to the next, the frames of a window, and the samples of a frame."""
STAMP = 0.02
"""The seconds from one time stamp to the next."""
_FRAMES_OF_STAMP = 2


class SpeechTokens(Struct, frozen=True, kw_only=True):
    """The tokens by which a recording is written down; `languages` are those of a model that knows several.

    Those of text lie below `end`. `never` and `never_first` are not written at all, or not before others; the first
    time stamp is one of the first `stamps_first`.
    """

    start: int
    end: int
    no_timestamps: int
    first_stamp: int
    transcribe: int | None = None
    translate: int | None = None
    languages: Mapping[str, int] = {}
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    stamps_first: int = 51

    def prompt(self, language: str | None, *, translate: bool, timestamps: bool) -> list[int]:
        """Return the tokens that a text begins with, after `start`."""
        about = [] if language is None else [self.languages[language], self.translate if translate else self.transcribe]
        return [one for one in (*about, None if timestamps else self.no_timestamps) if one is not None]

    def heard(self, scores: Array) -> str:
        """Return the language of a recording, by the scores float32 [vocabulary] of the token after `start`."""
        return max(self.languages, key=lambda name: float(scores[self.languages[name]]))

    def hold(self, scores: Array, written: Sequence[int], *, timestamps: bool) -> None:
        """Take tokens that may not follow out of scores [..., vocabulary], by setting them to minus infinity.

        With `timestamps`, scores [vocabulary] are of one text.
        """
        out = -np.inf
        scores[..., [*self.never, *(() if written else self.never_first)]] = out
        if not timestamps:
            return
        stamps = self.first_stamp
        scores[self.no_timestamps] = out
        last = bool(written) and written[-1] >= stamps
        pair = len(written) < 2 or written[-2] >= stamps  # noqa: PLR2004  the two last tokens
        if last and pair:
            scores[stamps:] = out
        elif last:
            scores[: self.end] = out
        before = max((one for one in written if one >= stamps), default=stamps - 1)
        scores[stamps : before if last and not pair else before + 1] = out
        if not written:
            scores[:stamps] = out
            scores[stamps + self.stamps_first :] = out
        elif _log_sum(scores[stamps:]) > scores[:stamps].max():
            scores[:stamps] = out

    def segments(self, written: Sequence[int], frames: int) -> tuple[list[tuple[float, float, list[int]]], int]:
        """Return begin and end in seconds and the text's tokens of what was said in a window of a number of frames.

        The second value is where the next window begins, in frames: behind the last whole segment.
        """
        stamps = self.first_stamp
        are = [one >= stamps for one in written]
        cuts = [place for place in range(1, len(are)) if are[place - 1] and are[place]]
        if not cuts:
            last = next((one - stamps for one in reversed(written) if one > stamps), None)
            end = frames // _FRAMES_OF_STAMP if last is None else last
            begin = written[0] - stamps if are[:1] == [True] and written[0] - stamps < end else 0
            return [(begin * STAMP, end * STAMP, self._text(written))], frames
        ended = are[-2:] == [False, True]
        found, begin = [], 0
        for cut in [*cuts, len(written)] if ended else cuts:
            part = written[begin:cut]
            found.append(((part[0] - stamps) * STAMP, (part[-1] - stamps) * STAMP, self._text(part)))
            begin = cut
        behind = (written[cuts[-1] - 1] - stamps) * _FRAMES_OF_STAMP
        return found, frames if ended else min(behind, frames) or frames

    def _text(self, tokens: Sequence[int]) -> list[int]:
        return [one for one in tokens if one < self.end]


def _log_sum(scores: Array) -> float:
    """Return the logarithm of the sum of what scores [n] are logarithms of."""
    most = scores.max(initial=-np.inf)
    return float(most if np.isinf(most) else most + np.log(np.exp(scores - most).sum()))
