"""Diagnostics, plans and results for the person at the terminal."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import Certainty, Diagnostic, Severity, Span
from ortdeploy.planning.differences import NOTHING
from ortdeploy.tensors.types import format_shape
from ortdeploy.terminal_text import printable, safe
from ortdeploy.units import format_size
from ortdeploy.views.panel import frame

if TYPE_CHECKING:
    from ortdeploy.facts.models import AdapterFacts
    from ortdeploy.ledger.backup import BroughtBack
    from ortdeploy.ledger.verification import VerifiedJob
    from ortdeploy.parts.compaction import CompactionResult
    from ortdeploy.planning.differences import Difference
    from ortdeploy.planning.last_run import Changes
    from ortdeploy.planning.lock import Digested
    from ortdeploy.planning.versions.pruning import PrunedState
    from ortdeploy.results.results import JobResult
    from ortdeploy.results.shares import Shares

BOLD, RED, YELLOW, GREEN, CYAN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[36m", "\x1b[0m"
WIDTH = 100
_INDENT = 2
_SHA256 = re.compile(r"[0-9a-f]{64}")

Paint = Callable[[str, str], str]


def painter(*, color: bool) -> Paint:
    """Return a function that colors text, or one that returns it unchanged."""
    return (lambda text, code: f"{code}{text}{_RESET}") if color else (lambda text, _: text)


LineOf = Callable[[Span], str | None]


def render_diagnostics(
    diagnostics: Sequence[Diagnostic], *, color: bool, line_of: LineOf | None = None, width: int | None = None
) -> str:
    """Return each diagnostic as `path:line:column: severity[rule]: summary`, its line of the file and its detail.

    `line_of` gives the line of the file, if it can be shown. `width` is that of the terminal, in columns, where blank
    lines separate them; None: what reads it is none, and wants the first line whole.
    """
    paint = painter(color=color)
    between = "" if width is None else "\n"  # lines that a program reads have none between them
    return between.join(_render_diagnostic(diagnostic, paint, line_of, width) for diagnostic in diagnostics)


def _render_diagnostic(diagnostic: Diagnostic, paint: Paint, line_of: LineOf | None, width: int | None) -> str:
    span = diagnostic.span
    code = RED if diagnostic.severity is Severity.ERROR else YELLOW
    line = line_of(span) if line_of is not None else None
    shown = _render_frame(line, span, (width or WIDTH) - _INDENT, code, paint) if line is not None else ""
    indent, room = " " * _INDENT, min(width or WIDTH, WIDTH + _INDENT)
    detail = wrapped(printable(diagnostic.detail), room, first=indent)
    assumed = wrapped(_ASSUMED, room, first=indent) if diagnostic.certainty is Certainty.ASSUMED else ""
    devices = f"(on {', '.join(map(printable, diagnostic.devices))})"
    where = wrapped(devices, room, first=indent) if diagnostic.devices else ""
    return f"{_head(diagnostic, code, paint, width)}{shown}{detail}{assumed}{where}"


_ASSUMED = "(assumed: this machine does not prove it)"


def _head(diagnostic: Diagnostic, code: str, paint: Paint, width: int | None) -> str:
    """Return `path:line:column: severity[rule]: summary`; what does not fit into `width` goes on in the next lines."""
    span, severity = diagnostic.span, str(diagnostic.severity)
    place = f"{printable(span.path)}:{span.line}:{span.column}:"
    said = f"{severity}[{diagnostic.rule}]: {diagnostic.summary}"
    if width is None:
        lines = f" {said}\n"
    elif len(place) + 1 + len(said.split(maxsplit=1)[0]) <= width:
        lines = wrapped(said, width, first=f"{place} ").removeprefix(place)
    else:
        lines = "\n" + wrapped(said, width, first=" " * _INDENT)
    return paint(place, BOLD) + lines.replace(severity, paint(severity, code), 1)


def wrapped(text: str, width: int, *, first: str = "", indent: str = " " * _INDENT) -> str:
    """Return lines of up to `width` columns; `first` begins the first, `indent` the others. Longer words stay whole."""
    import textwrap  # noqa: PLC0415  only if there is something to print

    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in lines)


def _render_frame(line: str, span: Span, width: int, code: str, paint: Paint) -> str:
    """Return the line with its number, and carets below the place; `  26 |   bach: {size: 64}`."""
    gutter, source, carets = frame(line, span, width)
    empty, indent = f"{' ' * (len(gutter) - 2)}| ", " " * _INDENT
    return f"{indent}{paint(gutter, CYAN)}{source}\n{indent}{paint(empty, CYAN)}{paint(carets, code)}\n"


def summarize(diagnostics: Sequence[Diagnostic], manifests: int, devices: int = 0) -> str:
    """Return one line that a search in logs can find."""
    errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    checked = [count(manifests, "manifest")] if manifests or not devices else []
    checked += [count(devices, "device file")] if devices else []
    return f"Checked {' and '.join(checked)}: {count(errors, 'error')}, {count(warnings, 'warning')}.\n"


def render_unchecked(folders: Sequence[str], width: int | None = None) -> str:
    """Return which folders were not looked into, for a terminal of `width` columns; None: on one line."""
    if not folders:
        return ""
    said = f"Not looked into: {', '.join(map(printable, folders))}. Name these folders too."
    return f"{said}\n" if width is None else wrapped(said, width)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_results(results: "Sequence[JobResult]", *, color: bool) -> str:
    """Return one line for each job."""
    paint = painter(color=color)
    lines = [
        line
        for one in results
        for line in (_render_result(one, paint), *_told(one), *render_shares(one.job, one.shares))
    ]
    return safe("".join(f"{line}\n" for line in lines))


def _render_result(result: "JobResult", paint: Paint) -> str:
    name = paint(f"job {result.job}", BOLD)
    counts = f"{count(result.committed, 'row')} committed, {result.failed:,} failed, {result.skipped:,} skipped"
    counts += f"; {count(result.ran, 'row')} of this run" if result.ran else ""
    counts += f"; {more_rows(result.kept)} kept for the next run" if result.kept else ""
    match result.status:
        case "nothing-to-do":
            return f"{name}: nothing to do, {result.reason or f'{result.output} is finished'}."
        case "done":
            rate = f" in {result.seconds:.2f} s" if result.seconds else ""
            said = f" {result.reason}." if result.reason else ""
            return f"{name}: {paint('done', GREEN)}{rate}: {counts}, in {result.output}.{said}"
    color = YELLOW if result.status == "paused" else RED
    return f"{name}: {paint(result.status, color)}: {counts}. {result.reason}".rstrip(". ") + "."


def _told(result: "JobResult") -> Iterator[str]:
    """Yield what is told of the memory of a job."""
    yield from (f"job {result.job}: {text}." for text in result.memory)


def more_rows(number: int) -> str:
    """Return `1 more row is`, `4 more rows are`."""
    return f"{number:,} more {'row is' if number == 1 else 'rows are'}"


def render_adapter(adapter: "AdapterFacts") -> str:
    """Return one line for an adapter file, and one for each of its parameters."""
    versions = f"adapter version {adapter.adapter_version or '-'}, model version {adapter.model_version or '-'}"
    lines = [f"{adapter.path}: {count(len(adapter.parameters), 'parameter')}, {versions}"]
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


def render_shares(job: str, shares: "Shares | None") -> Iterator[str]:
    """Yield how far several workers are, what each has made, and what is slow or left."""
    if shares is None:
        return
    failed = f", {shares.failed:,} failed" if shares.failed else ""
    rows = f"{shares.rows:,} of {shares.all_rows:,} rows{failed}"
    yield f"{job}: {shares.decided:,} of {count(shares.parts, 'part')} decided: {rows}"
    runs = [f"{first}" if first == last else f"{first} to {last}" for first, last in shares.left]
    if runs:
        left = sum(last - first + 1 for first, last in shares.left)
        yield f"{job}: {count(left, 'part')} left: {some_of(runs, MOST_FILES)}"
    slowest = sorted(shares.workers, key=lambda one: (-one.failed, -one.seconds_a_part))
    for one in slowest[:MOST_FILES]:
        failed = f", {one.failed:,} failed" if one.failed else ""
        made = f"{count(one.parts, 'part')}, {count(one.rows, 'row')}{failed}"
        yield f"{job}: {one.name}: {made}, {one.seconds_a_part:.2f} s a part"
    if len(slowest) > MOST_FILES:
        yield f"{job}: and {count(len(slowest) - MOST_FILES, 'more worker')}, with fewer failed rows and quicker"
    if shares.mixed_workers:
        made = "; ".join(f"{count(one.parts, 'part')} on {one.processor}" for one in shares.mixed_workers)
        yield f"{job}: processors differ, and so may the last digits of results: {made}"
    for part in shares.slow:
        where = f"{job}: part {part.part} (rows {part.start} to {part.end})"
        median = "" if shares.median is None else f"; the median is {shares.median:.2f} s"
        if part.worker is None:
            yield f"{where}: nothing was written for {part.seconds:.0f} s{median}"
        else:
            yield f"{where} took {part.seconds:.2f} s on {part.worker}{median}"


MOST_FILES = 8


def some_of(names: "Sequence[str]", most: int) -> str:
    """Return the first names, and how many more there are."""
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
    are = "is as it was" if one.count == 1 else "are as they were"
    text = f"{len(one.sound):,} of {count(one.count, 'part')} in {one.output} {are} written ({size})"
    copies = sum(part.is_copy for part in one.parts)
    if copies:
        text += f"; local copies of {copies:,} were read, and compared with size and ETag of the objects"
    if one.carried_away:
        text += f"; {len(one.carried_away):,} carried away"
    if one.unverifiable:
        text += f"; of {len(one.unverifiable):,} an older ortdeploy noted no SHA-256, and only their size was compared"
    return text


def render_state_copy(action: str, state: str, copy: str, done: "BroughtBack", *, quiet: bool = False) -> str:
    """Return one line with the paths of the state folder and of the copy, and the number of outputs.

    A line follows for each output that a copy was not compared with, and why; and for each that may repeat itself;
    with `quiet`, these lines alone.
    """
    way = f"{state} is copied to {copy}" if action == "backup" else f"{copy} is brought back to {state}"
    lines = [] if quiet else [f"{way}: {count(done.outputs, 'output')}"]
    lines += [f"not compared with the copy: {why}" for why in done.not_compared]
    lines += [
        f"{where}. If more was committed after the copy was made, and carried away, these names and numbers are given "
        "twice. Tell whoever reads them, or name a new folder as output"
        for where in done.may_repeat
    ]
    return safe("".join(f"{line}\n" for line in lines))


def render_pruned(states: "Sequence[PrunedState]") -> str:
    """Return for each state folder what was freed of each cache, and what stays and why."""
    return safe("".join(map(_render_pruned, states)))


def _render_pruned(state: "PrunedState") -> str:
    word = "would be freed" if state.dry_run else "freed"
    used = "; a run is using it, so nothing is" if state.in_use else ""
    lines = [f"{state.state}: {state.freed_bytes:,} bytes {word}{used}\n"]
    for one in state.caches:
        freed = [f"{one.freed:,} {word} ({one.freed_bytes:,} bytes)"] if one.freed else []
        stay = "stays" if one.kept == 1 else "stay"
        kept = [f"{one.kept:,} {stay} ({one.kept_bytes:,} bytes): {one.why}"] if one.kept else []
        lines += [f"  {one.cache}: {', '.join([*freed, *kept])}\n"] if freed or kept else []
    return "".join(lines)


def render_compaction(jobs: "Sequence[CompactionResult]") -> str:
    """Return one line for each job: how many parts it had, and has now."""
    lines = (
        f"{one.job}: {one.output} stays as it is: {one.why_not}\n"
        if one.why_not
        else f"{one.job}: {count(one.before, 'part')} in {one.output}, now {one.after:,}\n"
        for one in jobs
    )
    return safe("".join(lines))


def render_differences(differences: "Sequence[Difference]", indent: str = "", *, color: bool = False) -> str:
    """Return `path: old -> new` for each difference, with values as JSON has them."""
    paint = painter(color=color)
    lines = (
        f"{indent}{one.path}: {paint(shown_value(one.old), RED)} -> {paint(shown_value(one.new), GREEN)}\n"
        for one in differences
    )
    return safe("".join(lines))


def shown_value(value: Any) -> str:
    """Return a value as JSON; of a digest, only the beginning."""
    import json  # noqa: PLC0415  only for differences

    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:12]}…"
    return json.dumps(value, ensure_ascii=False, default=str)


def render_changes(changes: "Sequence[Changes]", *, color: bool = False) -> str:
    """Return what changed in each job since its last run."""
    return "".join(f"{safe(_changed(one))}{render_differences(one.differences, '  ', color=color)}" for one in changes)


def _changed(one: "Changes") -> str:
    if one.run is None:
        left = f"; its output is what {one.left_by} has made" if one.left_by else ""
        return f"job {one.job} has not run yet{left}\n"
    return f"job {one.job} since run {one.run}:{'' if one.differences else ' nothing has changed'}\n"
