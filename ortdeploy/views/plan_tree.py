"""A plan for the person at the terminal: a tree of jobs, their models, providers, inputs and outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ortdeploy.facts.memory import MemoryForecast, parts_text
from ortdeploy.files.names import REPORT
from ortdeploy.plan.masked import masked_plan
from ortdeploy.plan.pipeline import walk
from ortdeploy.plan.steps import (
    NOT_LOOKED_AT,
    FinishedJob,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedInput,
    PlannedProvider,
    PlannedSession,
    RunJob,
)
from ortdeploy.tensors.types import LINE_COLUMNS, format_shape
from ortdeploy.terminal_text import safe, shortened
from ortdeploy.units import format_size
from ortdeploy.views.text import BOLD, GREEN, YELLOW, Paint, count, painter
from ortdeploy.views.tree import DIM, Node, branches, broken

_LARGE = 16 * 1024 * 1024  # bytes of a model from which it is said what they take of the disk
_INDENT = "    "
_MOST_COLUMNS = 12
_MOST_NAMED = 3
_MOST_OPTION = 60  # signs of one option's value

NEW, CHANGED, SAME, WAITS = "+", "~", "=", "."
_COLORS = {NEW: GREEN, CHANGED: YELLOW, SAME: DIM, WAITS: DIM}


def render_plan(
    plans: Sequence[Plan],
    *,
    color: bool,
    verbose: bool = False,
    width: int | None = None,
    found_at: Callable[[str, str], str] = lambda _folder, path: path,
) -> str:
    """Return a tree for each manifest, and a summary line; `verbose` adds the facts that the plans rest on.

    Each job has a mark: + what is new, ~ what goes on with or changes what is there, = what is finished, . what waits.
    `width` is the terminal's in columns; None: no line is broken. `found_at` gives the path of a finished output, from
    the manifest's folder and its path in there, as the reader may type it.
    """
    paint = painter(color=color)
    text = "".join(_Tree(masked_plan(plan), paint, width, found_at).text(verbose=verbose) for plan in plans)
    sessions, jobs = (_count_steps(plans, kind) for kind in (OpenSession, RunJob))
    waiting = sum(job.waiting is not None for plan in plans for job in plan.finished)
    finished = sum(len(plan.finished) for plan in plans) - waiting
    counts = f"{count(sessions, 'session')} to open, {count(jobs, 'job')} to run, {finished} finished already"
    counts += f", {waiting} waiting for input" if waiting else ""
    return safe(f"{text}Plan: {counts}.\n")


def _count_steps(plans: Sequence[Plan], kind: type) -> int:
    return sum(isinstance(step, kind) for plan in plans for step in plan.steps)


class _Tree:
    """The tree of one plan. A session or adapter that several jobs use is described at the first of them."""

    def __init__(self, plan: Plan, paint: Paint, width: int | None, found_at: Callable[[str, str], str]) -> None:
        """Take a plan without secrets."""
        self._found_at = found_at
        self._plan, self._paint, self._width = plan, paint, width
        self._sessions = {one.session: one for one in plan.steps if isinstance(one, OpenSession)}
        self._adapters = [one for one in plan.steps if isinstance(one, LoadAdapter)]
        self._described: set[str] = set()

    def text(self, *, verbose: bool) -> str:
        """Return the lines of the tree, and an empty one."""
        choice = self._plan.choice
        profile = "" if choice is None else f", profile {choice.shown}"
        lines = [f"{self._paint(self._plan.deployment, BOLD)} ({self._plan.manifest}){profile}"]
        for gate in self._plan.gates:
            session = gate.opening.candidates[0].name
            lines += self._head(NEW, f"check {gate.opening.model} on {session} first: {', '.join(gate.folders)}")
        for step in self._plan.steps:
            if isinstance(step, RunJob):
                mark, line = _head_of(step)
                lines += self._head(mark, line)
                lines += branches([*self._used(step), *_of_job(step)], self._paint, self._width, _INDENT)
        lines += [line for job in self._plan.finished for line in self._finished(job)]
        if len(lines) == 1:
            lines += self._head(SAME, "nothing to run: the manifest has no jobs:, or none that was chosen")
        lines += [f"  rests on {fact.kind} {fact.name}: {fact.value}" for fact in self._plan.facts if verbose]
        return "\n".join(lines) + "\n\n"

    def _head(self, mark: str, line: str) -> Iterator[str]:
        pieces = [line] if self._width is None else broken(line, self._width - 4)
        for place, piece in enumerate(pieces):
            yield f"    {piece}" if place else f"  {self._paint(mark, _COLORS[mark])} {piece}"

    def _used(self, step: RunJob) -> Iterator[Node]:
        for name in step.sessions:
            if name in self._described:
                yield Node(label="session", text=f"{name}, as above")
            elif name in self._sessions:
                self._described.add(name)
                loaded = tuple(_adapter(one) for one in self._adapters if one.session == name)
                opened = _session(self._sessions[name])
                yield Node(label=opened.label, text=opened.text, children=(*opened.children, *loaded))

    def _finished(self, job: FinishedJob) -> Iterator[str]:
        if job.waiting is not None:
            yield from self._head(WAITS, f"job {job.job} has nothing to do: {job.waiting}")
            return
        place = self._found_at(self._plan.folder, job.output)
        yield from self._head(SAME, f"job {job.job} is finished: {job.rows:,} rows in {place}")
        below = []
        if job.new_run:
            why = "that it was made from has changed, so --new-run does not start it over"
            below.append(Node(label="nothing", text=why))
        if job.unwritten:
            text = f"writes what its report lacks: {', '.join(job.unwritten)}"
            below.append(Node(label="apply", text=text))
        elif job.unmade:
            text = f"cannot write {', '.join(job.unmade)}: {REPORT} is gone"
            below.append(Node(label="apply", text=text))
        elif job.left_over is not None:
            below.append(Node(label="apply", text="completes what a command that was killed has begun there"))
        yield from branches(below, self._paint, self._width, _INDENT)


def _head_of(step: RunJob) -> tuple[str, str]:
    """Return the mark of a job and what is done."""
    size = "one row a run" if step.batching.size is None else f"batches of {step.batching.size}"
    if step.batching.auto:
        size = "batches of a size that its first rows decide"
    if step.retry:
        return CHANGED, f"run the failed rows of job {step.job} once more, in {size}"
    rows = "an unknown number of" if step.input.rows is None else f"{step.input.rows:,}"
    upstream = step.input.upstream
    form = f" ({step.input.format})" if step.input.format else ""
    source = f"{', '.join(step.input.patterns)}{form}"
    source = source if upstream is None else f"what job {upstream.job} commits ({step.input.format})"
    done = step.output.committed_rows
    verb = f"go on with job {step.job} after {done:,} rows" if done else f"run job {step.job}"
    is_there = done or step.input.rerun or step.output.aside is not None or step.output.changed
    return CHANGED if is_there else NEW, f"{verb}: {rows} rows of {source}, {size}"


def _of_job(step: RunJob) -> Iterator[Node]:
    if step.retry:
        text = f"{step.output.shown}/part-*.{step.output.format}, where they were missing"
        yield Node(label="output", text=text)
        return
    yield from _before(step)
    if step.adapters.always or step.adapters.column:
        yield _chosen_adapters(step)
    if step.writing is not None:
        yield Node(label="writes", text=_writing(step.writing))
    for planned in step.inputs:
        yield Node(label="input", text=_input(planned))
    yield from _values(step)
    if step.row_check.declared:
        models, agree = " and ".join(step.row_check.declared), step.row_check.agree
        within = "" if agree is None else f", within rtol {agree[0]:g} and atol {agree[1]:g}"
        text = f"a row's results may depend on the rows beside it: row_independence of {models}{within}"
        yield Node(label="rows", text=text)
    if step.thread_layout is not None:
        yield Node(label="threads", text=step.thread_layout)
    if step.timing.text:
        yield Node(label="runs", text=step.timing.text)
    if step.limits.forecast is not None:
        yield Node(label="memory", text=_memory(step.limits.forecast))
    yield _output(step)


def _writing(how: Mapping[str, Any]) -> str:
    """Return how texts are written, with what genai_config.json decides."""
    said = [f"{name} {how[name]:.12g}" for name in ("temperature", "top_p", "top_k", "seed") if how.get("do_sample")]
    beams = how["num_beams"]
    drawn = (
        f"the best of {beams} beams"
        if beams > 1
        else f"draws with {', '.join(said)}"
        if said
        else "the best token each"
    )
    most = how.get("max_new_tokens")
    parts = [f"a context of {how['context_length']:,} tokens", f"at most {most:,} new ones" if most else "", drawn]
    parts += [f"repetition_penalty {how['repetition_penalty']:g}"] if how["repetition_penalty"] != 1 else []
    parts += [f"the language {how['language']}"] if "language" in how else []
    parts += ["what is said in English"] if how.get("translate") else []
    parts += ["with time stamps"] if how.get("timestamps") else []
    return ", ".join(filter(None, parts))


def _output(step: RunJob) -> Node:
    of_lines = LINE_COLUMNS if step.output.explode else ()
    columns = ", ".join(dict.fromkeys((*step.input.key, *of_lines, *step.output.columns)))
    least = "at least " if step.batching.auto else ""  # whole batches, of a size that is not known yet
    part = f"{least}{step.batching.rows_per_part:,} rows a part"
    text = f"{step.output.shown}/part-*.{step.output.format}, {part}: {columns}"
    items = [f"one line for each item of {' and '.join(step.output.explode)}"] if step.output.explode else []
    return Node(label="output", text=text, children=tuple(Node(label=one) for one in items))


def _session(step: OpenSession) -> Node:
    """Return the model of a session, with its candidates and their providers."""
    model = f"{PurePath(step.path).name} (sha256 {step.sha256[:12]}…)" if step.path else _operators(step)
    first = step.candidates[0]
    only = len(step.candidates) == len(first.providers) == first.count == first.callers == 1
    on = f" on {_provider(first.providers[0])}" if only else ""
    children: list[Node] = []
    if not only:
        children += [_candidate(one, step, at) for at, one in enumerate(step.candidates)]
    if step.fusion is not None:
        before, after = (graph.operators if graph else "nothing" for graph in (step.fusion.before, step.fusion.after))
        children.append(Node(label="fused", text=f"{before} before and {after} behind it in its own graph"))
    size = sum(file.size for file in step.files)
    if size >= _LARGE:
        text = f"keeps its {format_size(size)} in the state directory, cloned if the file system can, else copied once"
        children.append(Node(label="store", text=text))
    if step.thread_layouts:
        names = "; ".join(layout.name for layout in step.thread_layouts)
        children.append(Node(label="threads", text=f"the best of these is measured: {names}"))
    if step.options:
        children.append(Node(label="session options", text=_options(step.options)))
    return Node(label="session", text=f"{step.session}: {model}{on}", children=tuple(children))


def _candidate(one: PlannedSession, step: OpenSession, at: int) -> Node:
    """Return one way to open a session: the first choice, one beside it, or one if those before fail."""
    label = "on" if at == 0 else "and on" if step.use == "all" else "else on"
    times = f" {one.count} times" if one.count > 1 else ""
    callers = f", {one.callers} callers" if one.callers > 1 else ""
    chain = tuple(Node(label=str(number), text=_provider(it)) for number, it in enumerate(one.providers, 1))
    placed: tuple[Node, ...] = ()
    if len(one.providers) > 1 and one.predicted is None:
        placed = (Node(label="nodes", text="only the device can tell which nodes its providers take"),)
    elif one.predicted and len(one.providers) > 1:
        counts = ", ".join(f"{number} on {provider}" for provider, number in one.predicted.items())
        placed = (Node(label="nodes", text=f"predicted, before optimization: {counts}"),)
    if len(one.providers) == 1:
        return Node(label=label, text=f"{one.name}{times}: {_provider(one.providers[0])}{callers}")
    return Node(label=label, text=f"{one.name}{times}{callers}", children=(*chain, *placed))


def _operators(step: OpenSession) -> str:
    """`Split, Transpose in one graph`: what a session of op steps runs."""
    if step.graph is None:
        return step.model
    return f"{step.graph.operators}{' in one graph' if len(step.graph.nodes) > 1 else ''}"


def _provider(provider: PlannedProvider) -> str:
    device = provider.device
    on = f" (device {device.index}: {device.kind} {device.name}, {device.vendor})" if device else ""
    options = f" with {_options(provider.options)}" if provider.options else ""
    return f"{provider.name}{on}{options}"


def _options(options: Mapping[str, Any]) -> str:
    """`intra_op_num_threads=1, log_severity_level=3`; long values, such as documents, are cut."""
    return ", ".join(f"{name}={shortened(str(value), _MOST_OPTION)}" for name, value in options.items())


def _chosen_adapters(step: RunJob) -> Node:
    """`adapter french`, or `adapters by language: fr french, otherwise none`."""
    chosen = step.adapters
    if chosen.column is None:
        return Node(label="adapter", text=" and ".join(chosen.always))
    pairs = ", ".join(f"{text} {name}" for text, name in chosen.mapping.items())
    return Node(label="adapters", text=f"by {chosen.column}: {pairs}, otherwise {chosen.otherwise}")


def _adapter(step: LoadAdapter) -> Node:
    return Node(label="loads", text=f"adapter {step.adapter} (sha256 {step.sha256[:12]}…)")


def _values(step: RunJob) -> Iterator[Node]:
    """Say what no column feeds: values of the manifest, and what items of a row hand on to the next."""
    for value in step.values:
        yield Node(label="input", text=f"{value.name} {value.dtype} {format_shape(value.shape)} = {value.content}")
    for each in walk(step.pipeline.steps) if step.pipeline else ():
        if each.state:
            beside = f"up to {each.batch} rows beside each other" if each.state_by_row else "one row at a time"
            names = ", ".join(name for name, _ in each.state)
            yield Node(label="state", text=f"items of ${each.name} hand on {names}: {beside}")


def _before(step: RunJob) -> Iterator[Node]:
    """Yield why rows are not counted, and what becomes of results that are there already."""
    if step.input.elsewhere is not None:
        yield Node(label="data", text=f"not looked at. {step.input.elsewhere} {NOT_LOOKED_AT}")
    if step.input.rerun:
        yield Node(label="again", text=_rerun(step))
    if step.input.unreadable:
        yield Node(label="unread", text=_unreadable(step))
    if step.output.aside is not None:
        text = f"start over: what {step.output.shown} holds is kept beside it as {step.output.aside}"
        yield Node(label="results", text=text)
    is_rolled_back = step.output.upgraded_at < step.output.committed_rows  # before the upgrade had made a part
    if step.output.changed and not is_rolled_back:
        yield Node(label="upgrade", text=_upgrade(step))


def _rerun(step: RunJob) -> str:
    """Return `runs 12 rows of 1 changed file again, into their parts (inbox/a.csv); …`."""
    rows, files = step.input.rerun_rows, [one.path for one in step.input.rerun]
    names = ", ".join(files[:_MOST_NAMED]) + (" …" if len(files) > _MOST_NAMED else "")
    return (
        f"runs {count(rows, 'row')} of {count(len(files), 'changed file')} again, into their parts ({names}); a file "
        "with another number of rows now comes after all others"
    )


def _unreadable(step: RunJob) -> str:
    """Return `1 file cannot be read, which counts as 1 failed row (a.npy cannot be read as npy: …)`."""
    found = step.input.unreadable
    reasons = "; ".join(one.reason for one in found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
    many = len(found)
    return f"{count(many, 'file')} cannot be read, which counts as {count(many, 'failed row')} ({reasons})"


def _upgrade(step: RunJob) -> str:
    """`rows 0 to 999 stay as they were made; those from 1,000 on run with what has changed: model, batch`."""
    first, changed = step.output.upgraded_at, ", ".join(step.output.changed)
    stay = f"rows 0 to {first - 1:,} stay as they were made; those from {first:,} on" if first else "all rows"
    return f"{stay} run with what has changed: {changed}"


def _memory(forecast: MemoryForecast) -> str:
    """`111 MiB of 512 MiB, as measured`; `105 to 240 MiB of 512 MiB, estimated: process 105 MiB, …`."""
    limit = f" of {format_size(forecast.limit)}" if forecast.limit else ""
    taken = forecast.chosen
    if taken is not None:
        arena = "" if taken.way.arena else " without the arena"
        least = f"; {forecast.unknown} may take more" if forecast.unknown else ""
        return f"{format_size(taken.size)}{limit}, as measured{arena}{least}"
    unknown = f"; only a run tells its {forecast.unknown}" if forecast.unknown else ""
    least, most = format_size(forecast.least), format_size(forecast.estimated)
    size = most if least == most else f"{least.removesuffix(' MiB')} to {most}"
    return f"{size}{limit}, estimated: {parts_text(forecast.parts)}{unknown}"


def _input(planned: PlannedInput) -> str:
    steps = " → ".join([_columns(planned.columns) or "its data", *(step.name for step in planned.steps)])
    tensor = f" {planned.dtype} {format_shape(planned.shape)}" if planned.dtype else ""
    return f"{planned.name}{tensor} ← {steps}"


def _columns(names: Sequence[str]) -> str:
    """Return `a, b, c`; of many the first and the last ones, and their number."""
    if len(names) <= _MOST_COLUMNS:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_COLUMNS - 2])}, … {', '.join(names[-2:])} ({len(names)} columns)"
