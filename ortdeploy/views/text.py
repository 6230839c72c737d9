"""Diagnostics, plans and results for the person at the terminal."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import Certainty, Diagnostic, Severity
from ortdeploy.plan.pipeline import walk
from ortdeploy.tensors.types import LINE_COLUMNS, format_shape
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.checks.run import CheckResult
    from ortdeploy.facts.models import AdapterFacts
    from ortdeploy.facts.preflight import MemoryForecast
    from ortdeploy.ledger.verification import VerifiedJob
    from ortdeploy.plan.steps import (
        FinishedJob,
        LoadAdapter,
        OpenSession,
        Plan,
        PlannedInput,
        PlannedProvider,
        RunJob,
    )
    from ortdeploy.planning.differences import Difference
    from ortdeploy.planning.last_good import Refusal
    from ortdeploy.planning.last_run import Changes
    from ortdeploy.planning.lock import Digested
    from ortdeploy.planning.pruning import PrunedState
    from ortdeploy.results.results import JobResult
    from ortdeploy.results.shares import Shares
    from ortdeploy.running.compaction import Compacted
    from ortdeploy.views.job_status import JobStatus

_BOLD, RED, _YELLOW, GREEN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
_WIDTH = 100
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGE = 16 * 1024 * 1024  # bytes of a model from which it is said what they take of the disk

Paint = Callable[[str, str], str]


def painter(*, color: bool) -> Paint:
    """Return a function that colors text, or one that returns it unchanged."""
    return (lambda text, code: f"{code}{text}{_RESET}") if color else (lambda text, _: text)


def render_diagnostics(diagnostics: Sequence[Diagnostic], *, color: bool) -> str:
    """Return each diagnostic as `path:line:column: severity[rule]: summary` and its detail below."""
    return "".join(f"{_render_diagnostic(diagnostic, painter(color=color))}\n" for diagnostic in diagnostics)


def _render_diagnostic(diagnostic: Diagnostic, paint: Paint) -> str:
    import textwrap  # noqa: PLC0415  only who has something to say

    span = diagnostic.span
    code = RED if diagnostic.severity is Severity.ERROR else _YELLOW
    place = paint(f"{printable(span.path)}:{span.line}:{span.column}:", _BOLD)
    head = f"{place} {paint(diagnostic.severity, code)}[{diagnostic.rule}]: {diagnostic.summary}"
    detail = textwrap.indent(
        textwrap.fill(printable(diagnostic.detail), _WIDTH, break_long_words=False, break_on_hyphens=False), "  "
    )
    assumed = "\n  (assumed: this machine does not prove it)" if diagnostic.certainty is Certainty.ASSUMED else ""
    return f"{head}\n{detail}{assumed}"


def printable(text: str) -> str:
    """Replace control characters, because text of a manifest must not control the terminal."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


_UNSAFE = re.compile(r"(?!\n|\x1b\[(?:0|1|31|32|33)m)[\x00-\x1f\x7f-\x9f]")


def safe(text: str) -> str:
    """Remove control characters except for line ends and our own colors; names come from manifests and models."""
    return _UNSAFE.sub("\ufffd", text)


def summarize(diagnostics: Sequence[Diagnostic], checked: int) -> str:
    """Return one line that a search in logs can find."""
    errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    return f"Checked {_count(checked, 'manifest')}: {_count(errors, 'error')}, {_count(warnings, 'warning')}.\n"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_plan(plans: "Sequence[Plan]", *, color: bool, verbose: bool = False) -> str:
    """Return the steps of each manifest and a summary line; `verbose` adds the facts they rest on."""
    from ortdeploy.plan.masked import masked_plan  # noqa: PLC0415  only who has plans needs it

    paint = painter(color=color)
    text = "".join(_render_one(masked_plan(plan), paint, verbose=verbose) for plan in plans)
    sessions, jobs = (_count_steps(plans, name) for name in ("OpenSession", "RunJob"))
    waiting = sum(job.waiting is not None for plan in plans for job in plan.finished)
    finished = sum(len(plan.finished) for plan in plans) - waiting
    counts = f"{_count(sessions, 'session')} to open, {_count(jobs, 'job')} to run, {finished} finished already"
    counts += f", {waiting} waiting for input" if waiting else ""
    return safe(f"{text}Plan: {counts}.\n")


def _count_steps(plans: "Sequence[Plan]", kind: str) -> int:
    return sum(type(step).__name__ == kind for plan in plans for step in plan.steps)


