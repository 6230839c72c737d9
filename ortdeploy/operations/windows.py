"""`windows` — a row as a list of windows: `context` values of before and `size` new ones each, every `hop` values.

Before the row's beginning there are zeros. `last` says what becomes of values that fill no whole window: zeros fill it
up (pad), they are left out (drop), or the last window is shorter (short). The second result says where the new values
of each window begin in the row.

A window is a view: of a long row there is one copy, with the zeros around it, and no copy a window.
"""

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortdeploy.operations.protocol import Call, Types
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, Solved, forms
from ortdeploy.transforms.protocol import Options

PACKAGE = None
PAD, DROP, SHORT = "pad", "drop", "short"
_MOST = 2**24


def _sizes(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Work out how many windows there are, and how long they are."""
    setting, values = _Setting(CONTRACT.filled(solved.options)), solved.size("values")
    solved.sizes["windows"] = None if values is None else _count(values, setting)
    solved.sizes["length"] = None if setting.last == SHORT else setting.context + setting.size


CONTRACT = Contract(
    name="windows",
    meaning="A row as a list of windows, with what stands before each; and where the new values of each begin",
    inputs=(FormalParameter("x", "T", forms("rows values *dims"), "samples, or other values in their order"),),
    outputs=(
        FormalParameter("windows", "T", forms("rows windows length *dims"), "a list of windows a row", keeps=("unit",)),
        FormalParameter("start", "int64", forms("rows windows"), "the first new value of each"),
    ),
    attributes=(
        Attribute("size", "INT", "the new values of a window", required=True, least=1, most=_MOST),
        Attribute("hop", "INT", "from one window to the next; default: size", least=1, most=_MOST),
        Attribute("context", "INT", "the values of before in a window", default=0, least=0, most=_MOST),
        Attribute("last", "STRING", "what becomes of the rest", default=PAD, choices=(PAD, DROP, SHORT)),
    ),
    types=(ANY,),
    arithmetic=_sizes,
)


class _Setting:
    """The settings, with the hop that follows from the size."""

    def __init__(self, options: Options) -> None:
        self.size: int = options["size"]
        self.hop: int = options.get("hop") or self.size
        self.context: int = options["context"]
        self.last: str = options["last"]


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every type
    setting = _Setting(options)

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        x = values["x"]
        if isinstance(x, list):
            rows = [np.asarray(row) for row in x]
            return [_windows_of(row, setting) for row in rows], [_starts(len(row), setting) for row in rows]
        if setting.last == SHORT:
            return [_windows_of(row, setting) for row in x], [_starts(x.shape[1], setting)] * len(x)
        starts = np.broadcast_to(_starts(x.shape[1], setting), (len(x), _count(x.shape[1], setting)))
        return _whole_windows(x, 1, setting), starts

    return apply


def _count(values: int, setting: _Setting) -> int:
    """Return how many windows a row of so many values has; none begins behind its end."""
    whole = (values - setting.size) // setting.hop + 1 if values >= setting.size else 0
    if setting.last == DROP or not values or (whole and (whole - 1) * setting.hop + setting.size == values):
        return whole
    return whole + 1 if whole * setting.hop < values else whole


def _starts(values: int, setting: _Setting) -> Array:
    """Return where the new values of each window begin, int64 [windows]."""
    return np.arange(_count(values, setting), dtype=np.int64) * setting.hop


def _windows_of(row: Array, setting: _Setting) -> Array | list[Array]:
    """Return the windows of one row [values, *dims]: [windows, length, *dims], or a list whose last may be shorter."""
    if setting.last != SHORT:
        return _whole_windows(row, 0, setting)
    before = _filled(row, 0, setting.context, 0)
    length = setting.context + setting.size
    windows = [before[start : start + length] for start in _starts(len(row), setting)]
    return windows or _whole_windows(row[:0], 0, setting)


def _whole_windows(x: Array, axis: int, setting: _Setting) -> Array:
    """Return views [..., windows, length, *dims] of the values at an axis, with zeros before and behind them."""
    length, count = setting.context + setting.size, _count(x.shape[axis], setting)
    end = (count - 1) * setting.hop + setting.size if count else setting.size
    x = _filled(x, axis, setting.context, max(end - x.shape[axis], 0))
    views = sliding_window_view(x, length, axis=axis)  # the length is the last axis
    place = [slice(None)] * views.ndim
    place[axis] = slice(0, (count - 1) * setting.hop + 1 if count else 0, setting.hop)
    return np.moveaxis(views[tuple(place)], -1, axis + 1)


def _filled(x: Array, axis: int, before: int, behind: int) -> Array:
    """Return values with zeros, or empty text, around them; as they are where there are none."""
    if not before and not behind:
        return x
    nothing = "" if x.dtype == object else np.zeros((), x.dtype)[()]
    sizes = list(x.shape)
    sizes[axis] += before + behind
    filled = np.full(sizes, nothing, dtype=x.dtype)
    place = [slice(None)] * x.ndim
    place[axis] = slice(before, before + x.shape[axis])
    filled[tuple(place)] = x
    return filled
