"""Has a tokenizer of ONNX Runtime GenAI read texts within a time, as the pattern of a stranger may come to no end."""

from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.held_process import ended_if_endless
from ortdeploy.tensors.columns import Array

_LEAST, _CHARACTERS = 30.0, 1000
"""Seconds of processor time for any text, and for how many of its characters there is a second more."""
HARD = tuple(f"{one * 40}\t" for one in ("a", "A", "0", " ", "\n", ".", "é", "aA0 ."))
"""Texts over which patterns that try each way to divide what they match come to no end."""


def encoded(tokenizer: Any, text: str) -> Array:
    """Return the tokens of a text, int32 [tokens]; the library keeps Python's lock meanwhile."""
    with ended_if_endless(time_for(text)):
        return np.asarray(tokenizer.encode(text), dtype=np.int32)


def time_for(text: str) -> float:
    """Return the seconds of processor time after which a tokenizer that still reads a text is taken to be endless."""
    return _LEAST + len(text) / _CHARACTERS


def check_whole(text: str) -> None:
    """Raise OrtdeployError for a text of which GenAI would read the beginning only, or nothing."""
    place = text.find("\0")
    if place >= 0:
        raise OrtdeployError(f"character {place + 1} of what the model reads is NUL, behind which GenAI reads nothing")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OrtdeployError(
            f"character {error.start + 1} of what the model reads is half of a surrogate pair"
        ) from error