def _render_one(plan: "Plan", paint: Paint, *, verbose: bool) -> str:
    lines = [f"{paint(plan.deployment, _BOLD)} ({plan.manifest})"]
    renderers: dict[str, Callable[..., Iterator[str]]] = {
        "OpenSession": _render_session,
        "LoadAdapter": _render_adapter,
        "RunJob": _render_job,
    }
    for gate in plan.gates:
        session = gate.opening.candidates[0].name
        lines.append(f"  {paint('+', GREEN)} check {gate.opening.model} on {session} first: {', '.join(gate.folders)}")
    for step in plan.steps:
        lines += [f"  {line}" for line in renderers[type(step).__name__](step, paint)]
    lines += [f"  {line}" for job in plan.finished for line in _render_finished(job)]
    lines += [f"  rests on {fact.kind} {fact.name}: {fact.value}" for fact in plan.facts if verbose]
    return "\n".join(lines) + "\n\n"


def _render_session(step: "OpenSession", paint: Paint) -> Iterator[str]:
    chains = [
        (f"{candidate.count} times " if candidate.count > 1 else "")
        + ", ".join(map(_provider, candidate.providers))
        + (f", {candidate.callers} callers" if candidate.callers > 1 else "")
        for candidate in step.candidates
    ]
    model = f"{PurePath(step.path).name} (sha256 {step.sha256[:12]}…)" if step.path else _operators(step)
    yield f"{paint('+', GREEN)} open session {step.session}: {model} on {chains[0]}"
    if step.fusion is not None:
        before, after = (graph.operators if graph else "nothing" for graph in (step.fusion.before, step.fusion.after))
        yield f"    {before} before and {after} behind it in its own graph"
    for candidate, chain in zip(step.candidates[1:], chains[1:], strict=True):
        yield f"    {'and' if step.use == 'all' else 'else'} {candidate.name}: {chain}"
    for candidate in step.candidates:
        if len(candidate.providers) > 1 and candidate.predicted is None:
            yield f"    {candidate.name}: only the device can tell which nodes its providers take"
        elif candidate.predicted and len(candidate.providers) > 1:
            counts = ", ".join(f"{count} on {provider}" for provider, count in candidate.predicted.items())
            yield f"    {candidate.name}: predicted nodes, before optimization: {counts}"
    size = sum(file.size for file in step.files)
    if size >= _LARGE:
        yield f"    keeps its {format_size(size)} in the state folder: cloned where that can be, else copied, once"
    if step.thread_layouts:
        yield f"    the best of these is measured: {'; '.join(layout.name for layout in step.thread_layouts)}"
    if step.options:
        yield f"    session options{_options(dict(step.options))}"


def _operators(step: "OpenSession") -> str:
    """`Split, Transpose in one graph`: what a session of op steps runs."""
    if step.graph is None:
        return step.model
    return f"{step.graph.operators}{' in one graph' if len(step.graph.nodes) > 1 else ''}"


def _provider(provider: "PlannedProvider") -> str:
    return f"{provider.name}{_device(provider)}{_options(dict(provider.options))}"


def _device(provider: "PlannedProvider") -> str:
    device = provider.device
    return f" (device {device.index}: {device.kind} {device.name}, {device.vendor})" if device else ""


def _options(options: dict[str, object]) -> str:
    return f" {options}" if options else ""


def _adapters(step: "RunJob") -> str:
    """`adapter french`, or `adapters by language: fr french, otherwise none`."""
    chosen = step.adapters
    if chosen.column is None:
        return f"adapter {' and '.join(chosen.always)}"
    pairs = ", ".join(f"{text} {name}" for text, name in chosen.mapping.items())
    return f"adapters by {chosen.column}: {pairs}, otherwise {chosen.otherwise}"


def _render_adapter(step: "LoadAdapter", paint: Paint) -> Iterator[str]:
    yield f"{paint('+', GREEN)} load adapter {step.adapter} for {step.session} (sha256 {step.sha256[:12]}…)"


