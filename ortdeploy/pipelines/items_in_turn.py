"""Runs the items of one row through one model, one after the other, each with the state of the one before.

Such runs are short: what steps do for values of any kind takes a third as long as a voice detector's run. Here, what is
alike for all items is held against the model once, and the state stays as the graph has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.plan.pipeline import PlannedWireStep
from ortdeploy.sessions.rows_first import to_front
from ortdeploy.tensors.columns import Array, Column


class ItemsInTurn:
    """An `each` with state whose only step runs a model, for one row at a time."""

    def __init__(self, step: PlannedWireStep, model: ModelStep) -> None:
        """Take the step, and its model, which gives all that is handed on and collected."""
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
        """Return whether the items of a row are alike, and lie in memory as a model takes them."""
        return isinstance(items, np.ndarray) and len(items) > 0 and items[:1].flags.c_contiguous

    def run(self, outer: dict[str, Column], items: Array, state: dict[str, Column]) -> dict[str, list[Column]]:
        """Return what is collected of each item, its row first. Raises OrtdeployError.

        `items` are [items, …], at least one; `outer` and the `state` of the first one are columns of the row.
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
            if [one.shape for one in given] != shapes:  # the next state may not be as the last one was
                in_front = self._model.row_in_front(given)
                state = {name: in_front[which] for name, which in self._handed_on}
                shapes, feeds = [one.shape for one in given], None
            for append, which, axis in collect:
                append(to_front(given[which], axis) if axis else given[which])
        return collected

    def _next_feeds(self, feeds: dict[str, Array], item: Array, given: Sequence[Any]) -> dict[str, Array]:
        """Return the feeds of an item that looks like the one before, as its state does."""
        feeds = feeds.copy()
        for port in self._takes_item:
            feeds[port] = item
        for port, which in self._takes_state:
            feeds[port] = given[which]
        return feeds


def items_in_turn(step: PlannedWireStep, inner: Sequence[object]) -> ItemsInTurn | None:
    """Return what runs the items of a row by itself, if all that an each does is to run a model with state."""
    model = inner[0] if len(inner) == 1 else None
    if not step.state or not isinstance(model, ModelStep) or not model.is_known_by_look:
        return None
    if any(axis for _, name, axis in model.takes if name == step.item):
        return None
    wanted = {name for name, _ in step.outputs}.union(source for _, source in step.state)
    return ItemsInTurn(step, model) if wanted.issubset(name for name, _ in model.gives) else None
