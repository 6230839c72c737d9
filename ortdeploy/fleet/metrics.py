"""A status document as a text file for node_exporter's textfile collector.

Its metrics have other names than those of a job's report (`_run.prom`): two files with one metric would end the scrape.
"""

from collections.abc import Iterator
from typing import get_args

from ortdeploy.facts.variants import shown_fact
from ortdeploy.fleet.document import Document, State, seconds_of
from ortdeploy.state.looks import LAST, NEXT
from ortdeploy.terminal_text import label_of_metric

HELP = {
    "ortdeploy_deployment_state": "1 for the state that the deployment is in, else 0.",
    "ortdeploy_deployment_info": "1, with the version that runs and the versions of what runs it.",
    "ortdeploy_deployment_wanted": "1 if the version that is wanted is the one that runs, else 0.",
    "ortdeploy_deployment_profile_since_timestamp_seconds": "Since when this profile is the chosen one.",
    "ortdeploy_deployment_profile_fact": "1 for each fact that decided the profile.",
    "ortdeploy_deployment_refused": "1 while what is wanted is refused, with the rule that refuses it.",
    "ortdeploy_deployment_refused_since_timestamp_seconds": "Since when what is wanted is refused.",
    LAST: "When ortdeploy last looked whether there is something to do.",
    NEXT: "When it should look again at the latest.",
    "ortdeploy_deployment_clock_synchronised": "1 if something keeps the device's clock right, else 0.",
    "ortdeploy_deployment_job_up": "0 if the job's last run failed or was interrupted, else 1.",
    "ortdeploy_deployment_job_rows": "Rows of the job by what became of them.",
    "ortdeploy_deployment_job_rows_left": "Rows of the job that wait to be run.",
    "ortdeploy_deployment_job_last_row_timestamp_seconds": "When the last row of the job was written.",
    "ortdeploy_deployment_job_waiting_files": "Input files of the job that wait to be run.",
    "ortdeploy_deployment_job_oldest_waiting_timestamp_seconds": "When the oldest of them came.",
    "ortdeploy_deployment_job_damaged_parts": "Parts of the job that are not as they were written.",
    "ortdeploy_deployment_job_memory_growth_bytes": "Bytes by which memory grew with 1,000 rows, if it grew steadily.",
}
"""All metrics, each of which is a gauge, with what it is."""
_DOWN = frozenset({"failed", "interrupted", "stopped"})


def render_metrics(said: Document, key: str) -> str:
    """Return the metrics of a deployment, in the text format 0.0.4; `key` tells apart those of one name."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in (*_metrics(said), *_metrics_of_jobs(said)):
        words = {"deployment": said.deployment, "key": key, **labels}
        shown = ",".join(f'{label}="{label_of_metric(text)}"' for label, text in words.items())
        head = [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge"]
        lines.setdefault(name, head).append(f"{name}{{{shown}}} {value:.3f}".removesuffix(".000"))
    return "".join(f"{line}\n" for some in lines.values() for line in some)


def _metrics(said: Document) -> Iterator[tuple[str, dict[str, str], float]]:
    for state in get_args(State):
        yield "ortdeploy_deployment_state", {"state": state}, said.state == state
    version = said.version
    yield (
        "ortdeploy_deployment_info",
        {
            "commit": version.commit or "",
            "bundle": version.bundle or "",
            "text_digest": version.text_digest or "",
            "profile": said.profile.name or "",
            "profile_reason": said.profile.reason or "",
            "ortdeploy": said.versions.ortdeploy,
            "onnxruntime": said.versions.onnxruntime,
        },
        1,
    )
    yield "ortdeploy_deployment_profile_since_timestamp_seconds", {}, seconds_of(said.profile.since)
    for name, value in said.profile.facts.items():
        fact = {"fact": name, "value": shown_fact(name, value)}
        yield "ortdeploy_deployment_profile_fact", fact, True
    yield "ortdeploy_deployment_wanted", {}, said.wanted.same
    refusal = said.refusal
    yield "ortdeploy_deployment_refused", {"rule": (refusal.rule or "") if refusal else ""}, refusal is not None
    if refusal is not None:
        yield "ortdeploy_deployment_refused_since_timestamp_seconds", {}, seconds_of(refusal.since)
    yield LAST, {}, seconds_of(said.last_look)
    if said.next_look is not None:
        yield NEXT, {}, seconds_of(said.next_look)
    if said.clock.synchronised is not None:
        yield "ortdeploy_deployment_clock_synchronised", {}, said.clock.synchronised


def _metrics_of_jobs(said: Document) -> Iterator[tuple[str, dict[str, str], float]]:
    for job in said.jobs:
        own = {"job_name": job.name}  # `job` is what Prometheus calls the scrape
        yield "ortdeploy_deployment_job_up", own, job.status not in _DOWN
        for state in ("committed", "failed", "skipped"):
            yield "ortdeploy_deployment_job_rows", {**own, "state": state}, getattr(job, state)
        for name, number in (("rows_left", job.left), ("waiting_files", job.waiting)):
            if number is not None:
                yield f"ortdeploy_deployment_job_{name}", own, number
        for name, moment in (("last_row", job.last_row), ("oldest_waiting", job.oldest_waiting)):
            if moment is not None:
                yield f"ortdeploy_deployment_job_{name}_timestamp_seconds", own, seconds_of(moment)
        yield "ortdeploy_deployment_job_damaged_parts", own, job.damaged_parts
        yield "ortdeploy_deployment_job_memory_growth_bytes", own, job.memory_growth
