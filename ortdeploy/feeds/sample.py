"""Returns a job's own first rows as tensors, for measurements before the job begins."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat

import numpy as np

from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.rows import Block, StageError
from ortdeploy.tensors.columns import Array, OpRunners, size_bytes

_MOST_BYTES = 64 * 1024 * 1024

Feeds = dict[str, Array]


def first_feeds(plan: Plan, step: RunJob, most: int, ops: OpRunners) -> Feeds:
    """Return tensors [rows, …] of at most `most` first rows; nothing if they cannot be fed together.

    Raises OrtdeployError if the input cannot be read.
    """
    feeder = Feeder(step, ops)
    taken: list[Feeds] = []
    for block in _blocks(plan, step):
        feeds = feeder.prepare_block(block)
        if feeds is None:
            break
        taken.append(feeds)
        if sum(len(next(iter(one.values()))) for one in taken) >= most or _is_enough(taken):
            break
    return _joined(taken)


def first_runs(plan: Plan, step: RunJob, most: int, ops: OpRunners) -> list[Feeds]:
    """Return the feeds of at most `most` runs, without those that cannot be fed. Raises OrtdeployError as above."""
    feeder = Feeder(step, ops)
    taken: list[Feeds] = []
    for block in _blocks(plan, step):
        with suppress(StageError):
            taken.append(feeder.prepare_batch(block, range(len(block.rows))))
        if len(taken) >= most or _is_enough(taken):
            break
    return taken


def _blocks(plan: Plan, step: RunJob) -> Iterator[Block]:
    with open_rows(step, plan.folder) as source:
        yield from source.blocks(step.input.first_row, repeat(step.batching.run_size))


def _is_enough(taken: list[Feeds]) -> bool:
    return sum(map(size_bytes, taken)) > _MOST_BYTES


def _joined(taken: list[Feeds]) -> Feeds:
    if not taken or len({tuple(array.shape[1:] for array in one.values()) for one in taken}) > 1:
        return taken[0] if taken else {}
    return {name: np.concatenate([one[name] for one in taken]) for name in taken[0]}