def _render_job(step: "RunJob", paint: Paint) -> Iterator[str]:
    rows = "an unknown number of" if step.input.rows is None else f"{step.input.rows:,}"
    batching = step.batching
    size = "one row a run" if batching.size is None else f"batches of {batching.size}"
    if batching.auto:
        size = "batches of a size that its first rows decide"
    if step.retry:
        yield f"{paint('+', GREEN)} run the failed rows of job {step.job} once more, in {size}"
        yield f"    writes {step.output.shown}/part-*.{step.output.format}, where they were missing"
        return
    verb = (
        f"go on with job {step.job} after {step.output.committed_rows:,} rows"
        if step.output.committed_rows
        else f"run job {step.job}"
    )
    adapter = f", {_adapters(step)}" if step.adapters.always or step.adapters.column else ""
    upstream = step.input.upstream
    source = f"{', '.join(step.input.patterns)} ({step.input.format})"
    source = source if upstream is None else f"what job {upstream.job} commits ({step.input.format})"
    yield f"{paint('+', GREEN)} {verb}: {rows} rows of {source}, {size}{adapter}"
    yield from _render_before(step)
    for planned in step.inputs:
        yield f"    {_render_input(planned)}"
    yield from _render_values(step)
    if step.row_check.declared:
        models, agree = " and ".join(step.row_check.declared), step.row_check.agree
        within = "" if agree is None else f", within rtol {agree[0]:g} and atol {agree[1]:g}"
        yield f"    a row's results may depend on the rows beside it: row_independence of {models}{within}"
    if step.timing.text:
        yield f"    runs {step.timing.text}"
    if step.limits.forecast is not None:
        yield f"    {_render_memory(step.limits.forecast)}"
    of_lines = LINE_COLUMNS if step.output.explode else ()
    columns = ", ".join(dict.fromkeys((*step.input.key, *of_lines, *step.output.columns)))
    least = "at least " if batching.auto else ""  # whole batches, of a size that is not known yet
    part = f"{least}{batching.rows_per_part:,} rows a part"
    yield f"    writes {step.output.shown}/part-*.{step.output.format}, {part}: {columns}"
    if step.output.explode:
        yield f"      one line for each item of {' and '.join(step.output.explode)}"


def _render_values(step: "RunJob") -> Iterator[str]:
    """Say what no column feeds: values of the manifest, and what items of a row hand on to the next."""
    for value in step.values:
        yield f"    {value.name} {value.dtype} {format_shape(value.shape)} = {value.content}"
    for each in walk(step.pipeline.steps) if step.pipeline else ():
        if each.state:
            beside = f"up to {each.batch} rows beside each other" if each.state_by_row else "one row at a time"
            yield f"    items of ${each.name} hand on {', '.join(name for name, _ in each.state)}: {beside}"


def _render_upgrade(step: "RunJob") -> str:
    """`rows 0 to 999 stay as they were made; those from 1,000 on run with what has changed: model, batch`."""
    first, changed = step.output.upgraded_at, ", ".join(step.output.changed)
    stay = f"rows 0 to {first - 1:,} stay as they were made; those from {first:,} on" if first else "all rows"
    return f"{stay} run with what has changed: {changed}"


def _render_memory(forecast: "MemoryForecast") -> str:
    """`memory 143 MiB of 512 MiB predicted: process 98 MiB, weights 13 MiB, …`."""
    parts = ", ".join(f"{part.what} {format_size(part.size)}" for part in forecast.parts)
    limit = f" of {format_size(forecast.limit)}" if forecast.limit else ""
    unknown = f"; only a run tells its {forecast.unknown}" if forecast.unknown else ""
    return f"memory {format_size(forecast.total)}{limit} predicted: {parts}{unknown}"


def _render_input(planned: "PlannedInput") -> str:
    steps = " → ".join([_columns(planned.columns), *(step.name for step in planned.steps)])
    return f"{planned.name} {planned.dtype} {format_shape(planned.shape)} ← {steps}"


_MOST_COLUMNS = 12
_MOST_NAMED = 3


def _columns(names: "Sequence[str]") -> str:
    """Return `a, b, c`; of many the first and the last ones, and their number."""
    if len(names) <= _MOST_COLUMNS:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_COLUMNS - 2])}, … {', '.join(names[-2:])} ({len(names)} columns)"


def _render_before(step: "RunJob") -> Iterator[str]:
    """Yield what becomes of results that are there already."""
    if step.input.rerun:
        yield f"    {_render_rerun(step)}"
    if step.output.aside is not None:
        yield f"    starts over: what {step.output.shown} holds is kept beside it as {step.output.aside}"
    if step.output.changed:
        yield f"    {_render_upgrade(step)}"


