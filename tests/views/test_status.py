"""The lines below the table of `status`."""

from ortdeploy.ledger.records import OutputRecord
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import JobStatus

RECORD = OutputRecord(
    output="outbox/run", deployment="demo", job="run", identity={}, status="failed", run="4cb816e6f137",
    started="2026-01-02T03:04:05Z", ended="2026-01-02T03:05:06Z", reason="the disk is full", first_row=0, batch_size=None,
    statistics={}, part_digits=8, parts=(),
)  # fmt: skip
LIVE = {"done": 12, "total": 40, "failed": 0, "rows_per_second": 1.0, "seconds_left": 28, "seconds": 12.0}


def test_why_the_last_run_ended_is_told_until_the_next_one_runs() -> None:
    ended = JobStatus(job="run", output="outbox/run", record=RECORD)
    assert "\nrun: the disk is full\n" in render_status([ended])
    running = JobStatus(job="run", output="outbox/run", record=RECORD, live=LIVE)
    assert "the disk is full" not in render_status([running])
