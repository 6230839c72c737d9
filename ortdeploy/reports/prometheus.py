"""The report as a Prometheus text file, for node_exporter's textfile collector."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ortdeploy.files.names import REPORTS
from ortdeploy.reports.illustrations import Illustrations
from ortdeploy.results.results import Status
from ortdeploy.terminal_text import label_of_metric

FILE = REPORTS["prometheus"]

_HELP = {
    "ortdeploy_job_rows": "gauge Rows of the job over all its runs, by what became of them.",
    "ortdeploy_job_up": "gauge 1 unless the job's last run failed or was interrupted, then 0.",
    "ortdeploy_job_started_timestamp_seconds": "gauge When the last run began.",
    "ortdeploy_job_ended_timestamp_seconds": "gauge When the last run ended.",
    "ortdeploy_job_duration_seconds": "gauge Duration of the last run.",
    "ortdeploy_job_retries": "gauge How often single rows were tried again.",
    "ortdeploy_job_peak_memory_bytes": "gauge Largest resident set of the process.",
    "ortdeploy_job_memory_growth_bytes": "gauge Bytes by which memory grew with 1,000 rows, if it grew steadily.",
    "ortdeploy_job_session_run_ratio": "gauge Share of the job's time in which its sessions ran.",
    "ortdeploy_job_energy_joules": "gauge Energy that the machine took during the last run, by meter.",
    "ortdeploy_job_temperature_celsius": "gauge Highest temperature during the last run, by sensor or device.",
    "ortdeploy_job_device_memory_bytes": "gauge Most memory of a device in use during the last run.",
    "ortdeploy_session_run_seconds": "summary Durations of session.run.",
}
_UP = frozenset({Status.DONE, Status.PAUSED, "running"})
_QUANTILES = {"p50": "0.5", "p90": "0.9", "p99": "0.99", "p99.9": "0.999"}


def render(report: Mapping[str, Any], shown: Illustrations) -> str:  # noqa: ARG001  numbers alone
    """Return the metrics of one job, in the text format 0.0.4."""
    lines: list[str] = []
    for name, value in _metrics(report):
        family = name.partition("{")[0].removesuffix("_sum").removesuffix("_count")
        kind, _, text = _HELP[family].partition(" ")
        if f"# TYPE {family} {kind}" not in lines:
            lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}"]
        lines.append(f"{name} {value}")
    return "".join(f"{line}\n" for line in lines)


def _metrics(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    labels = f'deployment="{label_of_metric(report["deployment"])}",job="{label_of_metric(report["job"])}"'
    for state in ("committed", "failed", "skipped"):
        yield f'ortdeploy_job_rows{{{labels},state="{state}"}}', report["rows"][state]
    yield f"ortdeploy_job_up{{{labels}}}", int(report["status"] in _UP)
    for name in ("started", "ended"):
        if report[name]:
            when = datetime.fromisoformat(report[name]).timestamp()
            yield f"ortdeploy_job_{name}_timestamp_seconds{{{labels}}}", when
    yield f"ortdeploy_job_duration_seconds{{{labels}}}", report["seconds"]
    yield f"ortdeploy_job_retries{{{labels}}}", report["retries"]
    for name, value in (
        ("peak_memory_bytes", report["peak_memory_bytes"]),
        ("memory_growth_bytes", report["memory"].get("growth", {}).get("bytes_per_1000_rows", 0)),
        ("session_run_ratio", report["session_run_share"]),
    ):
        if value is not None:
            yield f"ortdeploy_job_{name}{{{labels}}}", value
    yield from _of_the_machine(report.get("machine", {}), labels)
    runs = report["session_run"]
    for name, quantile in _QUANTILES.items():
        if runs[name] is not None:
            yield f'ortdeploy_session_run_seconds{{{labels},quantile="{quantile}"}}', runs[name]
    yield f"ortdeploy_session_run_seconds_sum{{{labels}}}", runs["seconds"]
    yield f"ortdeploy_session_run_seconds_count{{{labels}}}", runs["count"]


def _of_the_machine(machine: Mapping[str, Any], labels: str) -> Iterator[tuple[str, float]]:
    for meter, joules in machine.get("energy_joules", {}).items():
        yield f'ortdeploy_job_energy_joules{{{labels},meter="{label_of_metric(meter)}"}}', joules
    heat, devices = machine.get("temperature"), machine.get("devices", [])
    hottest = [(heat["sensor"], heat["celsius"])] if heat else []
    for sensor, celsius in (*hottest, *((one["device"], one["celsius"]) for one in devices if "celsius" in one)):
        yield f'ortdeploy_job_temperature_celsius{{{labels},sensor="{label_of_metric(sensor)}"}}', celsius
    for one in devices:
        if "memory_used_bytes" in one:
            name = f'ortdeploy_job_device_memory_bytes{{{labels},device="{label_of_metric(one["device"])}"}}'
            yield name, one["memory_used_bytes"]
