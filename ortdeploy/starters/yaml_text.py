"""The parts of a manifest that every starter has, as text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from ortdeploy.deployment.delimiters import written_delimiter
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.runtime.trial_run import SyntheticTensor, synthetic_array
from ortdeploy.starters import provenance, samples
from ortdeploy.starters.model_info import Subject
from ortdeploy.starters.open_sizes import KNOWN, RATES
from ortdeploy.starters.pictures import sample_path
from ortdeploy.starters.provenance import Given
from ortdeploy.tensors.types import TensorType

_FASTEST = 1_000_000
"""The most samples a second; a file that says more does not mean recordings."""

_NAME = re.compile(r"[\w.-]+\Z")
"""A dimension's name that says something; exporters also write whole formulas there."""


def head(*told: str) -> str:
    """Return the beginning of a manifest: comments that say what was recognised and where from."""
    lines = ["Made by ortdeploy init.", *told, "For completion in an editor: ortdeploy schema > deployment.schema.json"]
    return "".join(f"{comment(line)}\n" for line in lines) + "version: 1\n\n"


def comment(text: str) -> str:
    """Return a text as a comment of one line, for names and metadata of a model may have line ends."""
    return f"# {provenance.one_line(text)}"


def models(subject: Subject, further: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the section of models: file, digest, provider, and what the one that init was asked for takes and gives.

    `further` are the paths of those that lie beside it, by name.
    """
    outputs = [value for value in subject.facts.outputs if value.kind == "tensor" and value.tensor.dtype]
    kept = {one.name: text for one in outputs if (text := _row_axis(one, subject))}
    named = {size for one in subject.inputs for size in one.tensor.shape or () if isinstance(size, str)}
    outputs = [_without_other_names(_as_it_ran(one, subject), named) for one in outputs]
    taken = provenance.graph("inputs", _tensors(subject.inputs, {}))
    given = f"    outputs:\n{provenance.graph('outputs', _tensors(outputs, kept))}" if outputs else ""
    others = (f"  {scalar(name)}: {{path: {provenance.beside('path', scalar(at))}}}\n" for name, at in further.items())
    return (
        f"models:\n  {scalar(subject.name)}:\n    path: {provenance.graph('path', scalar(subject.path))}\n"
        f"    sha256: {provenance.graph('sha256', scalar(subject.facts.sha256))}\n"
        f"    providers: {provenance.choice('providers', '[CPU]')}\n"
        f"    inputs:\n{taken}{given}{''.join(others)}\n"
    )


def _row_axis(value: ValueFacts, subject: Subject) -> str | None:
    """Return the key that says where an output's rows are, if the graph fixes a size there that no run keeps to."""
    wrong = _not_kept(value, subject)
    rows = {shape[0] for shape in subject.ran.fed.values() if shape}
    return f"row_axis: {wrong[0]}" if len(wrong) == 1 and {subject.ran_shape(value.name)[wrong[0]]} == rows else None


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
    ran, shape = subject.ran_shape(value.name), value.tensor.shape or ()
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


def each(items: str, name: str, of: Iterable[str], collect: Mapping[str, str], *further: str) -> str:
    """Return the step that runs others for each item, with further keys, such as the state that items hand on."""
    lines = (f"each: {items}", f"as: {name}", *further, "steps:\n" + steps(of, 10).rstrip("\n"))
    return "\n        ".join((*lines, f"collect: {flow(dict(collect))}"))


def prepare(name: str, of: Iterable[str], told: str) -> str:
    """Return the steps that prepare one input, with what tells them."""
    return f"    prepare:\n      {scalar(name)}:  {comment(told)}\n{steps(of, 8)}"


def model_job(subject: Subject) -> str:
    """Return the beginning of the one job, which runs the model."""
    return f"jobs:\n  run:\n    model: {scalar(subject.name)}\n"


def picture_job(subject: Subject, batch: str) -> str:
    """Return the rest of a job that feeds pictures to a pipeline."""
    return (
        input_section(subject, sample_path(subject), "columns: {image: pixels}", "key: [path]")
        + batch
        + output(subject)
    )


def batch(fixed: int | None, usual: int, note: str = "") -> str:
    """Return the line with the number of rows of a run: the one that the graph fixes, or the usual one.

    A short last batch is filled up where the graph takes no other number.
    """
    size = provenance.choice("batch", usual) if fixed is None else provenance.graph("batch", fixed)
    last = f", last: {provenance.graph('last', 'pad')}" if fixed is not None and fixed > 1 else ""
    return f"    batch: {{size: {size}{last}}}{_noted(note)}\n"


def pipeline(name: str, lines: Iterable[str], outputs: Mapping[str, str]) -> str:
    """Return the section of the one pipeline, and the beginning of the job that runs it."""
    return _run_by_a_job(name, f"    steps:\n{steps(lines, 6)}    outputs: {flow(dict(outputs))}\n")


def preset(subject: Subject, name: str, kind: str, *further: str, components: str = "") -> str:
    """Return the section of the one pipeline, which a preset makes of a folder, and the beginning of the job."""
    folder = f"from: {provenance.graph('path', scalar(subject.path))}"
    keys = (f"preset: {kind}", folder, components, f"providers: {provenance.choice('providers', '[CPU]')}", *further)
    return _run_by_a_job(name, "".join(f"    {key}\n" for key in keys if key))


def _run_by_a_job(name: str, keys: str) -> str:
    return f"pipelines:\n  {name}:\n{keys}\njobs:\n  run:\n    pipeline: {name}\n"


def output(subject: Subject, *further: str, note: str = "") -> str:
    """Return where the job of a starter writes, with further keys, and what is noted behind them."""
    path = provenance.choice("output", scalar(f"outbox/{subject.stem}"))
    keys = (f"path: {path}", f"format: {provenance.choice('format', 'jsonl')}", *further)
    return f"    output: {{{', '.join(keys)}}}{_noted(note)}\n"


def input_section(subject: Subject, sample: str, *further: str, note: str = "made by init") -> str:
    """Return where the job of a starter reads: the user's data, or a sample that was made up."""
    data = subject.data
    written: tuple[str, ...] = ()
    if data is None:
        path = f"path: {provenance.samples(scalar(sample), sample)}{_noted(f'{note}; name your own files here')}"
    else:
        patterns = list(data.patterns)
        path = f"path: {provenance.data('path', flow(patterns) if patterns[1:] else scalar(patterns[0]))}"
        if data.delimiter is not None:
            written = (f"delimiter: {provenance.data('delimiter', written_delimiter(data.delimiter))}",)
    return "    input:\n" + "".join(f"      {line}\n" for line in (path, *written, *further))


def recordings_section(
    subject: Subject, taken: str, *further: str, expand: str | None = None, rate: Given | None = None
) -> str:
    """Return where the job of a starter reads recordings, and that `taken` gets one channel of each of them.

    `expand` is where that channel becomes an axis of its own, `rate` the sample rate if it is not the usual one.
    Recordings of another rate are resampled.
    """
    rated = rate or rate_of(subject)
    is_other = subject.data is not None and bool(subject.data.rates - {int(rated.text)})
    mono = provenance.convention("the mean of several channels", "{mono: true}")
    settings, _ = subject.preprocessor("feature_extractor")
    of_file = provenance.beside("standardize", "{standardize: true}")
    standard = f", {of_file}" if settings.get("do_normalize") is True else ""
    axis = f", {{expand: {expand}}}" if expand is not None else ""
    resampled = f", {{resample: {rated}}}" if is_other else ""
    prepare = (
        f"    prepare: {{{scalar(taken)}: [{mono}{resampled}{standard}{axis}]}}  # of several channels, the mean\n"
    )
    lines = (*(() if is_other else (f"rate: {rated}",)), *further, "key: [path]")
    return input_section(subject, recording_path(subject), *lines) + prepare


def rate_of(subject: Subject) -> Given:
    """Return how many samples a second a model takes: as a file beside it says, its metadata, or the usual number."""
    said = subject.preprocessor("feature_extractor")[0].get("sampling_rate")
    if type(said) is int and 0 < said <= _FASTEST:
        return provenance.beside("rate", said)
    written = (subject.facts.metadata.get(key, "").strip() for key in RATES)
    for number in (int(text) for text in written if text.isdecimal() and len(text) <= len(str(_FASTEST))):
        if 0 < number <= _FASTEST:
            return provenance.metadata("rate", number)
    because = "nothing in the files tells how many samples a second it wants"
    return provenance.convention(f"rate {samples.RATE}", samples.RATE, because)


def recording_path(subject: Subject) -> str:
    """Return the path of the recording that init makes."""
    return f"{subject.stem}-sample.wav"


def sample_recording(subject: Subject, seconds: float = 2.0, rate: int = samples.RATE) -> dict[str, bytes]:
    """Return that recording, by its path; none if the user has some."""
    return {} if subject.data else {recording_path(subject): samples.recording(seconds, rate)}


def value_of(one: ValueFacts, made: SyntheticTensor) -> str:
    """Return the value that feeds a scalar input: what its name says, or what is made up for it."""
    name = scalar(one.name)
    value = scalar(synthetic_array(made, ()).item())
    if one.name in KNOWN:
        return f"{name}: {provenance.convention(one.name, value, 'nothing in the files tells another')}"
    return f"{name}: {provenance.made_up(one.name, value, 'nothing tells its value', 'what the model was made for')}"


def _noted(note: str) -> str:
    return f"  {comment(note)}" if note else ""
