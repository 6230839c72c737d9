"""Runs the steps of a pipeline as if they were one session: rows go through its models and operations.

So batches, the search for a bad row, parts and the ledger work for a pipeline as they do for a model.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import as_column
from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.pipelines.each import Apply, Each, Values, first_state
from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.pipelines.op_step import OpLine
from ortdeploy.pipelines.state import State
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedWireStep, walk
from ortdeploy.tensors.columns import Array, Column, is_beside


class StepsSession(ComposedSession):
    """One way through the steps of a pipeline; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Build every operation once. Raises OrtdeployError if one cannot be built."""
        super().__init__(components)
        self._outputs = dict(pipeline.outputs)
        self._handed_on = dict(pipeline.state)
        self._in_turn = {taken for step in pipeline.steps if step.kind == "do" for taken, _ in step.state}
        whole = frozenset((*self._handed_on, *self._handed_on.values()))
        self._eaches: list[Each] = []
        self._steps = [self._build(step, whole) for step in pipeline.steps]
        self._readers = _last_readers(pipeline)
        self._first = {value.name: first_state(value) for value in pipeline.first_state}
        self.state = State(values=self._first)
        self._before = self.state

    @property
    def halvings(self) -> int:
        """How often batches of items were halved because memory ran out."""
        return sum(each.halvings for each in self._eaches)

    def begin(self, key: tuple[str, ...]) -> None:
        """Reset the state to zeros if the next rows have another reset key."""
        if key != self.state.key:
            self.state = State(values=self._first, key=key)

    def undo(self) -> None:
        """Restore the state from before the last run."""
        self.state = self._before

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Run rows through all steps, and return the named outputs, [rows, …] each. Raises OrtdeployError."""
        if adapters:
            raise TypeError("adapters of a pipeline belong to its steps")
        columns = {name: _as_rows(feed) for name, feed in feeds.items()}
        self._before = self.state
        try:
            if self._handed_on.keys() <= self._in_turn:
                return self._run_together(outputs, columns)
            return self._run_in_turn(outputs, columns)
        except (OrtdeployError, MemoryError):
            self.undo()
            raise

    def _run_together(self, outputs: Sequence[str], feeds: Mapping[str, Column]) -> Sequence[Any]:
        """Run rows through one step after the other; only operations pass a state on, from row to row."""
        values = self._run_rows({**feeds, **self.state.values}, len(next(iter(feeds.values()))))
        self._keep(values)
        return [values[self._outputs[name]] for name in outputs]

    def _keep(self, values: Values) -> None:
        """Keep what the last row passes on."""
        if self._handed_on:
            kept = {name: np.asarray(values[source]) for name, source in self._handed_on.items()}
            self.state = State(values=kept, key=self.state.key)

    def _run_in_turn(self, outputs: Sequence[str], feeds: Mapping[str, Column]) -> Sequence[Any]:
        """Run rows one after the other; each passes its state on."""
        rows: list[list[Any]] = []
        for row in range(len(next(iter(feeds.values())))):
            cut = {name: array[row : row + 1] for name, array in feeds.items()}
            values = self._run_rows({**cut, **self.state.values}, 1)
            self._keep(values)
            rows.append([values[self._outputs[name]][0] for name in outputs])
        return [as_column([row[index] for row in rows]) for index in range(len(outputs))]

    def _run_rows(self, values: Values, rows: int) -> Values:
        for index, step in enumerate(self._steps):
            values |= step(values, rows)
            for name in [name for name in values if self._readers.get(name, -1) <= index]:
                del values[name]  # memory is flat in the number of steps
        return values

    def _build(self, step: PlannedWireStep, whole: frozenset[str]) -> Apply:
        """Build a step; `whole` are state values without an axis of rows."""
        if step.kind == "run":
            return ModelStep(step, self.components[step.name], whole)
        if step.kind == "op":
            return OpLine(step, self.components[step.name])
        if step.kind == "do":
            return _operation(step)
        if not step.state_by_row:
            whole = whole.union(*step.state)
        built = Each(step, [self._build(one, whole) for one in step.steps])
        self._eaches.append(built)
        return built


def _as_rows(feed: Array) -> Column:
    """Return a feed as a column: a list if its rows differ in shape."""
    return list(feed) if is_beside(feed) else feed


def _operation(step: PlannedWireStep) -> Apply:
    types = {value.name: value.tensor for value in step.takes}
    names = [name for _, name in step.outputs]
    try:
        call = OPERATIONS[step.name].build(step.options, types)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise OrtdeployError(f"{step.name}: {error}") from error

    def apply(values: Values, _rows: int) -> Values:
        given = {argument: values[name] for argument, name in step.wires}
        try:
            if not step.state:
                return dict(zip(names, call(given), strict=False))
            ((taken, left),) = step.state
            found, state = call(given, values[taken])
        except (ValueError, IndexError, ArithmeticError, TypeError) as error:
            raise OrtdeployError(f"{step.name}: {error}") from error
        return {**dict(zip(names, found, strict=False)), left: state}

    return apply


def _last_readers(pipeline: PlannedPipeline) -> dict[str, float]:
    """Return the place of the last step that reads each value; outputs are read after all of them."""
    last: dict[str, float] = {}
    for index, step in enumerate(pipeline.steps):
        for one in walk([step]):
            names = [name for _, name in one.wires] + ([one.name] if one.kind == "each" else [])
            names += [taken for taken, _ in one.state] if one.kind == "do" else []
            last.update(dict.fromkeys(names, index))
    return last | dict.fromkeys((value for _, value in (*pipeline.outputs, *pipeline.state)), math.inf)
