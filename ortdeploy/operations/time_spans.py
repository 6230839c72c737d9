"""`time_spans` — spans of time in which something is heard or seen, from its probability at each step.

A span begins where the probability reaches `begin` and ends where it falls below `end`. Gaps shorter than `gap` seconds
are closed, then spans shorter than `shortest` are left out; `margin` seconds are added at both ends, and spans that
touch then are one. A step takes `step` seconds; the first begins at `first`.

Each row gives begins and ends in seconds, float64 [n, 2], and the mean probability of each span's steps, float32 [n].
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options


def _hold_limits(solved: Solved, types: Types) -> None:  # noqa: ARG001  settings alone
    """Check that a span does not end above where it begins. Raises ContractError."""
    begin, end = CONTRACT.filled(solved.options)["begin"], solved.options.get("end")
    if end is not None and end > begin:
        raise ContractError(f"end is {end:g} and begin is {begin:g}: a span would end before it begins")


CONTRACT = Contract(
    name="time_spans",
    meaning="Spans of time in which a probability is high",
    inputs=(
        FormalParameter("x", "T", forms("rows steps"), "the probability at each step", (PROBABILITY,), not_nan=True),
    ),
    outputs=(
        FormalParameter("spans", "float64", forms("rows n 2"), "begin and end in seconds"),
        FormalParameter("scores", "float32", forms("rows n"), "the mean of each", units=(PROBABILITY,)),
    ),
    attributes=(
        Attribute("step", "FLOAT", "the seconds of a step", required=True, above=0),
        Attribute("begin", "FLOAT", "where a span begins", default=0.5),
        Attribute("end", "FLOAT", "below which it ends; by default begin"),
        Attribute("gap", "FLOAT", "shorter gaps are closed, in seconds", default=0, least=0),
        Attribute("shortest", "FLOAT", "shorter spans are left out, in seconds", default=0, least=0),
        Attribute("margin", "FLOAT", "what is added at both ends, in seconds", default=0, least=0),
        Attribute("first", "FLOAT", "where the first step begins, in seconds", default=0),
    ),
    types=(REALS,),
    arithmetic=_hold_limits,
)

_SMALL = 1e-9
"""Seconds that a sum of steps may be off."""


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every type
    step, limits = options["step"], (options["begin"], options.get("end", options["begin"]))

    def find(x: Array) -> tuple[Array, Array]:
        on, off = np.array(limits, x.dtype).astype(np.float64).tolist()  # 0.7 of float32 reaches 0.7
        x = convert(x, "float64")
        closed = _joined(_high(x, on, off).tolist(), options["gap"] / step - _SMALL)
        kept = [one for one in closed if (one[1] - one[0]) * step >= options["shortest"] - _SMALL]
        margin = options["margin"] / step
        grown = _joined([[max(one[0] - margin, 0), min(one[1] + margin, len(x))] for one in kept], _SMALL)
        means = [_mean(x, [one for one in kept if span[0] <= one[0] < span[1]]) for span in grown]
        spans = np.array(grown, np.float64).reshape(-1, 2) * step + options["first"]
        return spans, np.array(means, np.float32)

    return by_row(find, 2, "x")


def _mean(x: Array, spans: Sequence[Sequence[float]]) -> float:
    """Return the mean of x [steps] in spans of whole steps."""
    return float(np.concatenate([x[int(begin) : int(end)] for begin, end in spans]).mean())


def _high(x: Array, on: float, off: float) -> Array:
    """Return spans, int [n, 2] in steps: they begin where x [steps] reaches `on`, and end where it is below `off`."""
    marks = np.where(x >= on, 1, np.where(x < off, -1, 0))
    decided = np.flatnonzero(marks)
    before = np.searchsorted(decided, np.arange(len(x)), side="right") - 1
    is_on = np.where(before >= 0, marks[decided[before]] if len(decided) else -1, -1) > 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_on, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2)


def _joined(spans: Iterable[Sequence[float]], gap: float) -> list[list[float]]:
    """Return spans, begin and end, in their order; those with a gap that is shorter than `gap` are one."""
    found: list[list[float]] = []
    for begin, end in spans:
        if found and begin - found[-1][1] < gap:
            found[-1][1] = end
        else:
            found.append([begin, end])
    return found
