"""Compares a job's first batch with the CPU provider, to prove that another provider computes what the model says.

A backend can place every node and answer with zeros without an error; its numbers are the only evidence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.records import mutable_record
from ortdeploy.runtime.protocol import Session
from ortdeploy.tensors.columns import Array

_EQUAL_SHARE = 0.9  # of whole numbers, which may flip where a float beside them is close


@mutable_record
class CpuComparison:
    """A CPU session of the same model to compare with once, and how much floating outputs may differ."""

    session: Session | None
    rtol: float
    atol: float

    def take(self) -> Session | None:
        """Return the CPU session the first time, and let go of it: a model is not kept in memory twice."""
        session, self.session = self.session, None
        return session

    def compare(self, names: Sequence[str], values: Sequence[Array], reference: Sequence[Array]) -> None:
        """Raise ProviderFailedError if an output is not the CPU provider's within the tolerance.

        `values` and `reference` are the outputs of one run, by `names`, [rows, …] each; they may be lists and maps.
        """
        for name, value, expected in zip(names, values, reference, strict=True):
            problem = self._difference(value, expected)
            if problem:
                raise ProviderFailedError(f"output {name} is not what the CPU provider computes: {problem}")

    def _difference(self, value: Any, expected: Any) -> str | None:
        if not isinstance(expected, np.ndarray):
            return self._value_difference(value, expected)
        if value.shape != expected.shape or value.dtype != expected.dtype:
            return f"{value.dtype} {list(value.shape)} instead of {expected.dtype} {list(expected.shape)}"
        if not np.issubdtype(value.dtype, np.floating):
            share = float(np.mean(value == expected)) if value.size else 1.0
            return None if share >= _EQUAL_SHARE else f"only {share:.0%} of its values are equal"
        return self._floating_difference(value, expected)

    def _value_difference(self, value: Any, expected: Any) -> str | None:
        """Compare sequences and maps, element by element."""
        if isinstance(expected, dict) and isinstance(value, dict) and value.keys() == expected.keys():
            value, expected = list(value.values()), list(expected.values())
        if not isinstance(expected, list):
            return self._difference(np.asarray(value), np.asarray(expected)) if value != expected else None
        if not isinstance(value, list) or len(value) != len(expected):
            return f"it is not a sequence of {len(expected)}"
        return next(
            (problem for pair in zip(value, expected, strict=True) if (problem := self._difference(*pair))), None
        )

    def _floating_difference(self, value: Array, expected: Array) -> str | None:
        finite = np.isfinite(expected)
        if not np.array_equal(finite, np.isfinite(value)):
            return "it has infinities or NaN in other places"
        apart = np.abs(value[finite].astype(np.float64) - expected[finite])
        allowed = self.atol + self.rtol * float(np.abs(expected[finite]).max(initial=0))
        largest = float(apart.max(initial=0))
        return None if largest <= allowed else f"it differs by {largest:.3g}, and probe: allows {allowed:.3g}"