def _render_rerun(step: "RunJob") -> str:
    """Return `runs 12 rows of 1 changed file again, into their parts (inbox/a.csv); …`."""
    rows, files = step.input.rerun_rows, [one.path for one in step.input.rerun]
    names = ", ".join(files[:_MOST_NAMED]) + (" …" if len(files) > _MOST_NAMED else "")
    return (
        f"runs {_count(rows, 'row')} of {_count(len(files), 'changed file')} again, into their parts ({names}); a file "
        "with another number of rows now comes after all others"
    )


def _render_finished(job: "FinishedJob") -> Iterator[str]:
    if job.waiting is not None:
        yield f"= job {job.job} has nothing to do: {job.waiting}"
        return
    yield f"= job {job.job} is finished: {job.rows:,} rows in {job.output}"
    if job.new_run:
        yield "    nothing that it was made from has changed, so --new-run does not start it over"
    if job.left_over is not None:
        yield "    apply completes what a compact or retry that was killed has begun there"


def render_results(results: "Sequence[JobResult]", *, color: bool) -> str:
    """Return one line for each job."""
    paint = painter(color=color)
    lines = [line for one in results for line in (_render_result(one, paint), *_render_shares(one.job, one.shares))]
    return safe("".join(f"{line}\n" for line in lines))


def _render_result(result: "JobResult", paint: Paint) -> str:
    name = paint(f"job {result.job}", _BOLD)
    counts = f"{result.committed:,} rows committed, {result.failed:,} failed, {result.skipped:,} skipped"
    counts += f"; {_more_rows(result.kept)} kept for the next run" if result.kept else ""
    match result.status:
        case "nothing-to-do":
            return f"{name}: nothing to do, {result.reason or f'{result.output} is finished'}."
        case "done":
            rate = f" in {result.seconds:.2f} s" if result.seconds else ""
            return f"{name}: {paint('done', GREEN)}{rate}: {counts}, in {result.output}."
    color = _YELLOW if result.status == "paused" else RED
    return f"{name}: {paint(result.status, color)}: {counts}. {result.reason}".rstrip(". ") + "."


def _more_rows(number: int) -> str:
    return f"{number:,} more {'row is' if number == 1 else 'rows are'}"


def render_checks(results: "Sequence[CheckResult]", *, color: bool, quiet: bool = False) -> str:
    """Return one line for each golden data set and a line of counts; with `quiet`, only those that did not pass."""
    paint = painter(color=color)
    lines = []
    for result in results:
        if not quiet or result.status != "passed":
            status = paint(result.status, GREEN if result.status == "passed" else RED)
            apart = f" (largest difference {result.max_abs_diff:.3g})" if result.max_abs_diff else ""
            why = f": {result.message}" if result.message else ""
            model = f"{result.model} with {result.adapter}" if result.adapter else result.model
            lines.append(f"{status}  {model} on {result.session}: {result.check}{apart}{why}\n")
    passed = sum(result.status == "passed" for result in results)
    return safe("".join(lines) + f"{passed} of {_count(len(results), 'check')} passed.\n")


def render_adapter(adapter: "AdapterFacts") -> str:
    """Return one line for an adapter file, and one for each of its parameters."""
    versions = f"adapter version {adapter.adapter_version or '-'}, model version {adapter.model_version or '-'}"
    lines = [f"{adapter.path}: {_count(len(adapter.parameters), 'parameter')}, {versions}"]
    lines += [f"  {one.name}  {one.dtype} {format_shape(one.shape)}" for one in adapter.parameters]
    return safe("".join(f"{line}\n" for line in lines))


def render_fit(adapter: str, model: str, problems: "Sequence[str]", left_out: "Sequence[str]") -> str:
    """Return whether an adapter fits a model, why not, and which inputs keep their defaults."""
    lines = [f"{adapter} does not fit {model}: {problem}" for problem in problems] or [f"{adapter} fits {model}."]
    lines += [f"It leaves {', '.join(left_out)} at their defaults."] if left_out else []
    return safe("".join(f"{line}\n" for line in lines))


def render_lock(files: "Sequence[Digested]") -> str:
    """Return one line for each file: digest, name, and whether the digest is locked, written, open or changed."""
    return safe("".join(f"{file.sha256}  {file.path}  {file.state}\n" for file in files))


