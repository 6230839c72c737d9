"""Completes forecasts of memory with the number of rows that there is, and with what is remembered of the job."""

from pathlib import Path

from msgspec.structs import replace

from ortdeploy.facts.memory import ROWS_AND_RESULTS, MeasuredMemory, MemoryForecast
from ortdeploy.feeds.in_flight import ALWAYS
from ortdeploy.plan.memory_notes import recall_memory
from ortdeploy.planning.preflight.row_sizes import RowSizes

_BATCHES = 2
"""Batches that each caller runs where memory is measured: what a session keeps of the first is there in the second.

Beside them come those that wait or are written, whose results may be in the arena while others run.
"""


def for_rows(forecast: MemoryForecast, sizes: RowSizes, state_dir: Path, rows: int | None) -> MemoryForecast:
    """Return a forecast for this many rows; None: nobody has counted them."""
    taken = sizes.bytes(rows)
    first = (_BATCHES * sizes.runs + ALWAYS) * sizes.batch
    first = min(first, rows or first)
    known, fitting = recall_memory(state_dir, forecast)
    parts = tuple(replace(one, size=taken) if one.what == ROWS_AND_RESULTS else one for one in forecast.parts)
    return replace(
        forecast,
        parts=parts,
        measured=tuple(_grown(one, taken - sizes.bytes(one.rows)) for one in known),
        first_rows=first,
        rest=max(taken - sizes.bytes(first), 0),
        fitting=fitting,
    )


def _grown(taken: MeasuredMemory, more: int) -> MeasuredMemory:
    """Return what was measured with what more rows take beside it."""
    return taken if taken.over else replace(taken, size=taken.size + max(more, 0))
