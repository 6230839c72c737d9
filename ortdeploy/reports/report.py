"""Writes what a run leaves beside its parts, from the ledger: `_run.json`, `_failed.jsonl` and further forms."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ortdeploy.durations import Histogram
from ortdeploy.files.atomic import open_cached, open_whole
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import DUE, REPORT, relative
from ortdeploy.files.opening import read_text
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord, Part
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.steps import OpenSession, Plan, RowCheck, RunJob
from ortdeploy.process.leaks import GROWTH
from ortdeploy.redaction import masked_setting
from ortdeploy.reports.memory_told import told
from ortdeploy.reports.proven import reported
from ortdeploy.reports.statistics import STAGES, run_share
from ortdeploy.versions import versions

if TYPE_CHECKING:
    from ortdeploy.reports.illustrations import FailedRows, Illustrations
    from ortdeploy.results.shares import Shares

FORMAT_VERSION = 1
FAILED = "_failed.jsonl"
_PAGE = "html"


_SESSIONS = ("session", "sessions_passed_over", "layout", "providers", "placement", "sessions")


RAN_UNKNOWN: Mapping[str, Any] = {
    "components": {},
    "session": None,
    "sessions_passed_over": {},
    "layout": None,
    "providers": [],
    "placement": {},
    "sessions": [],
    "memory": {"last_rows": dict.fromkeys(("resident_bytes", "proportional_bytes", "peak_bytes"))},
}
"""What `ran_on` would return, if the process that made all parts is gone and nobody else has made any."""


class Committed(Struct, frozen=True, kw_only=True):
    """An output as the ledger has it: its entry, its failed rows as lines of JSON, and what made its parts.

    `origins` and `makers` are by digest.
    """

    entry: OutputRecord
    failures: Iterable[str]
    origins: Mapping[str, Any]
    makers: Mapping[str, MadeBy]


def committed(ledger: Ledger, entry: OutputRecord) -> Committed:
    """Return what a report says of an output; `entry` may say of it what the ledger does not know yet."""
    return Committed(
        entry=entry,
        failures=ledger.failures(entry.output),
        origins=ledger.provenance(entry.origins),
        makers=ledger.makers(entry),
    )


def write_report(
    folder: Path, of: Committed, plan: Plan, step: RunJob, *, digest: str, ran: Mapping[str, Any], seconds: float
) -> None:
    """Write the files, each whole or not at all. Raises OSError.

    `digest` is that of what the plan says of the job; `ran` is what `ran_on` returns; the last run took `seconds`.
    """
    failed = _failed_rows(step.output.reports)
    report = {
        "format_version": FORMAT_VERSION,
        **_course(of.entry, seconds),
        "failures": _write_failed(folder, of.failures, failed),
        "plan": digest,
        "manifest": next(fact.value for fact in plan.facts if fact.kind == "manifest"),
        "invocation": _invocation(plan),
        "identity": dict(of.entry.identity),
        "model": _model(plan, step),
        **({"components": ran["components"]} if step.pipeline else {}),
        "adapter": " + ".join(step.adapters.always) or None,
        **{name: ran[name] for name in _SESSIONS},
        "row_independence": _row_independence(step.row_check, of.entry.statistics),
        "proven": reported(step, _openings(plan), of.entry.statistics),
        **_measured(of.entry.statistics),
        "memory": _memory(step, ran, of.entry.statistics),
        **({"machine": ran["machine"]} if "machine" in ran else {}),
        **({"workers": ran["workers"], "shares": reported_shares(ran["shares"])} if "workers" in ran else {}),
        **_parts(of),
        "versions": versions(),
    }
    _write(folder, report)
    if failed is not None:
        shown = _illustrations(folder, plan.folder, of.entry, step, failed)
        _write_forms(folder, report, step.output.reports, shown)


def _failed_rows(forms: Collection[str]) -> "FailedRows | None":
    """Return what keeps failed rows for further forms of the report; None without such forms."""
    if not forms:
        return None
    from ortdeploy.reports.illustrations import FailedRows  # noqa: PLC0415  few jobs ask for further forms

    return FailedRows(wanted=_PAGE in forms)


def _course(record: OutputRecord, seconds: float) -> dict[str, Any]:
    """Return the entries on how the job went."""
    return {
        "run": record.run,
        "deployment": record.deployment,
        "job": record.job,
        "status": record.status,
        "reason": record.reason,
        "started": record.started,
        "ended": record.ended,
        "seconds": round(seconds, 6),
        "rows": _row_counts(record),
    }


def _memory(step: RunJob, ran: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry on memory: what was allowed and predicted, what was taken, and what is told of it."""
    return {
        "limit_bytes": step.limits.memory,
        "predicted_bytes": step.limits.forecast.total_of(ran["layout"]) if step.limits.forecast else None,
        "resident_bytes": ran["memory"]["last_rows"]["resident_bytes"],
        "proportional_bytes": ran["memory"]["last_rows"]["proportional_bytes"],
        "by_stage": ran["memory"],
        "growth": dict(statistics.get(GROWTH, {})),
        "told": list(told(statistics)),
    }


