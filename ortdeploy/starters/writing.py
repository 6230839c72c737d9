"""The parts of a manifest that every starter has, as text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ortdeploy.deployment.delimiters import written_delimiter
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters.pictures import sample_path
from ortdeploy.starters.subject import Subject
from ortdeploy.tensors.types import TensorType

_NAME = re.compile(r"[\w.-]+\Z")
"""A dimension's name that says something; exporters also write whole formulas there."""


def head(*told: str) -> str:
    """Return the beginning of a manifest: comments that say what was recognised and where from."""
    lines = ["Made by ortdeploy init.", *told, "For completion in an editor: ortdeploy schema > deployment.schema.json"]
    return "".join(f"{comment(line)}\n" for line in lines) + "version: 1\n\n"


def comment(text: str) -> str:
    """Return a text as a comment of one line, for names and metadata of a model may have line ends."""
    return f"# {' '.join(''.join(sign if sign.isprintable() else ' ' for sign in text).split())}"


def models(subject: Subject, written: Mapping[str, str] | None = None) -> str:
    """Return the section of the one model: file, digest, provider, and what it takes and gives.

    `written` are further keys of inputs, by input, as they stand inside the braces.
    """
    outputs = [value for value in subject.facts.outputs if value.kind == "tensor" and value.tensor.dtype]
    kept = {one.name: text for one in outputs if (text := _row_axis(one, subject))}
    named = {size for one in subject.inputs for size in one.tensor.shape or () if isinstance(size, str)}
    outputs = [_without_other_names(_as_it_ran(one, subject), named) for one in outputs]
    given = f"    outputs:\n{_tensors(outputs, kept)}" if outputs else ""
    return (
        f"models:\n  {scalar(subject.name)}:\n    path: {scalar(subject.path)}\n"
        f"    sha256: {scalar(subject.facts.sha256)}\n    providers: [CPU]\n"
        f"    inputs:\n{_tensors(subject.inputs, written or {})}{given}\n"
    )


def _row_axis(value: ValueFacts, subject: Subject) -> str | None:
    """Return the key that says where an output's rows are, if the graph fixes a size there that no run keeps to."""
    wrong = _not_kept(value, subject)
    rows = {shape[0] for shape in subject.ran.fed.values() if shape}
    return f"row_axis: {wrong[0]}" if len(wrong) == 1 and {subject.shape_of(value.name)[wrong[0]]} == rows else None


def _as_it_ran(value: ValueFacts, subject: Subject) -> ValueFacts:
    """Return an output without the sizes that a run of the model did not keep to."""
    wrong = _not_kept(value, subject)
    shape = value.tensor.shape
    if not wrong or shape is None:
        return value
    kept = tuple(None if axis in wrong else size for axis, size in enumerate(shape))
    return replace(value, tensor=replace(value.tensor, shape=kept))


def _without_other_names(value: ValueFacts, named: set[str]) -> ValueFacts:
    """Return an output without the names of sizes that no input has: exporters number them, and they say nothing."""
    shape = value.tensor.shape
    kept = shape and tuple(None if isinstance(size, str) and size not in named else size for size in shape)
    return replace(value, tensor=replace(value.tensor, shape=kept))


def _not_kept(value: ValueFacts, subject: Subject) -> list[int]:
    ran, shape = subject.shape_of(value.name), value.tensor.shape or ()
    if len(ran) != len(shape):
        return []
    return [axis for axis, size in enumerate(shape) if isinstance(size, int) and size != ran[axis]]


def _tensors(values: Sequence[ValueFacts], written: Mapping[str, str]) -> str:
    return "".join(f"      {scalar(one.name)}: {_tensor(one.tensor, written.get(one.name))}\n" for one in values)


def _tensor(tensor: TensorType, further: str | None) -> str:
    known: dict[str, object] = {"dtype": tensor.dtype} if tensor.dtype else {}
    if tensor.shape is not None:
        known["shape"] = [size if not isinstance(size, str) or _NAME.match(size) else None for size in tensor.shape]
    if tensor.layout is not None:
        known["layout"] = tensor.layout
    text = flow(known)
    return text if further is None else f"{text[:-1]}{', ' if known else ''}{further}}}"


def steps(of: Iterable[str], indent: int) -> str:
    """Return steps as a list, one a line."""
    return "".join(f"{' ' * indent}- {step}\n" for step in of)


def picture_pipeline(subject: Subject, name: str, lines: Iterable[str], outputs: Mapping[str, str], batch: str) -> str:
    """Return a pipeline that begins with pictures, called `image`, and the job that runs it."""
    return pipeline(name, lines, outputs) + picture_job(subject, name, batch)


def picture_job(subject: Subject, name: str, batch: str) -> str:
    """Return the job that feeds pictures to a pipeline."""
    return (
        f"jobs:\n  run:\n    pipeline: {name}\n"
        + input_section(subject, sample_path(subject), "made by init", "columns: {image: pixels}", "key: [path]")
        + f"    batch: {{size: {batch}\n"
        + output(subject)
    )


def pipeline(name: str, lines: Iterable[str], outputs: Mapping[str, str]) -> str:
    """Return the section of the one pipeline."""
    return f"pipelines:\n  {name}:\n    steps:\n{steps(lines, 6)}    outputs: {flow(dict(outputs))}\n\n"


def output(subject: Subject, *further: str, note: str = "") -> str:
    """Return where the job of a starter writes, with further keys, and what is noted behind them."""
    keys = (f"path: {scalar(f'outbox/{subject.stem}')}", "format: jsonl", *further)
    return f"    output: {{{', '.join(keys)}}}{_noted(note)}\n"


def input_section(subject: Subject, sample: str, note: str, *further: str) -> str:
    """Return where the job of a starter reads: the user's data, or a sample that was made up."""
    data = subject.data
    path = scalar(sample if data is None else data.path)
    comment = _noted(f"{note}; name your own files here") if data is None else ""
    written = () if data is None or data.delimiter is None else (f"delimiter: {written_delimiter(data.delimiter)}",)
    lines = (f"path: {path}{comment}", *written, *further)
    return "    input:\n" + "".join(f"      {line}\n" for line in lines)


def recordings_section(subject: Subject, rate: int, taken: str, *further: str) -> str:
    """Return where the job of a starter reads recordings, and that `taken` gets one channel of each of them."""
    lines = (f"rate: {rate}", *further, "key: [path]")
    prepare = f"    prepare: {{{scalar(taken)}: [{{mono: true}}]}}  # of several channels, the mean\n"
    return input_section(subject, recording_path(subject), "made by init", *lines) + prepare


def recording_path(subject: Subject) -> str:
    """Return the path of the recording that init makes."""
    return f"{subject.stem}-sample.wav"


def _noted(note: str) -> str:
    return f"  {comment(note)}" if note else ""
