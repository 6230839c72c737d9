"""Opens the rows of a job: which columns it wants of its input files, and how they are read."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.facts.data import OWN, Dialect
from ortdeploy.files.memory_budget import room
from ortdeploy.files.urls import is_url
from ortdeploy.plan.steps import PlannedInput, RunJob
from ortdeploy.process.cores import usable_cores
from ortdeploy.results.rows import HIDDEN
from ortdeploy.sources.catalogue import ARRAYS, at_hand, indexes_of, open_input
from ortdeploy.sources.files import InputPaths
from ortdeploy.sources.fitted import Fitted
from ortdeploy.sources.protocol import DATA, DECODING, OF_VIDEO, Source, Wanted
from ortdeploy.sources.renamed import Renamed, in_files
from ortdeploy.sources.retrying import patiently
from ortdeploy.tensors.arrow_types import innermost
from ortdeploy.transforms.sample_rates import RATE, needs_rate


def wanted_columns(job: RunJob) -> Wanted:
    """Return the columns that a job's source must read."""
    return Wanted(
        dtypes={name: planned.read_dtype for planned in job.inputs for name in planned.columns} | _rates(job),
        keys=tuple(dict.fromkeys((*job.input.key, *_choosing(job), *HIDDEN))),
        types=job.input.types,
        missing=job.input.missing,
        first_row=job.input.files_from,
        row_type=job.input.row_type,
        memory_limit=job.limits.memory,
        settings=job.input.settings,
        dialect=_dialect(job),
        ends=_ends(job),
    )


def _dialect(job: RunJob) -> Dialect:
    """Return how a job's tables are written, also those of another job."""
    dialect = job.input.dialect
    return dialect if job.input.upstream is None else replace(OWN, empty=dialect.empty)


def wanted_here(job: RunJob) -> Wanted:
    """Return what a job's source must read, with how much of this machine may read it."""
    threads = _reading_threads(job)
    return replace(wanted_columns(job), threads=threads, processes=_processes(job, threads))


def _rates(job: RunJob) -> dict[str, str | None]:
    """Return the column of sample rates, if an input's steps need those of each row."""
    return {RATE: None} if any(input_needs_rate(planned) for planned in job.inputs) else {}


def input_needs_rate(planned: PlannedInput) -> bool:
    """Return whether a step of an input must know the sample rate of its rows."""
    return any(needs_rate(step.name, step.options) for step in planned.steps)


def _ends(job: RunJob) -> tuple[int, int] | None:
    """Return how many of a file's first and last bytes to read, if the first step of every input takes only those."""
    if job.input.format != "bytes" or DATA in job.input.key:
        return None
    first = [planned.steps[0].options if planned.steps else {} for planned in job.inputs if DATA in planned.columns]
    if not all("head" in options or "tail" in options for options in first):
        return None
    heads, tails = ([options.get(end, 0) for options in first] for end in ("head", "tail"))
    return max(heads, default=0), max(tails, default=0)


def _choosing(job: RunJob) -> tuple[str, ...]:
    """Return the columns that choose a row's adapter, or that reset the state."""
    reset = job.pipeline.reset if job.pipeline else ()
    return (*((job.adapters.column,) if job.adapters.column else ()), *reset)


@contextmanager
def open_rows(
    job: RunJob,
    folder: str,
    only: Sequence[int] | None = None,
    state_dir: Path | None = None,
    *,
    told: bool = False,
) -> Iterator[Source]:
    """Open a job's files, below the manifest's folder or on a store, for all of their rows or only some.

    With a state folder, readers of text go to the first row by the indexes that lie there; `told`: also by those that
    a saved plan has brought.
    """
    files = InputPaths(folder, job.input.files)
    wanted = wanted_here(job)
    if state_dir is not None:
        indexes = indexes_of(job.input.format, state_dir, folder, wanted.settings, told=told, dialect=wanted.dialect)
        wanted = replace(wanted, indexes=indexes)
    with at_hand(job.input.format, files, job.input.patterns, job.input.files, ahead=wanted.threads) as there:

        def open_some(only: Sequence[int] | None) -> AbstractContextManager[Source]:
            return open_wanted(job, there, folder, replace(wanted, only=only))

        with patiently(open_some, only, "reading the input") as source:
            yield source


def _reading_threads(job: RunJob) -> int:
    """Return how many threads may decode a job's rows at once, and how many may prepare them."""
    return min(usable_cores(), job.limits.threads or sys.maxsize)


def _processes(job: RunJob, threads: int) -> int:
    """Return how many other processes may decode a job's files: none under a limit of this one's memory.

    Nor where files are fetched from a store, which takes longer than to decode them.
    """
    if job.limits.memory is not None or any(map(is_url, job.input.patterns)):
        return 0
    return threads - 1


def prepared_at_once(job: RunJob, block: int) -> int:
    """Return how many blocks of a job are prepared at once, if one takes `block` bytes.

    Steps that are operators are not: one session runs them. Without steps there is next to nothing to do.
    """
    steps = [step for planned in job.inputs for step in planned.steps]
    if not steps or any(step.op is not None for step in steps):
        return 1
    from ortdeploy.sources.prefetch import rows_at_once  # noqa: PLC0415  only for what takes long

    return rows_at_once(block, 0.0, _reading_threads(job), room(job.limits.memory))


def decoding_bytes(job: RunJob, row: int) -> int:
    """Return what decoding a job's rows takes for a while, in bytes, if a row is as large as this."""
    if job.input.format == "video":
        return OF_VIDEO * row
    decoding = DECODING.get(job.input.format)
    if decoding is None:
        return 0
    from ortdeploy.sources.prefetch import rows_at_once  # noqa: PLC0415  not for tables

    at_once = rows_at_once(row, decoding, _reading_threads(job), room(job.limits.memory))
    ahead = at_once if at_once > 1 else 0
    return int(at_once * decoding * row) + ahead * row


@contextmanager
def open_wanted(job: RunJob, files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[Source]:
    """Open files that are here as those of a job, whose columns have the names that it knows them by."""
    upstream = job.input.upstream
    if upstream is None:
        with open_input(job.input.format, files, folder, wanted) as source:
            yield _fitted(job, source, wanted)
    else:
        with open_input(job.input.format, files, folder, in_files(wanted, upstream.names)) as source:
            yield _fitted(job, Renamed(source, wanted, upstream.names), wanted)


def _fitted(job: RunJob, source: Source, wanted: Wanted) -> Source:
    """Return a source whose columns have the types of all files and parts, if those may differ."""
    fed = {name: kind for name, kind in _element_types(job).items() if name in wanted.dtypes}
    if not fed and not job.output.settled:
        return source
    return Fitted(source, wanted, fed, job.output.settled, parse=job.input.format == "csv")


def _element_types(job: RunJob) -> dict[str, str]:
    """Return the element types that fed columns of arrays have in all files; tables are read in theirs."""
    if job.input.format not in ARRAYS:
        return {}
    return {name: innermost(kind) for name, kind in job.input.types.items()}
