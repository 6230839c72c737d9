"""The receipt of a part, which is the decision about it: its content, its maker, and the hidden name of its bytes.

A receipt is in a folder that many machines write into, so it is checked against the plan's part table.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.contents import FileContents
from ortdeploy.facts.data import FileState
from ortdeploy.files.digests import is_digest
from ortdeploy.ledger.records import Part
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.receipt_schema import check_ran
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.part_table import PlannedPart
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.results.rows import FailedRow

FORMAT_VERSION = 1
_STAGED = re.compile(r"\.part-[0-9]+\.[0-9a-f]{32}")


class Receipt(Struct, frozen=True, kw_only=True):
    """A part as it was decided. `staged` is the hidden name of its bytes; None if no row gave a result.

    `origin` is what it was made from, `statistics` what was measured, `ran` the report's entries on the sessions, and
    `worker` the worker that made it. `marks` identify its bytes on an object store, such as an ETag. `spans` say which
    rows of input files are in it.
    """

    part: Part
    staged: str | None
    failed: tuple[FailedRow, ...]
    origin: Mapping[str, Any]
    statistics: Mapping[str, Any]
    ran: Mapping[str, Any]
    worker: Mapping[str, str]
    spans: Spans
    marks: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


class Ended(Struct, frozen=True, kw_only=True):
    """How a plan ended that is closed, and what a ledger needs besides the receipts: so one can be made without a plan.

    `made_by` made the parts of the job, of `files`; `contents` are the digests of what these held.
    """

    job: str
    made_by: MadeBy
    files: Sequence[FileState]
    contents: FileContents
    run: str
    status: str
    reason: str | None


def dump_receipt(receipt: Receipt) -> bytes:
    """Return a receipt as the bytes of its file."""
    return (json.dumps(encode(receipt, packed=True), sort_keys=True) + "\n").encode()


def load_receipt(raw: bytes, planned: PlannedPart, file: str, shown: str) -> Receipt:
    """Read the receipt of a planned part; `file` is its name if it has a file. Raises OrtdeployError."""
    try:
        receipt: Receipt = decode(Receipt, json.loads(raw))
        _check(receipt, planned, file)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise OrtdeployError(
            f"{shown} is damaged ({error}). Restore it from a copy; or, while no shard runs, move it away together "
            f"with {file}: the part is made again"
        ) from error
    return receipt


def _check(receipt: Receipt, planned: PlannedPart, file: str) -> None:
    """Raise ValueError, TypeError, LookupError or AttributeError if a receipt contradicts the part table or itself."""
    from ortdeploy.reports.statistics import check_statistics  # noqa: PLC0415  status, which loads no numpy, checks none

    if receipt.format_version != FORMAT_VERSION:
        raise ValueError(f"it has format version {receipt.format_version}")
    part = receipt.part
    if (part.number, part.start, part.start + part.rows) != (planned.number, planned.start, planned.end):
        raise ValueError(f"it is about rows {part.start} to {part.start + part.rows} and part {part.number}")
    if min(part.committed, part.failed, part.skipped) < 0 or part.committed + part.failed + part.skipped != part.rows:
        raise ValueError("its rows do not add up")
    failed = [one.row for one in receipt.failed]
    if len(failed) != part.failed or len(part.skipped_rows) != part.skipped:
        raise ValueError("its failed or skipped rows are not those that it counts")
    if any(row not in planned.rows for row in (*failed, *part.skipped_rows)):
        raise ValueError("a row of it is in another part")
    _check_spans(receipt.spans, planned)
    if (part.file is None) != (receipt.staged is None) or part.file not in {None, file}:
        raise ValueError(f"its file is called {part.file}")
    if receipt.staged is not None and not _STAGED.fullmatch(receipt.staged):
        raise ValueError(f"its bytes wait as {receipt.staged}")
    if part.file is not None and not is_digest(part.sha256):
        raise ValueError("the digest of its file is none")
    if part.revision or part.revisions:
        raise ValueError("it has revisions")
    check_statistics(receipt.statistics)
    check_ran(receipt.ran)


def _check_spans(spans: Spans, planned: PlannedPart) -> None:
    """Raise ValueError if rows of input files are not rows of a part."""
    try:
        are_within = all(first >= 0 < rows and first + rows - 1 in planned.rows for _, first, rows in spans)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not are_within:
        raise ValueError("a row of an input file is in another part")
