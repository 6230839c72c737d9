"""What the formats of recordings share: headers, sample rates, messages about unreadable files, and rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.decoding import reason_of
from ortdeploy.sources.format_check import what_it_is
from ortdeploy.sources.protocol import Setting, Wanted
from ortdeploy.sources.rows import RowError, as_row_error
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

RATE = Setting(name="rate", type=int | None, files="recordings", trait="sample rate")
"""The sample rate that recordings must have, in Hz."""


class Header(Struct, frozen=True):
    """The header of a recording: channels, samples a second, and samples of each channel."""

    channels: int
    rate: int
    frames: int


def probe_recordings(files: Sequence[str], facts: InputFacts, header_of: Callable[[str], Header]) -> InputFacts:
    """Take the number of channels from the first file, and the rates of all that have a header that can be read."""
    try:
        channels = header_of(files[0]).channels
    except RowError as error:
        return replace(facts, problem=Problem(kind="unreadable", detail=f"{files[0]}: {error}."))
    lengths = (None,) if channels == 1 else (channels, None)
    columns = {"samples": TensorType("float32", (ROWS, *lengths)), "rate": TensorType("int64", (ROWS,))}
    return replace(facts, columns=columns, rows=len(files), rates=_rates(files, header_of))


def _rates(files: Sequence[str], header_of: Callable[[str], Header]) -> dict[int, tuple[int, ...]]:
    """Return the files by their sample rate; a damaged file is left out, and fails as a row when it is read."""
    found: dict[int, list[int]] = {}
    for row, path in enumerate(files):
        with suppress(RowError):
            found.setdefault(header_of(path).rate, []).append(row)
    return {rate: tuple(rows) for rate, rows in found.items()}


@contextmanager
def in_words(path: str, name: str, what: str, code: str) -> Iterator[None]:
    """Turn exceptions from reading a file of the format `name` into a RowError: the file is not `what`."""
    try:
        yield
    except RowError:
        raise
    except Exception as error:

        def undecodable(error: Exception) -> RowError:
            return RowError(f"not {what}: {reason_of(error)}{what_it_is(name, path)}", code)

        raise as_row_error(error, undecodable) from error


def hold_rate(header: Header, wanted: Wanted) -> None:
    """Raise RowError if a file has another sample rate than the input declares."""
    declared = RATE.of(wanted.settings)
    if declared not in {None, header.rate}:
        raise RowError(
            f"it has {header.rate:,} samples a second, and the input declares {declared:,}. To take any rate, write "
            f"a step instead of rate: {declared}: prepare: {{INPUT: [{{resample: {declared}}}]}}",
            "other-rate",
        )


def row_of(samples: Array, header: Header) -> dict[str, Any]:
    """Return a row's columns from float32 [frames x channels], in which a frame's channels are next to each other."""
    by_channel = samples if header.channels == 1 else samples.reshape(-1, header.channels).T
    return {"samples": np.ascontiguousarray(by_channel), "rate": np.asarray(header.rate, np.int64)}