def render_status(jobs: "Sequence[JobStatus]", refusals: "Sequence[Refusal]" = (), *, verbose: bool = False) -> str:
    """Return one line for each job: name, state, rows, times, progress of a run; with `verbose`, also its parts.

    Refused manifests come last, if their last good versions run in their place.
    """
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "COMMITTED", "FAILED", "SKIPPED", "OUTPUT", "LAST RUN")]
    for one in jobs:
        if one.record is None:
            rows.append((one.job, "never run", "0", "0", "0", one.output, "-"))
            continue
        counts = (str(one.record.committed), str(one.failed), str(one.record.skipped))
        rows.append((one.job, one.record.status, *counts, one.output, one.record.ended or one.record.started))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    live = [_render_live(one.job, one.live) for one in jobs if one.live]
    kept = [f"{one.job}: {_more_rows(one.kept)} kept for the next run" for one in jobs if one.kept]
    kept += [f"{one.job}: {_count(one.rerun, 'row')} of changed files to run again" for one in jobs if one.rerun]
    kept += [
        f"{one.job}: {_count(one.leaving, 'row')} of changed files to leave their parts" for one in jobs if one.leaving
    ]
    needed = [line for one in jobs if one.delivered for line in _render_delivered(one, verbose=verbose)]
    files = [
        f"{one.output}/{part.file}: {part.rows} rows from {part.start}"
        for one in jobs
        if one.record
        for part in one.record.parts
        if verbose
    ]
    shared = [line for one in jobs for line in _render_shares(one.job, one.shares)]
    refused = [one.text for one in refusals]
    return safe("".join(f"{line}\n" for line in (*table, *live, *shared, *kept, *needed, *files, *refused)))


def _render_shares(job: str, shares: "Shares | None") -> Iterator[str]:
    """Yield how far several workers are, what each has made, and what is slow or left."""
    if shares is None:
        return
    failed = f", {shares.failed:,} failed" if shares.failed else ""
    rows = f"{shares.rows:,} of {shares.all_rows:,} rows{failed}"
    yield f"{job}: {shares.decided:,} of {_count(shares.parts, 'part')} decided: {rows}"
    runs = [f"{first}" if first == last else f"{first} to {last}" for first, last in shares.left]
    if runs:
        left = sum(last - first + 1 for first, last in shares.left)
        yield f"{job}: {_count(left, 'part')} left: {_some(runs, _MOST_FILES)}"
    slowest = sorted(shares.workers, key=lambda one: (-one.failed, -one.seconds_a_part))
    for one in slowest[:_MOST_FILES]:
        failed = f", {one.failed:,} failed" if one.failed else ""
        made = f"{_count(one.parts, 'part')}, {_count(one.rows, 'row')}{failed}"
        yield f"{job}: {one.name}: {made}, {one.seconds_a_part:.2f} s a part"
    if len(slowest) > _MOST_FILES:
        yield f"{job}: and {_count(len(slowest) - _MOST_FILES, 'more worker')}, with fewer failed rows and quicker"
    for part in shares.slow:
        where = f"{job}: part {part.part} (rows {part.start} to {part.end})"
        median = "" if shares.median is None else f"; the median is {shares.median:.2f} s"
        if part.worker is None:
            yield f"{where}: nothing was written for {part.seconds:.0f} s{median}"
        else:
            yield f"{where} took {part.seconds:.2f} s on {part.worker}{median}"


_MOST_FILES = 8


def _render_delivered(one: "JobStatus", *, verbose: bool) -> Iterator[str]:
    """Yield the files of a job that its readers still need, and those that may be carried away."""
    needed: dict[tuple[str, ...], list[str]] = {}
    for one_file in one.delivered:
        needed.setdefault(one_file.needed_by, []).append(one_file.file)
    free = needed.pop((), [])
    most = len(one.delivered) if verbose else _MOST_FILES
    for jobs, names in needed.items():
        yield f"{one.job}: {' and '.join(jobs)} still {_needs(jobs)} {_count(len(names), 'file')}: {_some(names, most)}"
    if one.removable and free:
        yield f"{one.job}: {_count(len(free), 'file')} may be carried away, every reader has them: {_some(free, most)}"


def _needs(jobs: "Sequence[str]") -> str:
    return "needs" if len(jobs) == 1 else "need"


def _some(names: "Sequence[str]", most: int) -> str:
    more = f", and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def render_verification(jobs: "Sequence[VerifiedJob]", *, quiet: bool = False) -> str:
    """Return one line for each part that has changed, and one for each job; with `quiet`, only the former."""
    damaged = [f"{one.output}/{part.file} {part.damage}" for one in jobs for part in one.damaged]
    counts = [f"{one.job}: {_verified(one)}" for one in jobs if not quiet]
    return safe("".join(f"{line}\n" for line in (*damaged, *counts)))


