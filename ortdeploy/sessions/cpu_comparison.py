"""Compares runs with the CPU provider, to prove that another provider computes what the model says.

A backend can place every node and answer with zeros without an error; its numbers are the only evidence. `evidence`
decides which batches are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from ortdeploy.diagnostics import OutOfMemoryError, ProviderFailedError, TransientError
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.evidence import CPU, DisagreementError, Evidence, clocks, since, varying
from ortdeploy.tensors.columns import Array

_EQUAL_SHARE = 0.9  # of whole numbers, which may flip where a float beside them is close
_MOST_BYTES = 64 * 2**20  # of a batch that is kept until it is compared

RunOnCpu = Callable[[Sequence[str], Mapping[str, Array], tuple[str, ...]], Sequence[Any]]
"""Returns the named outputs of feeds with adapters, as the CPU session gives them. Raises OrtdeployError."""


class _Batch(Struct, frozen=True, kw_only=True):
    """A batch that ran: its outputs `values`, by `names`, and the number of its first row."""

    names: Sequence[str]
    feeds: Mapping[str, Array]
    values: Sequence[Any]
    adapters: tuple[str, ...]
    number: int
    by_row: bool

    def rows(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return feeds and outputs by name, [rows, …] each; [1, …] if the batch is one row without an axis.

        A feed without axes, which models of a pipeline may take, is [1].
        """
        values = dict(zip(self.names, self.values, strict=True))
        if self.by_row:
            fed = {name: one if np.ndim(one) else np.asarray(one)[np.newaxis] for name, one in self.feeds.items()}
            return fed, {name: value for name, value in values.items() if np.ndim(value) or isinstance(value, list)}
        return {name: np.asarray(one)[np.newaxis] for name, one in self.feeds.items()}, {
            name: value[np.newaxis] if isinstance(value, np.ndarray) else [value] for name, value in values.items()
        }

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(one.nbytes for one in (*self.feeds.values(), *self.values) if isinstance(one, np.ndarray))

    def copy(self) -> "_Batch":
        """Return a batch whose arrays are no views of larger ones."""
        return _Batch(
            names=self.names,
            feeds={name: np.array(array) for name, array in self.feeds.items()},
            values=[np.array(one) if isinstance(one, np.ndarray) else one for one in self.values],
            adapters=self.adapters,
            number=self.number,
            by_row=self.by_row,
        )


class CpuComparison(Struct):
    """A CPU session of the same model to compare with, and how much floating outputs may differ.

    `because`: in which coarser formats the provider computes. `is_lean`: the session is let go of once it is proven
    that the provider is right: a model is not kept twice.
    """

    session: Session | None
    rtol: float
    atol: float
    is_lean: bool = False
    because: Sequence[str] = ()
    evidence: Evidence = field(default_factory=Evidence)
    _first: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    _latest: _Batch | None = None

    def take(self) -> Session | None:
        """Return the CPU session the first time, and let go of it."""
        session, self.session = self.session, None
        return session

    def look(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        values: Sequence[Any],
        run: RunOnCpu,
        adapters: tuple[str, ...],
        *,
        number: Callable[[int], int],
        seconds: float,
        expected: Callable[[], Sequence[Any]] | None = None,
        by_row: bool = True,
    ) -> None:
        """Compare a batch that took `seconds` with the CPU, if it is its turn: its outputs `values`, by `names`.

        `feeds` and `values` are mostly [rows, …]; not `by_row`: one row without an axis. `expected` returns what the
        CPU has given already. Raises ProviderFailedError, and DisagreementError if rows have passed without a look.
        """
        if self.session is None:
            return
        evidence, agree = self.evidence, (self.rtol, self.atol)
        batch = _Batch(names=names, feeds=feeds, values=values, adapters=adapters, number=number(0), by_row=by_row)
        fed, given = batch.rows()
        evidence.note_block(max(map(len, fed.values()), default=0), seconds, fed, given)
        unseen = not evidence.varied.issuperset((*evidence.inputs, *evidence.outputs))
        new = varying(fed, given, agree, but=evidence.varied, first=self._first) if unseen else {}
        if evidence.is_due(is_new=bool(new)):
            self._compare(batch, run, expected)
        elif not evidence.repeats:
            evidence.pass_by(batch.number)
            self._latest = batch.copy() if batch.size_bytes <= _MOST_BYTES else None

    def finish(self, run: RunOnCpu) -> None:
        """Compare the last batch. Raises as `look`."""
        batch, self._latest = self._latest, None
        if self.session is not None and batch and (self.evidence.is_affordable or not self.evidence.is_proven):
            self._compare(batch, run, None)

    def _compare(self, batch: _Batch, run: RunOnCpu, expected: Callable[[], Sequence[Any]] | None) -> None:
        began, evidence = clocks(), self.evidence
        try:
            reference = expected() if expected is not None else run(batch.names, batch.feeds, batch.adapters)
            self.compare(batch.names, batch.values, reference)
        except ProviderFailedError as error:
            if evidence.since is None:
                raise
            raise DisagreementError(
                f"row {batch.number}, or one behind it in its batch: {error}", evidence.since, CPU
            ) from error
        except (TransientError, OutOfMemoryError, MemoryError) as error:  # the next batch is compared
            evidence.trouble = str(error) or "memory ran out"
            evidence.pass_by(batch.number)
            return
        fed, given = batch.rows()
        agree = (self.rtol, self.atol)
        varied = {*varying(fed, given, agree), *varying(fed, given, agree, first=self._first)}
        evidence.agree(max(map(len, fed.values()), default=0), varied, since(began))
        self._latest = None
        if self._first is None:
            kept = batch.copy().rows()
            self._first = (
                {name: one[:1] for name, one in kept[0].items()},
                {name: one[:1] for name, one in kept[1].items()},
            )
        if self.is_lean and evidence.is_proven:
            self.take()

    def compare(self, names: Sequence[str], values: Sequence[Array], reference: Sequence[Array]) -> None:
        """Raise ProviderFailedError if an output is not the CPU provider's within the tolerance.

        `values` and `reference` are the outputs of one run, by `names`, [rows, …] each; they may be lists and maps.
        """
        for name, value, expected in zip(names, values, reference, strict=True):
            problem = self._difference(value, expected)
            if problem:
                why = ". ".join((problem, *self.because)).removesuffix(".")
                raise ProviderFailedError(f"output {name} is not what the CPU provider computes: {why}")

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