def _parts(of: Committed) -> dict[str, Any]:
    """Return the entries on parts, and on what made them."""
    return {
        "parts": [reported_part(part) for part in of.entry.parts],
        "forgotten": to_builtins(of.entry.forgotten),
        "kept": None if of.entry.begun is None else reported_part(of.entry.begun.part),
        "provenance": dict(of.origins),
        "deployments": {digest: _maker(one) for digest, one in of.makers.items()},
    }


def _write(folder: Path, report: Mapping[str, Any]) -> None:
    with open_whole(folder / REPORT) as file:
        file.write((json.dumps(report, indent=2) + "\n").encode())


def _write_forms(folder: Path, report: Mapping[str, Any], forms: Iterable[str], shown: "Illustrations") -> None:
    from ortdeploy.reports.catalogue import REPORTS  # noqa: PLC0415  few jobs ask for further forms

    for name in forms:
        form = REPORTS[name]
        with open_whole(folder / form.FILE) as file:
            file.write(form.render(report, shown).encode(errors="backslashreplace"))


def _illustrations(
    folder: Path, root: str, record: OutputRecord, step: RunJob, failed: "FailedRows"
) -> "Illustrations":
    """Return failed rows and, if the job has ended, committed ones. A problem with showing them ends no run."""
    from ortdeploy.reports.illustrations import Illustrations  # noqa: PLC0415  few jobs ask for further forms

    found = Illustrations(failed=tuple(failed.first), failed_rows=failed.count)
    if record.status == "running" or _PAGE not in step.output.reports:
        return found
    from ortdeploy.reports import gallery  # noqa: PLC0415  only for a page

    try:
        return replace(found, examples=gallery.examples(folder, root, record, step))
    except Exception as error:  # noqa: BLE001  libraries raise exceptions of any type
        return replace(found, why_none=gallery.why_not(error))


def _write_failed(folder: Path, failures: Iterable[str], failed: "FailedRows | None") -> dict[str, dict[str, int]]:
    """Write the failed rows; return how many there are by stage and code. The folder is synced with the report."""
    counts: dict[str, Counter[str]] = {}
    path, lines = folder / FAILED, iter(failures)
    first = next(lines, None)
    if first is None and path.is_file() and path.stat().st_size == 0:
        return {}
    with open_whole(path, folder_too=False) as file:
        for line in chain((first,), lines) if first is not None else ():
            file.write(f"{line}\n".encode())
            entry = json.loads(line)
            counts.setdefault(entry["stage"], Counter())[entry["code"]] += 1
            if failed is not None:
                failed.note(entry)
    return {stage: dict(codes) for stage, codes in counts.items()}


_CHANGED_SINCE = "parts have been put together or completed since the last run; the next one shows rows again"


def report_due(folder: Path) -> None:
    """Note that rows of an ended job change: should this process be killed, the next command renews the report."""
    with open_cached(folder / DUE):
        pass


def report_written(folder: Path) -> None:
    """Note that the report is as new as the rows, also on the store."""
    (folder / DUE).unlink(missing_ok=True)


def renew_report(
    folder: Path,
    record: OutputRecord,
    failures: Iterable[str],
    forms: Collection[str] = (),
    *,
    why_none: str = _CHANGED_SINCE,
) -> None:
    """Rewrite the files with the parts and failed rows of now; everything else in them stays. Raises OSError.

    `why_none` is why a page shows no rows.
    """
    try:
        report = read_json(read_text(folder / REPORT))
        report |= {"rows": _row_counts(record), "parts": [reported_part(part) for part in record.parts]}
    except (FileNotFoundError, ValueError, TypeError):  # was carried away; the next run writes it
        return
    failed = _failed_rows(forms)
    report["failures"] = _write_failed(folder, failures, failed)
    _write(folder, report)
    if failed is not None:
        from ortdeploy.reports.illustrations import Illustrations  # noqa: PLC0415  few jobs ask for further forms

        shown = Illustrations(failed=tuple(failed.first), failed_rows=failed.count, why_none=why_none)
        _write_forms(folder, report, forms, shown)


