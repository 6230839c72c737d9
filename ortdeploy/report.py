"""What a run leaves beside its parts: `_run.json` and `_failed.jsonl`, both derived from the ledger."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortdeploy.batch_pool import Member
from ortdeploy.ledger import OutputRecord
from ortdeploy.part_files import open_whole
from ortdeploy.plan import OpenSession, Plan, RunJob
from ortdeploy.plan_file import encode
from ortdeploy.timing import Histogram, sum_of
from ortdeploy.version import versions

FORMAT_VERSION = 1
REPORT = "_run.json"
FAILED = "_failed.jsonl"
_KIB = 1024


def write_report(
    *,
    folder: Path,
    record: OutputRecord,
    failures: Iterable[str],
    plan: Plan,
    step: RunJob,
    members: Sequence[Member],
    tried: Mapping[str, str],
    seconds: float,
) -> None:
    """Write both files, whole or not at all. Raises OSError."""
    with open_whole(folder / FAILED) as file:
        file.writelines(f"{line}\n".encode() for line in failures)
    session = next(s for s in plan.steps if isinstance(s, OpenSession) and s.session == step.session)
    report = {
        "format_version": FORMAT_VERSION,
        "run": record.run,
        "deployment": record.deployment,
        "job": record.job,
        "status": record.status,
        "reason": record.reason,
        "started": record.started,
        "ended": record.ended,
        "seconds": round(seconds, 6),
        "rows": _row_counts(record),
        "plan": hashlib.sha256(json.dumps(encode(plan), sort_keys=True).encode()).hexdigest(),
        "manifest": next(fact.value for fact in plan.facts if fact.kind == "manifest"),
        "identity": dict(record.identity),
        "model": {"name": step.model, "path": session.path, "sha256": session.sha256},
        "adapter": " + ".join(step.adapters.always) or None,
        "adapter_rows": _adapter_rows(members),
        "session": members[0].opened.candidate.name,
        "sessions_passed_over": dict(tried),
        "providers": [provider.name for provider in members[0].opened.candidate.providers],
        "placement": dict(members[0].opened.session.placement),
        "session_run": _durations(sum_of(member.rows.run_times for member in members)),
        "sessions": [_session(member) for member in members],
        "peak_memory_bytes": peak_memory(),
        "parts": [asdict(part) for part in record.parts],
        "versions": versions(),
    }
    with open_whole(folder / REPORT) as file:
        file.write((json.dumps(report, indent=2) + "\n").encode())


def _adapter_rows(members: Sequence[Member]) -> dict[str, int]:
    """Return how many rows of this run went through each adapter; those of the base model as none."""
    counts: Counter[str] = Counter()
    for member in members:
        counts.update({" + ".join(names) or "none": rows for names, rows in member.rows.adapter_rows.items()})
    return dict(sorted(counts.items()))


def _row_counts(record: OutputRecord) -> dict[str, int]:
    counts = {"input": record.rows}
    for name in ("committed", "failed", "skipped"):
        counts[name] = sum(getattr(part, name) for part in record.parts)
    return counts


def _session(member: Member) -> dict[str, Any]:
    """Say what one session of the job did; `failure` is why it took no more batches before the end."""
    opened = member.opened
    return {
        "session": opened.candidate.name,
        "instance": opened.instance,
        "providers": [provider.name for provider in opened.candidate.providers],
        "placement": dict(opened.session.placement),
        "cache": opened.session.cache,
        "batches": member.batches,
        "rows": member.done,
        "session_run": _durations(member.rows.run_times),
        "failure": member.failure,
    }


def _durations(run_times: Histogram) -> dict[str, Any]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    percentiles = {name: run_times.percentile(share) for name, share in shares.items()}
    return {"count": run_times.count, "seconds": round(run_times.total, 6), **percentiles}


def peak_memory() -> int | None:
    """Return the largest resident set of this process so far in bytes; None where the system does not tell.

    Linux tells it per address space in /proc; getrusage there also counts the parent from which a process was forked.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        return _peak_of_getrusage()


def _peak_of_getrusage() -> int | None:
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB
