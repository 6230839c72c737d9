"""The columns that a job finds in another job's output, as that job declares them; no row of it need be there yet.

They are what a probe finds in files that the format's sink has written.
"""

from itertools import product

from msgspec.structs import replace

from ortdeploy.deployment.resolved import ResolvedJob
from ortdeploy.facts.data import TEXT_FORMATS, InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.manifest.spec import ROW
from ortdeploy.sources.arrays import COLUMN
from ortdeploy.tensors.types import LINE_COLUMNS, ROWS, TensorType

READABLE = ("arrow", "csv", "jsonl", "npy", "npz", "parquet")
"""The formats of outputs whose rows another job can read."""

_TEXT = TensorType("string", (ROWS,))
_NUMBER = TensorType("int64", (ROWS,))


def upstream_input(found: InputFacts, job: ResolvedJob) -> InputFacts:
    """Return what is known of the rows that another job commits: columns, format, and what keeps them from being read.

    `found` are the files of it that have not been read.
    """
    output = job.spec.output
    facts = replace(found, format=output.format)
    if facts.problem is not None:
        return facts
    why_not = _why_not(job)
    if why_not is not None:
        detail = f'The rows of job "{job.spec.name}" cannot be read: {why_not}.'
        return replace(facts, problem=Problem(kind="unreadable", detail=detail))
    written = _written(job)
    if output.format == "npy":
        names = dict.fromkeys(written, COLUMN)
    else:
        numbers = f"{ROW}_of_{job.spec.name}"
        names = {numbers: ROW} if _has_row_numbers(job) and numbers not in written else {}
    columns = {new: written[old] for new, old in names.items() if old in written}
    columns |= {name: kind for name, kind in written.items() if name not in names.values()}
    columns = {name: kind if kind.dtype else found.columns.get(name, kind) for name, kind in columns.items()}
    files = {old: new for new, old in names.items()}
    types = {files.get(name, name): kind for name, kind in found.types.items()}
    return replace(facts, columns=columns, names=names, types=types)


def _why_not(job: ResolvedJob) -> str | None:
    output = job.spec.output
    if output.url is not None:
        return f"they go to {output.shown}, and only rows on this machine's disk can be read. Write them to a folder"
    if output.format not in READABLE:
        return f"they are written as {output.format}. Choose one of {', '.join(READABLE)}"
    wide = [name for name in job.columns if output.format == "csv" and _sizes(_type_of(job, name)) is None]
    if wide:
        return (
            f'CSV has one column for each element of "{wide[0]}", and how many these are only a run tells. Write '
            "format: parquet"
        )
    return None


def _has_row_numbers(job: ResolvedJob) -> bool:
    """Return whether the files of a job say of each row which it is."""
    return ROW in job.key or bool(job.spec.output.explode)


def _written(job: ResolvedJob) -> dict[str, TensorType]:
    """Return the columns of a job's files, in their order."""
    of_keys = {name: _key_type(job, name) for name in job.key}
    of_lines = dict.fromkeys(LINE_COLUMNS, _NUMBER) if job.spec.output.explode else {}
    columns = {**of_keys, **of_lines, **{name: _type_of(job, name) for name in job.columns}}
    if job.spec.output.format == "csv":
        columns = dict(pair for name, kind in columns.items() for pair in _flat(name, kind))
    if job.spec.output.format in TEXT_FORMATS:
        columns = {name: replace(kind, dtype=None) for name, kind in columns.items()}
    return columns


def _key_type(job: ResolvedJob, name: str) -> TensorType:
    if name in job.input.columns:
        return job.input.columns[name]
    return _NUMBER if name == ROW else _TEXT


def _type_of(job: ResolvedJob, name: str) -> TensorType:
    """Return the type of a result as it is written: of an item where its items are, and of a file's name."""
    if name in job.spec.output.files:
        return _TEXT
    kind = job.results.get(name, TensorType())
    if kind.shape is None:
        return kind
    sizes = [size if isinstance(size, int) else None for size in kind.shape[1:]]
    return TensorType(kind.dtype, (ROWS, *sizes[1 if name in job.spec.output.explode else 0 :]))


def _sizes(kind: TensorType) -> tuple[int, ...] | None:
    """Return the sizes of a column's rows; None if some are open."""
    sizes = (kind.shape or (None, None))[1:]
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def _flat(name: str, kind: TensorType) -> list[tuple[str, TensorType]]:
    """Return a column as CSV has it: one column for each element."""
    places = product(*map(range, _sizes(kind) or ()))
    return [(".".join([name, *map(str, place)]), TensorType(kind.dtype, (ROWS,))) for place in places]
