"""What it catches: an output folder that holds something else: a finished or part-finished result of the same job with
another model, input or step, or files that ortdeploy did not write.

Why: a finished output is never overwritten, and parts of two plans are never mixed.

Example: a job ran, then its model was replaced, and the job is applied again to the same folder.

How to fix: start over with `ortdeploy apply --new-run`, which keeps the old folder under another name. Or choose
another output path. With `output: {on_upgrade: continue}`, committed rows stay and later ones run with what is there
now, if columns and format are equal. With `on_upgrade: rerun` the job starts over without being asked. If input files
change, write `input: {on_change: rerun}`, and their rows run again; with `append`, changed content is a new file. If a
file is gone of which only some rows are committed, bring it back until the job is done. If a file was repaired because
rows of it had failed, `ortdeploy retry --job NAME` runs these rows, and then the job continues. A change of providers
counts only if this machine has them: `unavailable-provider` says what to do first.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.plan.made_by import layout_difference
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.shell import command

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="finished-output", summary="Output folder holds another result")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.output.shards == "open":  # the rule unfinished-shards says what to do first
            continue
        detail = _foreign(job) if job.output.state == "foreign" else _outdated(job)
        if detail is not None:
            yield Finding(at=(*job.spec.output.at, "path"), detail=detail, job=job.spec.name)


def _foreign(job: "ResolvedJob") -> str:
    path, ledger = job.spec.output.path, job.output.ledger
    named = f" Its _output.json names the ledger {ledger}." if ledger else ""
    if job.output.shards is not None:
        return (
            f'"{path}" holds parts that shards have made, and the ledger under this state directory does not know '
            f"them.{named} Make it again with ortdeploy finish and one of the plan files, or restore it. Apply with "
            "--new-run to start over (the old folder is kept under another name)."
        )
    return (
        f'"{path}" holds files that no run recorded under this state directory wrote.{named} '
        "Restore the ledger that knows them, choose another folder, or move the files away."
    )


def _outdated(job: "ResolvedJob") -> str | None:
    """Say what has changed since the output was made, and may not; None if nothing has."""
    starts_over = job.spec.output.on_upgrade == "rerun"  # if it is asked for; else its result stays as it is
    changed = _changed(job) if job.readable and not starts_over else ()
    why_not = _why_not_upgraded(job) if changed and job.spec.output.on_upgrade == "continue" else ""
    changed = () if why_not is None else changed
    advice = _follow(job) if job.input.changed and not changed else _upgrade(job) if not job.input.changed else ""
    changed += tuple(f"input file {name}" for name in job.input.changed[:3])
    if not changed:
        return None
    what = "committed parts" if job.output.rows else "kept rows"
    what = "the finished result" if job.output.state == "finished" else what
    advice = f"{_bring_back(job)}{f' It cannot be continued: {why_not}.' if why_not else ''}{advice}"
    return (
        f'"{job.spec.output.path}" holds {what} of this job, made before these changed: {", ".join(changed)}.'
        f"{advice} Apply with --new-run to start over (the old folder is kept under another name), or choose another "
        f"output path.{_repair(job)}"
    )


def _changed(job: "ResolvedJob") -> tuple[str, ...]:
    """Return what has changed; providers that this machine does not have are the business of another rule."""
    here = all(model.usable for model in job.models)
    return tuple(_named(name, job) for name in job.changed if here or name != "providers")


def _named(name: str, job: "ResolvedJob") -> str:
    """Name the setting of an output that has changed, if its format and its columns have not."""
    output = job.spec.output
    is_same = job.output.layout is not None and layout_difference(job.output.layout, job.layout) is None
    return "rows_per_part" if name == "output" and is_same and not output.recordings else name


def _follow(job: "ResolvedJob") -> str:
    """Say how the job would follow changed files; empty if it cannot, or if some of them are gone."""
    present = {one.path for one in job.input.present}
    if job.upstream is not None or not present.issuperset(job.input.changed):
        return ""
    is_said = job.spec.input.arrivals.on_change == "rerun"  # and these are rows of another machine
    ways = [] if job.has_state or is_said else ["on_change: rerun runs the rows of changed files again"]
    ways += ["on_change: append takes changed content for a new file"] if job.output.state == "finished" else []
    return f" Under input:, {', and '.join(ways)}." if ways else ""


def _bring_back(job: "ResolvedJob") -> str:
    """Say that a file must come back within which a part ends; empty if none is gone of which rows are still to run."""
    present = {one.path for one in job.input.present}
    if job.upstream is not None or job.output.state == "finished" or present.issuperset(job.input.changed):
        return ""
    return " Some of its rows are committed and others are not: bring it back, until the job is done."


def _upgrade(job: "ResolvedJob") -> str:
    """Say how later rows would run with what is there now; empty if it is said already, or if they cannot."""
    if job.spec.output.on_upgrade != "refuse" or _why_not_upgraded(job) is not None:
        return ""
    return " Under output:, on_upgrade: continue keeps its rows, and runs later ones with what is there now."


def _repair(job: "ResolvedJob") -> str:
    """Say how the failed rows of changed files run again."""
    files = ", ".join(job.input.repairable[:3])
    if not files:
        return ""
    named = command("--job", job.spec.name)
    return (
        f" Rows of {files} had failed: if that was repaired, run ortdeploy retry with {named}, which runs these rows "
        "again from what is there now."
    )


def _why_not_upgraded(job: "ResolvedJob") -> str | None:
    """Say why rows cannot be added to what another deployment has made; None if they can."""
    if job.has_state:
        return "each row takes the state of the one before, which another deployment has made"
    if not job.output.rows:
        return None
    if job.output.layout is not None:
        return layout_difference(job.output.layout, job.layout)
    if "output" in job.changed:
        return "the format and the columns of its parts were not recorded when they were made"
    return None