def _verified(one: "VerifiedJob") -> str:
    """`3 of 4 parts in outbox/run are as they were written (12 MiB)`, and what is unknown."""
    if not one.parts:
        return f"no part is committed in {one.output}"
    size = format_size(sum(part.bytes for part in one.sound))
    are = "is as it was" if len(one.parts) == 1 else "are as they were"
    text = f"{len(one.sound):,} of {_count(len(one.parts), 'part')} in {one.output} {are} written ({size})"
    if one.carried_away:
        text += f"; {len(one.carried_away):,} carried away"
    if one.unverifiable:
        text += f"; of {len(one.unverifiable):,} an older ortdeploy noted no SHA-256, and only their size was compared"
    return text


def render_state_copy(action: str, state: str, copy: str, outputs: int) -> str:
    """Return one line with the paths of the state folder and of the copy, and the number of outputs."""
    way = f"{state} is copied to {copy}" if action == "backup" else f"{copy} is brought back to {state}"
    return safe(f"{way}: {_count(outputs, 'output')}\n")


def render_pruned(states: "Sequence[PrunedState]") -> str:
    """Return for each state folder what was freed of each cache, and what stays and why."""
    return safe("".join(map(_render_pruned, states)))


def _render_pruned(state: "PrunedState") -> str:
    word = "would be freed" if state.dry_run else "freed"
    used = "; a run is using it, so nothing is" if state.in_use else ""
    lines = [f"{state.state}: {state.freed_bytes:,} bytes {word}{used}\n"]
    for one in state.caches:
        freed = [f"{one.freed:,} {word} ({one.freed_bytes:,} bytes)"] if one.freed else []
        kept = [f"{one.kept:,} stay ({one.kept_bytes:,} bytes): {one.why}"] if one.kept else []
        lines += [f"  {one.cache}: {', '.join([*freed, *kept])}\n"] if freed or kept else []
    return "".join(lines)


def render_compaction(jobs: "Sequence[Compacted]") -> str:
    """Return one line for each job: how many parts it had, and has now."""
    lines = (
        f"{one.job}: {one.output} stays as it is: {one.why_not}\n"
        if one.why_not
        else f"{one.job}: {_count(one.before, 'part')} in {one.output}, now {one.after:,}\n"
        for one in jobs
    )
    return safe("".join(lines))


def render_differences(differences: "Sequence[Difference]", indent: str = "") -> str:
    """Return `path: old -> new` for each difference, with values as JSON has them."""
    lines = (f"{indent}{one.path}: {_value(one.old)} -> {_value(one.new)}\n" for one in differences)
    return safe("".join(lines))


def _value(value: Any) -> str:
    """Return a value as JSON; of a digest, only the beginning."""
    import json  # noqa: PLC0415  only who has differences

    from ortdeploy.planning.differences import NOTHING  # noqa: PLC0415

    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:12]}…"
    return json.dumps(value, ensure_ascii=False, default=str)


def render_changes(changes: "Sequence[Changes]") -> str:
    """Return what changed in each job since its last run."""
    return "".join(f"{safe(_changed(one))}{render_differences(one.differences, '  ')}" for one in changes)


def _changed(one: "Changes") -> str:
    if one.run is None:
        return f"job {one.job} has not run yet\n"
    return f"job {one.job} since run {one.run}:{'' if one.differences else ' nothing has changed'}\n"


def _render_live(job: str, live: Mapping[str, Any]) -> str:
    total = "" if live["total"] is None else f" of {live['total']:,}"
    left = "" if live["seconds_left"] is None else f", {live['seconds_left']:,} s left"
    rate = f"{live['rows_per_second']:,.0f} rows/s"
    used = "".join(f", {word}" for word in _used(live))
    return f"{job}: {live['done']:,}{total} rows, {live['failed']:,} failed, {rate}{left}{used}"


def _used(live: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a running job uses, if the system reports it: memory, processors, page faults, context switches."""
    if live.get("resident_bytes"):
        peak = f" (peak {format_size(live['peak_bytes'])})" if live.get("peak_bytes") else ""
        yield f"{format_size(live['resident_bytes'])} of memory{peak}"
    if "cpu_seconds_user" in live and live["seconds"]:
        yield f"{(live['cpu_seconds_user'] + live['cpu_seconds_system']) / live['seconds']:.1f} cores"
        yield f"{live['major_faults']:,.0f} major faults"
        yield f"{live['involuntary_switches']:,.0f} involuntary switches"
