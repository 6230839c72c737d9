"""What is on the disk of committed parts, and of one that was being published."""

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from ortdeploy.ledger.integrity import committed_rows
from ortdeploy.ledger.records import Begun, OutputRecord, Part

CONTENT = b"two rows"
WHOLE = Part(
    number=0, start=0, rows=2, committed=2, failed=0, skipped=0, file=".kept", bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(), mtime_ns=1,
)  # fmt: skip
RECORD = OutputRecord(
    output="out", deployment="d", job="run", identity={}, status="running", run="r", started="", ended=None,
    reason=None, first_row=0, batch_size=None, statistics={}, part_digits=8, parts=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "there", "content", "rows"),
    [
        ("part-0", ".kept", CONTENT, 2),
        ("part-0", "part-0", CONTENT, 2),
        ("part-0", "part-1", CONTENT, 0),
        ("part-0", "part-0", b"too rows", 0),
        (None, ".kept", CONTENT, 0),  # not whole: its rows go on
    ],
)
def test_a_part_that_was_being_published_counts_if_its_file_is_there(
    tmp_path: Path, name: str | None, there: str, content: bytes, rows: int
) -> None:
    (tmp_path / there).write_bytes(content)
    assert committed_rows(replace(RECORD, begun=Begun(part=WHOLE, name=name)), tmp_path) == rows
    assert committed_rows(RECORD, tmp_path) == 0
