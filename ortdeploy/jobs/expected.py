"""Compares what a job is about to finish with what its manifest expects: rows of this run, read once from its parts.

Parts are what is delivered. So rows of an earlier apply that was interrupted count, and those that were repaired since,
and nothing but a part has to be kept for that.
"""

from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.records import Part
from ortdeploy.results.expectations import OTHERWISE, Chunk, changed_rows, checks_of
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted

EXPECTED = "expected"
"""The name under which the ledger keeps what was found, beside a job's statistics."""

_AT_ONCE = 4096
"""Rows that are read together."""


class Expected:
    """What is expected of one job.

    `kept` is what the ledger keeps: the `rows` of the last good run, what was `missed`, and `since` which row the rows
    are those of a run that is not compared yet, however often it is interrupted.
    """

    def __init__(self, context: JobContext, earlier: Mapping[str, Any]) -> None:
        """Take what the ledger has kept."""
        self._context = context
        self._said = context.step.expect
        self.kept: dict[str, Any] = dict(earlier.get(EXPECTED, {}))
        self._then: dict[str, Any] = {}
        if self._said:
            self.kept.setdefault("since", context.step.input.first_row)

    def __bool__(self) -> bool:
        """Whether anything is expected."""
        return bool(self._said)

    def judge(self, last: Part, waiting: Path) -> None:
        """Look at the rows of this run, whose `last` part is `waiting` for its name. Raises OrtdeployError."""
        record = self._context.output.ledger.output(self._context.output.name)
        since = self.kept["since"]
        parts = [part for part in record.parts if part.start >= since] if record is not None else []
        files = [self._context.output.folder / one.file for part in parts for one in part.files if one.file is not None]
        rows = sum(part.committed for part in parts) + last.committed
        missed = [
            *self._of_columns([*files, *([] if last.file is None else [waiting])]),
            *filter(None, [changed_rows(self._said, rows, self.kept.get("rows"))]),
        ]
        self.kept["missed"] = missed
        for one in missed:
            log.warning("rows.unexpected", reason=one)
        if missed and self._said.get(OTHERWISE, "fail") == "fail":
            raise OrtdeployError(
                f"the rows of this run are not as expected: {'; '.join(missed)}. The last part is not committed. If "
                "they are right, change expect: and apply again; else apply --new-run once what is wrong is mended"
            )
        self._then = {"since": last.end} | ({} if missed else {"rows": rows})

    def committed(self) -> None:
        """Keep that the rows of this run are compared, with the commit of their last part."""
        self.kept |= self._then

    def _of_columns(self, files: list[Path]) -> Iterator[str]:
        """Yield what is not as expected of columns."""
        checks = checks_of(self._said)
        output = self._context.step.output
        named = {name: "array" if output.format == "npy" else name for name in checks}
        if not files or not checks:
            return
        wrong: dict[str, str] = {}
        wanted = Wanted(dtypes={}, keys=tuple(dict.fromkeys(named.values())))
        with open_input(
            output.format, [str(file) for file in files], str(self._context.output.folder), wanted
        ) as source:
            for block in source.blocks(0, repeat(_AT_ONCE)):
                for name, found in checks.items():
                    chunk = Chunk(block.key(named[name]))
                    try:
                        for check in found if name not in wrong else ():
                            check.add(chunk)
                    except (ValueError, TypeError):
                        wrong[name] = "a value is no number"
        for name, found in checks.items():
            missed = [wrong[name]] if name in wrong else filter(None, (check.missed() for check in found))
            yield from (f"{name}: {one}" for one in missed)
