"""Compares the rows of a run with what its manifest expects, before the run counts as good.

Rows are counted in their parts, which are what is delivered. So rows of an earlier apply that was interrupted count,
and those that were repaired since. Shards count their parts as they make them, and these counts are joined.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import OWN
from ortdeploy.ledger.records import OutputRecord, Part
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.expectations import OTHERWISE, Counts, changed_rows
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.types import FLOATING, WIDER

EXPECTED = "expected"
"""The name under which the ledger keeps what was found, beside a job's statistics."""

COUNTS = "counts"
"""The name under which the receipt of a part has what was counted of its rows."""

_AT_ONCE = 4096
"""Rows that are read together."""

Local = Callable[[str], AbstractContextManager[Path]]
"""Opens a file of an output by its name, as a path on this machine."""


def counts_of(step: RunJob, path: Path | None) -> dict[str, Any]:
    """Return what a receipt says of the rows in the file of a part, if its job expects something of them."""
    if not step.expect:
        return {}
    counts = Counts(step.expect)
    if path is not None:
        _count(counts, step, path)
    return {EXPECTED: {COUNTS: counts.plain()}}


def _count(counts: Counts, step: RunJob, path: Path) -> None:
    """Count the rows in a file."""
    names = {name: "array" if step.output.format == "npy" else name for name in counts.columns}
    if not names:
        return
    wanted = Wanted(dtypes={}, keys=tuple(dict.fromkeys(names.values())), dialect=OWN)
    kinds = _kinds(step) if step.output.format == "csv" else {}
    with open_input(step.output.format, [str(path)], str(path.parent), wanted) as source:
        for block in source.blocks(0, repeat(_AT_ONCE)):
            for name, column in names.items():
                counts.add(name, _as_in_other_formats(block.key(column), kinds.get(name)))


def _kinds(step: RunJob) -> dict[str, str | None]:
    """Return the types of those columns of an output of which the plan knows one."""
    results = zip(step.output.columns, step.output.dtypes, strict=True)
    return {**step.input.types, **{name: WIDER.get(dtype or "", dtype) for name, dtype in results}}


def _as_in_other_formats(column: Column, kind: str | None) -> Column:
    """Return cells of CSV by which NaN, numbers and booleans count as those of the formats that have types do."""
    if kind == "bool":
        return [cell.lower() for cell in column]
    if kind not in FLOATING:
        return column
    try:
        return np.array([float(cell or "nan") for cell in column], kind)
    except ValueError:  # a value of a key that is no number, which CSV holds too
        return column


class Expected:
    """What is expected of one job.

    `kept` is what the ledger keeps: the `rows` of the last good run and of the one `before`, what was `missed`, from
    which row on the last comparison looked (`first`) and how many rows it has `counted`, the `end` of an input whose
    last rows wait, with the digest of its files, and `since` which row the rows are those of a run that is not compared
    yet, however often it is interrupted.
    """

    def __init__(self, step: RunJob, earlier: Mapping[str, Any]) -> None:
        self._step, self._said = step, step.expect
        self.kept = {name: one for name, one in earlier.get(EXPECTED, {}).items() if name != COUNTS}
        self._then: dict[str, Any] = {}
        if self._said:
            self.kept.setdefault("since", step.input.first_row)
        else:
            self.kept.pop("missed", None)  # of a run before, when something was expected

    def __bool__(self) -> bool:
        """Whether anything is expected."""
        return bool(self._said)

    def is_due(self, record: OutputRecord | None) -> bool:
        """Return whether committed rows were never compared."""
        return bool(self) and record is not None and record.rows > self.kept["since"]

    def is_due_again(self, record: OutputRecord) -> bool:
        """Return whether all rows were compared, and some of them have a result only since."""
        if not self or "first" not in self.kept or record.rows != self.kept["since"]:
            return False
        return self.kept.get("counted") != _committed(_parts(record, self.kept["first"]))

    def judge(
        self,
        record: OutputRecord | None,
        local: Local,
        *,
        last: tuple[Part, Path] | None = None,
        counted: Mapping[int, Mapping[str, Any]] | None = None,
        again: bool = False,
    ) -> None:
        """Look at the rows of this run, or `again` at those of the one that was compared last. Raises OrtdeployError.

        Their `last` part is waiting at a path for its name, so what was found counts once that is `committed`.
        `counted` are counts of parts, by number.
        """
        since = self.kept["first" if again else "since"]
        parts = _parts(record, since)
        counts = Counts(self._said)
        for part in parts:
            if not counts.join((counted or {}).get(part.number, {})):
                self._read(counts, [one.file for one in part.files if one.file is not None], local)
        if last is not None and last[0].file is not None:
            _count(counts, self._step, last[1])
        rows = self.kept["counted"] = _committed([*parts, *([last[0]] if last else [])])
        before = self.kept.get("before" if again else "rows")
        missed = [*counts.missed(), *filter(None, [changed_rows(self._said, rows, before)])]
        self.kept["missed"] = missed
        end = last[0].end if last is not None else max((part.end for part in parts), default=since)
        self._then = {"since": end, "first": since, "rows": before if missed else rows, "before": before}
        if again:
            self.committed()
        for one in missed:
            log.warning("rows.unexpected", reason=one)
        if missed and self._said.get(OTHERWISE, "fail") == "fail":
            if last is not None:
                self.kept["end"] = [last[0].end, _digest(self._step)]
            raise OrtdeployError(f"the rows of this run are not as expected: {'; '.join(missed)}. {_advice(last)}")

    def committed(self) -> None:
        """Keep that the rows of this run are compared, with the commit of their last part."""
        self.kept |= self._then
        self.kept.pop("end", None)

    def _read(self, counts: Counts, files: Sequence[str], local: Local) -> None:
        for file in files if counts.columns else ():
            try:
                with local(file) as path:
                    _count(counts, self._step, path)
            except FileNotFoundError as error:
                raise OrtdeployError(
                    f"{self._step.output.shown}/{file} is gone, and its rows are to be compared with expect:. Restore "
                    "it from a copy, or leave expect: out"
                ) from error


def _parts(record: OutputRecord | None, since: int) -> list[Part]:
    """Return the parts with rows from one on; compact may have joined the first of them with rows before."""
    return [] if record is None else [part for part in record.parts if part.end > since]


def _committed(parts: Sequence[Part]) -> int:
    return sum(part.committed for part in parts)


def end_of_input(step: RunJob, earlier: Mapping[str, Any]) -> int | None:
    """Return the row before which the input ended when its rows were not as expected; None if it is another now."""
    end, digest = earlier.get(EXPECTED, {}).get("end", (None, None))
    return end if digest is not None and digest == _digest(step) else None


def _digest(step: RunJob) -> str:
    return hashlib.sha256(repr(list(step.input.files)).encode()).hexdigest()


def in_folder(folder: Path) -> Local:
    """Return what opens files of an output in its folder on this machine."""
    return lambda file: nullcontext(folder / file)


def _advice(last: tuple[Part, Path] | None) -> str:
    where, how = "The last part is not committed", "apply again"
    if last is None:
        where, how = "All parts are committed", "apply again, or plan, run and finish shards again"
    return f"{where}. If they are right, change expect: and {how}; else apply --new-run once what is wrong is mended"
