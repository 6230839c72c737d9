"""What a format of outputs cannot hold: such a value fails its row instead of becoming another one."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ortdeploy.results.rows import StageError
from ortdeploy.tensors.columns import Column, pick

_FIRST_SURROGATE, _LAST_SURROGATE = "\ud800", "\udfff"


class Holds(Protocol):
    """What a format says of the values that it holds."""

    @property
    def KEEPS_ZEROS(self) -> bool:  # noqa: N802  a module constant
        """Whether texts may end in U+0000; numpy fills texts of an array up with them."""

    @property
    def KEEPS_NULLS(self) -> bool:  # noqa: N802  a module constant
        """Whether a value may be null; arrays have none."""

    @property
    def KEEPS_SURROGATES(self) -> bool:  # noqa: N802  a module constant
        """Whether texts may have half of a surrogate pair, which JSON can write and UTF-8 cannot."""


def why_lost(sink: Holds, column: Column, name: str = "") -> str | None:
    """Return what of a column [rows, …] a format does not hold, in words; None if it holds all.

    Of a column called `path` it holds all texts: names of files that are no UTF-8 are written with escapes.
    """
    if isinstance(column, np.ndarray):
        if column.dtype != object:
            return None
        same = column.strides == (0,)  # one value for all rows
        return _why(sink, column[:1].tolist() if same else column.ravel().tolist(), name)
    return _why(sink, column, name)


def unwritable(form: str, lost: str) -> StageError:
    """Return the error of a row that has a value which a format loses; `lost` says what is what."""
    return StageError("postprocess", "unwritable-text", f"{lost}, which {form} loses; use another format")


def lost_key(sink: Holds, keys: Mapping[str, Column], rows: Sequence[int] | None = None) -> str | None:
    """Return which key of a block, or of some of its rows, a format does not hold, and what of it, in words."""
    of_keys = ((name, why_lost(sink, key if rows is None else pick(key, rows), name)) for name, key in keys.items())
    return next((f'key "{name}" is {found}' for name, found in of_keys if found is not None), None)


def _why(sink: Holds, values: Sequence[Any], name: str) -> str | None:
    try:
        text = "".join(values)
    except TypeError:  # some are no text
        return next((why for why in (_why_of_value(sink, value, name) for value in values) if why is not None), None)
    return _why_of_text(sink, text, values, name)


def _why_of_value(sink: Holds, value: Any, name: str) -> str | None:
    if value is None:
        return None if sink.KEEPS_NULLS else "null"
    if isinstance(value, str):
        return _why_of_text(sink, value, [value], name)
    if isinstance(value, np.ndarray):
        return why_lost(sink, value, name)
    if isinstance(value, dict):
        return _why(sink, [*value, *value.values()], name)
    return _why(sink, value, name) if isinstance(value, list | tuple) else None


def _why_of_text(sink: Holds, text: str, texts: Sequence[str], name: str) -> str | None:
    """Look at all texts joined, which is as quick as at one; only if something is found, at each."""
    if not sink.KEEPS_ZEROS and "\0" in text and any(one.endswith("\0") for one in texts):
        return "text that ends in U+0000"
    if sink.KEEPS_SURROGATES or text.isascii() or name == "path":
        return None
    is_half = any(_FIRST_SURROGATE <= letter <= _LAST_SURROGATE for letter in set(text))
    return "text with half of a surrogate pair" if is_half else None
