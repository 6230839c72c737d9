"""Counts the parts of a plan that workers have decided, for the report and for `status`; nothing is changed."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from statistics import median

from ortdeploy.files.names import BOUND
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.ledger.open_plans import FOLDER, open_plans
from ortdeploy.parts.parallel_map import in_threads
from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.part_table import PartTable, read_part_table
from ortdeploy.plan.plan_file import decode
from ortdeploy.results.shares import ProcessorShare, Shares, SlowPart, WorkerShare

SLOW = 4
"""A part is slow if it takes longer than this many medians."""

_STAGED = ".part-"
_LEAST_UNWRITTEN = 60.0
_MOST_SLOW = 10


def shares_of(
    table: PartTable,
    receipts: Mapping[int, Receipt],
    left: Collection[int],
    unwritten: Mapping[int, float] | None = None,
) -> Shares:
    """Return each worker's share of the decided parts. `unwritten`: seconds since the last write to parts in work."""
    times = [float(one.statistics["seconds"]) for one in receipts.values()]
    middle = median(times) if times else None
    slow = [*_slow(receipts.values(), middle), *_left_alone(table, unwritten or {}, middle)]
    return Shares(
        parts=len(table),
        decided=len(receipts),
        rows=sum(one.part.rows for one in receipts.values()),
        all_rows=table.end - table.first_row,
        failed=sum(one.part.failed for one in receipts.values()),
        workers=tuple(_workers(receipts.values())),
        slow=tuple(sorted(slow, key=lambda one: -one.seconds)[:_MOST_SLOW]),
        left=tuple(_runs(sorted(left))),
        median=middle,
        mixed_workers=tuple(_mixed(receipts.values())),
    )


def worker_name(receipt: Receipt) -> str:
    """Return the worker that made a part, as people call it."""
    return f"{receipt.worker.get('host')} {receipt.worker.get('shard')}"


def open_shares(output: SharedPlace) -> Shares | None:
    """Return the progress of the plan that workers are running on an output; None if there is none.

    What cannot be read is left out; `finish` reports what is wrong with it. Raises OrtdeployError if a store does not
    answer.
    """
    with suppress(OSError, ValueError, TypeError, LookupError):
        for plan in sorted(open_plans(output)):
            folder = f"{FOLDER}/{plan}"
            table = read_part_table(output.read(f"{folder}/{BOUND}") or b"")
            receipts = {one.part.number: one for one in _receipts(output, folder)}
            left = [part.number for part in table if part.number not in receipts]
            return shares_of(table, receipts, left, _unwritten(output, folder, set(left)))
    return None


def _receipts(output: SharedPlace, folder: str) -> Iterator[Receipt]:
    names = sorted(one for one in output.names(folder) if one.startswith("part-") and one.endswith(".json"))
    read = partial(_receipt, output)
    yield from filter(None, in_threads(read, (f"{folder}/{name}" for name in names), output.at_once))


def _receipt(output: SharedPlace, name: str) -> Receipt | None:
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        receipt: Receipt = decode(Receipt, json.loads(output.read(name) or b""))
        return receipt
    return None


def _unwritten(output: SharedPlace, folder: str, left: Collection[int]) -> dict[int, float]:
    """Return for each part in work how many seconds ago it was last written."""
    found: dict[int, float] = {}
    for name, written in output.times(folder, _STAGED):
        number = name.removeprefix(_STAGED).partition(".")[0]
        if number.isdecimal() and int(number) in left:
            age = max(time.time() - written, 0.0)
            found[int(number)] = min(age, found.get(int(number), age))
    return found


def _slow(receipts: Iterable[Receipt], middle: float | None) -> Iterator[SlowPart]:
    for one in receipts:
        seconds = float(one.statistics["seconds"])
        if middle is not None and seconds > SLOW * middle:
            start = one.part.start
            yield SlowPart(
                part=one.part.number,
                start=start,
                end=start + one.part.rows - 1,
                seconds=round(seconds, 3),
                worker=worker_name(one),
            )


def _left_alone(table: PartTable, unwritten: Mapping[int, float], middle: float | None) -> Iterator[SlowPart]:
    for number, seconds in unwritten.items():
        if seconds > max(_LEAST_UNWRITTEN, SLOW * (middle or 0.0)):
            part = table.part(number)
            yield SlowPart(part=number, start=part.start, end=part.end - 1, seconds=round(seconds, 3), worker=None)


def _workers(receipts: Iterable[Receipt]) -> Iterator[WorkerShare]:
    parts: dict[str, list[Receipt]] = {}
    for one in receipts:
        parts.setdefault(worker_name(one), []).append(one)
    for name, made in parts.items():
        yield WorkerShare(
            name=name,
            parts=len(made),
            rows=sum(one.part.rows for one in made),
            failed=sum(one.part.failed for one in made),
            seconds=round(sum(float(one.statistics["seconds"]) for one in made), 6),
        )


def _mixed(receipts: Iterable[Receipt]) -> Iterator[ProcessorShare]:
    """Yield how many parts each kind of processor made, the most first; nothing if there is only one kind."""
    made = Counter(str(one.worker["processor"]) for one in receipts if "processor" in one.worker)
    if len(made) > 1:
        yield from (ProcessorShare(processor=processor, parts=parts) for processor, parts in made.most_common())


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each series of consecutive numbers."""
    first = last = None
    for number in numbers:
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last
