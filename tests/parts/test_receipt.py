"""A receipt lies where many machines write, so it counts only if it fits the plan's part table and itself."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.records import Part
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.receipt import Receipt, dump_receipt, load_receipt
from ortdeploy.plan.part_table import PlannedPart
from ortdeploy.results.rows import FailedRow

PLANNED = PlannedPart(number=2, start=16, end=24)
NAME = "part-00000002.jsonl"
RAN: dict[str, Any] = {
    "session": None, "sessions_passed_over": {}, "layout": None, "providers": [], "placement": {}, "sessions": [],
    "memory": {"last_rows": {"resident_bytes": 1, "proportional_bytes": None}},
    "machine": {"temperature": None, "energy_joules": {}, "devices": [{"device": "gpu", "watts": 1.5}]},
}  # fmt: skip
FAILED = FailedRow(row=17, source="a.csv", stage="run", code="bad", message="bad")
PART = Part(
    number=2, start=16, rows=8, committed=6, failed=1, skipped=1, skipped_rows=(23,), file=NAME, bytes=9, sha256="ab" * 32,
)  # fmt: skip
RECEIPT = Receipt(
    part=PART, staged=f".part-00000002.{'0a' * 16}", failed=(FAILED,), origin={"model": "m"}, statistics={}, ran=RAN,
    worker={"host": "a"}, spans=Spans.pack([("a.csv", 16, 8)]),
)  # fmt: skip


def load(raw: bytes) -> Receipt:
    return load_receipt(raw, PLANNED, NAME, "out/receipt.json")


def changed(path: str, value: Any) -> bytes:
    """Return the receipt with another value at a place."""
    data = json.loads(dump_receipt(RECEIPT))
    *way, last = path.split("/")
    one = data
    for name in way:
        one = one[int(name) if isinstance(one, list) else name]
    one[last] = value
    return json.dumps(data).encode()


def test_a_receipt_is_read_as_it_was_written() -> None:
    assert load(dump_receipt(RECEIPT)) == RECEIPT
    assert dump_receipt(RECEIPT).endswith(b"}\n")


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("format_version", 2, "format version 2"),
        ("part/number", 3, "and part 3"),
        ("part/start", 15, "rows 15 to 23"),
        ("part/rows", 9, "rows 16 to 25"),
        ("part/committed", 7, "do not add up"),
        ("part/committed", -1, "do not add up"),
        ("part/failed", -1, "do not add up"),
        ("failed", [], "not those that it counts"),
        ("part/skipped_rows", [], "not those that it counts"),
        ("part/skipped_rows", [24], "in another part"),
        ("failed/0/row", 15, "in another part"),
        ("part/file", "part-00000003.jsonl", "its file is called part-00000003"),
        ("part/file", None, "its file is called None"),
        ("staged", None, f"its file is called {NAME}"),
        ("staged", "../part", "its bytes wait as"),
        ("staged", f".part-2.{'0a' * 17}", "its bytes wait as"),
        ("part/sha256", "ab", "digest of its file is none"),
        ("part/sha256", None, "digest of its file is none"),
        ("part/revision", 1, "has revisions"),
        ("ran", {}, "session"),
        ("ran/memory", {"last_rows": {}}, "memory after the last rows"),
        ("ran/machine/devices", [{"watts": 1.5}], "a device is"),
        ("ran/machine/devices", [{"device": "gpu", "watts": "1.5"}], "a device is"),
        ("statistics", {"seconds": "long"}, "damaged"),
        ("part", 5, "damaged"),
        ("spans", {"files": 1, "packed": ["!"]}, "damaged"),
    ],
)
def test_a_receipt_that_contradicts_the_plan_or_itself_is_damaged(path: str, value: Any, why: str) -> None:
    with pytest.raises(OrtdeployError) as caught:
        load(changed(path, value))
    assert why in str(caught.value)
    assert "out/receipt.json is damaged" in str(caught.value)
    assert f"move it away together with {NAME}" in str(caught.value)


@pytest.mark.parametrize("span", [(14, 2), (16, 9), (23, 2), (-1, 1), (16, 0)])
def test_a_receipt_with_rows_of_files_that_are_in_another_part_is_damaged(span: tuple[int, int]) -> None:
    other = replace(RECEIPT, spans=Spans.pack([("a.csv", *span)]))
    with pytest.raises(OrtdeployError, match="a row of an input file is in another part"):
        load(dump_receipt(other))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[" * 100_000, b"null"])
def test_what_is_no_receipt_is_damaged(raw: bytes) -> None:
    with pytest.raises(OrtdeployError, match="is damaged"):
        load(raw)
