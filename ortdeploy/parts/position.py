"""Where a job continues."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ortdeploy.ledger.records import PART_DIGITS

if TYPE_CHECKING:
    from ortdeploy.pipelines.state import State


class Earlier(Struct, frozen=True, kw_only=True):
    """How many rows failed in files of finished runs, and how many of the last ones, over which a share is kept too."""

    failed: int = 0
    lately: int = 0


class Position(Struct, frozen=True, kw_only=True):
    """Where a job continues: after `done` rows, with the part of number `part`.

    `failed` of these rows failed, the last `failed_last` of them one after the other, and `failed_earlier` of them in
    files of finished runs. `statistics` are those of earlier runs, `state` is what the next row takes.
    """

    done: int = 0
    part: int = 0
    part_digits: int = PART_DIGITS
    failed: int = 0
    failed_last: int = 0
    failed_earlier: Earlier = Earlier()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    state: "State | None" = None
