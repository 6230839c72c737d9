"""Runs the items of one row through one model, one after the other, each with the state of the one before.

Such runs are short: the work that `each` does around a run, for values of any kind, takes a third as long as a run of a
voice detector. Here, whatever all items have in common is checked against the model once, and the state keeps the axes
that the graph gives it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.plan.pipeline import PlannedWireStep
from ortdeploy.sessions.row_axis_adapter import to_front
from ortdeploy.tensors.columns import Array, Column


class ItemsInTurn:
    """An `each` with state whose only step runs a model, for one row at a time."""

    def __init__(self, step: PlannedWireStep, model: ModelStep) -> None:
        """Take the step and its model, which makes every value that is passed on or collected."""
        self._model = model
        self._item = step.item
        places = {name: place for place, (name, _) in enumerate(model.gives)}
        axes = dict(model.gives)
        self._handed_on = [(name, places[source]) for name, source in step.state]
        self._collected = [(name, places[name], axes[name]) for name, _ in step.outputs]
        handed_on = dict(self._handed_on)
        self._takes_item = [port for port, name, _ in model.takes if name == step.item]
        self._takes_state = [(port, handed_on[name]) for port, name, _ in model.takes if name in handed_on]

    @staticmethod
    def may_run(items: Column) -> bool:
        """Return whether the items of a row are one array, contiguous as a model takes it."""
        return isinstance(items, np.ndarray) and len(items) > 0 and items[:1].flags.c_contiguous

    def run(self, outer: dict[str, Column], items: Array, state: dict[str, Column]) -> dict[str, list[Column]]:
        """Return the collected values of each item, [1, …] each. Raises OrtdeployError.

        `items` are [items, …], at least one; `outer` and the first `state` are columns of one row.
        """
        collected: dict[str, list[Column]] = {name: [] for name, _, _ in self._collected}
        collect = [(collected[name].append, which, axis) for name, which, axis in self._collected]
        feeds: dict[str, Array] | None = None
        given: list[Any] = []
        shapes: list[tuple[int, ...]] | None = None
        for place in range(len(items)):
            item = items[place : place + 1]
            if feeds is None:
                feeds = self._model.feeds_of_row({**outer, **state, self._item: item})
            else:
                feeds = self._next_feeds(feeds, item, given)
            given = self._model.run_row(feeds)
            if [one.shape for one in given] != shapes:  # the state has another shape: the next feeds are checked anew
                in_front = self._model.row_in_front(given)
                state = {name: in_front[which] for name, which in self._handed_on}
                shapes, feeds = [one.shape for one in given], None
            for append, which, axis in collect:
                append(to_front(given[which], axis) if axis else given[which])
        return collected

    def _next_feeds(self, feeds: dict[str, Array], item: Array, given: Sequence[Any]) -> dict[str, Array]:
        """Return the feeds of an item whose types and shapes, and whose state's, are those of the item before."""
        feeds = feeds.copy()
        for port in self._takes_item:
            feeds[port] = item
        for port, which in self._takes_state:
            feeds[port] = given[which]
        return feeds


def items_in_turn(step: PlannedWireStep, inner: Sequence[object]) -> ItemsInTurn | None:
    """Return the short way to run an `each`; None unless all that it does is to run one model with state."""
    model = inner[0] if len(inner) == 1 else None
    if not step.state or not isinstance(model, ModelStep) or not model.is_known_by_look:
        return None
    if any(axis for _, name, axis in model.takes if name == step.item):
        return None
    wanted = {name for name, _ in step.outputs}.union(source for _, source in step.state)
    return ItemsInTurn(step, model) if wanted.issubset(name for name, _ in model.gives) else None
