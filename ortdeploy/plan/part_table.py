"""The parts of a job as its plan fixes them, and which of them a shard runs.

Where borders are follows from the plan alone, so whoever runs a part writes the same rows into it.
"""

import hashlib
import json
from collections.abc import Iterator

from msgspec import Struct

from ortdeploy.files.json_text import read_json
from ortdeploy.plan.plan_file import decode, plan_digest
from ortdeploy.plan.steps import Plan, RunJob

_MOST = 2**60
"""No plan has as many rows or parts."""


class Shard(Struct, frozen=True, kw_only=True):
    """One of `count` processes that share the parts of a job between them, counted from 0."""

    index: int
    count: int

    def takes(self, number: int) -> bool:
        """Return whether it runs the part of this number."""
        return number % self.count == self.index

    def __str__(self) -> str:
        """`3/16`, as on the command line."""
        return f"{self.index}/{self.count}"


class PlannedPart(Struct, frozen=True, kw_only=True):
    """A part by its number, with its first row and the row behind its last."""

    number: int
    start: int
    end: int

    @property
    def rows(self) -> range:
        """The numbers of its rows."""
        return range(self.start, self.end)


class PartTable(Struct, frozen=True, kw_only=True):
    """The parts of a job: `rows_per_part` rows each, from `first_row` to the one before `end`.

    `first_number` parts were there before, of inputs of earlier runs.
    """

    first_number: int
    first_row: int
    end: int
    rows_per_part: int

    def __len__(self) -> int:
        return max(self.end - self.first_row + self.rows_per_part - 1, 0) // self.rows_per_part

    def __iter__(self) -> Iterator[PlannedPart]:
        return (self.part(self.first_number + index) for index in range(len(self)))

    def part(self, number: int) -> PlannedPart:
        """Return the part of a number. Raises ValueError if the plan has none."""
        index = number - self.first_number
        if not 0 <= index < len(self):
            raise ValueError(f"there is no part {number}")
        start = self.first_row + index * self.rows_per_part
        return PlannedPart(number=number, start=start, end=min(start + self.rows_per_part, self.end))


def read_part_table(bound: bytes) -> PartTable:
    """Return the parts in the `bound.json` of a plan. Raises ValueError, TypeError or LookupError if it has none."""
    table = decode(PartTable, read_json(bound)["parts"])
    numbers = (table.first_number, table.first_row, table.end, table.rows_per_part - 1)
    if not all(0 <= number < _MOST for number in numbers):
        raise ValueError(f"{table} has no parts")
    return table


def part_table(step: RunJob, first_number: int) -> PartTable:
    """Return the parts of a job whose number of rows is known."""
    if step.input.rows is None:
        raise AssertionError("a job whose rows are not counted has no part table")
    return PartTable(
        first_number=first_number,
        first_row=step.input.first_row,
        end=step.input.rows,
        rows_per_part=step.batching.rows_per_part,
    )


def bound_digest(plan: Plan, step: RunJob) -> str:
    """Return the SHA-256 of what a plan says of a job, its input files and its rows.

    It is the same on every machine that the plan holds for, wherever the tree is mounted.
    """
    files = [[one.path, one.size] for one in step.input.files]
    bound = [plan_digest(plan, step.job), files, step.input.first_row, step.input.rows]
    return hashlib.sha256(json.dumps(bound).encode()).hexdigest()
