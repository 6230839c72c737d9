"""`windows` — cuts a row into a list of windows: `size` new values each, after `context` values that came before them.

A window begins every `hop` values. Before the first value of a row, the context is zeros. `last` decides about values
at the end that fill no whole window: `pad` fills the window up with zeros, `drop` leaves them out, `short` makes the
last window shorter. The second result, int64 [rows, windows], is the index of the first new value of each window.

Windows are views. A row is copied at most once, to put zeros around it, however many windows it has.
"""

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortdeploy.operations.protocol import Call, Types
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, Solved, forms
from ortdeploy.transforms.protocol import Options

PAD, DROP, SHORT = "pad", "drop", "short"
_MOST = 2**24


def _sizes(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Compute the number of windows and their length."""
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
    """The settings; `hop` is `size` if it is not given."""

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
    """Return the number of windows of a row of `values` values; no window begins after the last value."""
    whole = (values - setting.size) // setting.hop + 1 if values >= setting.size else 0
    if setting.last == DROP or not values or (whole and (whole - 1) * setting.hop + setting.size == values):
        return whole
    return whole + 1 if whole * setting.hop < values else whole


def _starts(values: int, setting: _Setting) -> Array:
    """Return the index of the first new value of each window, int64 [windows]."""
    return np.arange(_count(values, setting), dtype=np.int64) * setting.hop


def _windows_of(row: Array, setting: _Setting) -> Array | list[Array]:
    """Return the windows of one row [values, *dims]: [windows, length, *dims], or a list if the last may be shorter."""
    if setting.last != SHORT:
        return _whole_windows(row, 0, setting)
    before = _filled(row, 0, setting.context, 0)
    length = setting.context + setting.size
    windows = [before[start : start + length] for start in _starts(len(row), setting)]
    return windows or _whole_windows(row[:0], 0, setting)


def _whole_windows(x: Array, axis: int, setting: _Setting) -> Array:
    """Return views [..., windows, length, *dims] of x [..., values, *dims]; `axis` is that of the values."""
    length, count = setting.context + setting.size, _count(x.shape[axis], setting)
    end = (count - 1) * setting.hop + setting.size if count else setting.size
    x = _filled(x, axis, setting.context, max(end - x.shape[axis], 0))
    views = sliding_window_view(x, length, axis=axis)  # the length is the last axis
    place = [slice(None)] * views.ndim
    place[axis] = slice(0, (count - 1) * setting.hop + 1 if count else 0, setting.hop)
    return np.moveaxis(views[tuple(place)], -1, axis + 1)


def _filled(x: Array, axis: int, before: int, behind: int) -> Array:
    """Return x with `before` and `behind` zeros (or empty texts) added along an axis; x itself if both are 0."""
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