def _invocation(plan: Plan) -> dict[str, Any]:
    """Return what the command line said, without secrets; overlays by their paths from the manifest's folder."""
    return {
        "arguments": list(plan.arguments),
        "bundle": plan.bundle,
        "profile": plan.profile,
        "choice": None if plan.choice is None else to_builtins(plan.choice),
        "overlays": [relative(path, plan.folder) for path in plan.overlays],
        "sets": list(map(masked_setting, plan.sets)),
    }


def _row_independence(check: RowCheck, statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether rows' results were compared in other batches, and how often rows got other neighbours."""
    rtol, atol = check.agree or (None, None)
    return {
        "compared": check.agree is not None,
        "rtol": rtol,
        "atol": atol,
        "why_not": check.why_not,
        "declared_by": list(check.declared),
        "batches_cut_anew": statistics.get("batches_cut_anew", 0),
        "batches_halved": statistics.get("batches_halved", 0),
    }


def _openings(plan: Plan) -> list[OpenSession]:
    return [one for one in plan.steps if isinstance(one, OpenSession)]


def _model(plan: Plan, step: RunJob) -> dict[str, Any]:
    """Return the entry on what was run; a pipeline has no file of its own."""
    paths = [one.path for one in plan.steps if isinstance(one, OpenSession) and one.session == step.session]
    return {"name": step.model, "path": paths[0] if paths else None, "sha256": step.identity["model"]}


def _measured(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all runs of the job have measured."""
    kept = statistics.get("stages", {})  # none, if the job was killed before its first commit
    stages = {name: Histogram.from_plain(kept[name]) if name in kept else Histogram() for name in STAGES}
    return {
        "seconds_of_all_runs": statistics.get("seconds", 0.0),
        "session_run": {**durations(stages["run"]), "buckets": stages["run"].upper_edges()},
        "session_run_share": run_share(statistics),
        "stages": {name: durations(histogram) for name, histogram in stages.items()},
        "adapter_rows": statistics.get("adapter_rows", {}),
        **_written(statistics.get("written", {}), stages["run"].total),
        "retries": statistics.get("retries", 0),
        "timeline": statistics.get("timeline", []),
        "samples": statistics.get("samples", []),
        "events": statistics.get("events", []),
        "peak_memory_bytes": statistics.get("peak_memory_bytes"),
        "process": statistics.get("process", {}),
        "expectations_missed": statistics.get("expected", {}).get("missed", []),
    }


def _written(counts: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """Return the entry on texts; nothing if the job wrote none."""
    if not counts:
        return {}
    return {"written": {**counts, "tokens_a_second": round(counts["tokens"] / seconds, 3) if seconds else None}}


def reported_shares(shares: "Shares") -> dict[str, Any]:
    """Return the progress of several workers, without the entry `workers`."""
    plain = to_builtins(shares)
    del plain["workers"]
    return {**plain, "left": [list(run) for run in shares.left]}


def reported_part(part: Part) -> dict[str, Any]:
    """Return the report's entry on a part: the ledger's record without the file's time, which only ortdeploy uses."""
    plain: dict[str, Any] = to_builtins(part)
    del plain["mtime_ns"]
    for revision in plain["revisions"]:
        del revision["mtime_ns"]
    return plain


def _maker(one: MadeBy) -> dict[str, Any]:
    """Return what is known of a deployment that made parts."""
    return {"name": one.name, "profile": one.profile, "identity": dict(one.identity)}


def _row_counts(record: OutputRecord) -> dict[str, int]:
    counts = {"committed": record.committed, "failed": record.failed_in_parts, "skipped": record.skipped}
    return {"input": record.rows - record.withdrawn, **counts}


def durations(run_times: Histogram) -> dict[str, Any]:
    """Return the entry on the times of a stage or of a session's runs, in seconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    percentiles = {name: run_times.percentile(share) for name, share in shares.items()}
    seconds, cpu = round(run_times.total, 6), round(run_times.cpu, 6)
    return {"count": run_times.count, "seconds": seconds, "cpu_seconds": cpu, **percentiles}
