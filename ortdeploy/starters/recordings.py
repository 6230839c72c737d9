"""Models that take recordings: whole ones if the graph leaves the length open, else window by window."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, samples, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.open_sizes import is_length, is_sound, synthetic_tensor
from ortdeploy.starters.provenance import Page
from ortdeploy.tensors.types import FLOATING

FAMILY = "a model of recordings"
_RANK = 2
_SOUND = ("audio", "wav")
_LINES = "a line for each window; start is in samples"
_BATCH, _WINDOWS = 4, 256


class _Inputs(Struct, frozen=True, kw_only=True):
    """The input that takes samples [rows, samples], those of lengths [rows], and those of one number for all rows."""

    heard: ValueFacts
    lengths: Sequence[ValueFacts]
    numbers: Sequence[ValueFacts]

    @property
    def window(self) -> int | None:
        """The number of samples that the graph fixes."""
        size = (self.heard.tensor.shape or (None, None))[1]
        return size if isinstance(size, int) else None

    @property
    def rows(self) -> int | None:
        """The number of rows that the graph fixes."""
        size = (self.heard.tensor.shape or (None,))[0]
        return size if isinstance(size, int) else None


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from recordings to what the model gives, by the input's name or because the data are some."""
    inputs = _inputs(subject)
    given = [one.name for one in subject.facts.outputs if one.tensor.dtype in FLOATING and subject.shape_of(one.name)]
    if inputs is None or subject.ran.refusal is not None or not given:
        return
    if inputs.window is None:
        yield _whole(subject, inputs)
    elif not inputs.lengths:
        yield _windowed(subject, inputs, inputs.window, given[0])


def _inputs(subject: Subject) -> _Inputs | None:
    """Return what each input takes; None if one takes something else."""
    lengths = [one for one in subject.inputs if is_length(one)]
    numbers = [one for one in subject.inputs if one.tensor.shape == () and one not in lengths]
    rest = [one for one in subject.inputs if one not in lengths and one not in numbers]
    if len(rest) != 1 or len(rest[0].tensor.shape or ()) != _RANK or rest[0].tensor.dtype != "float32":
        return None
    by_name = subject.data is None and is_sound(rest[0])
    if not by_name and (subject.data is None or subject.data.format not in _SOUND):
        return None
    return _Inputs(heard=rest[0], lengths=lengths, numbers=numbers)


def _values(subject: Subject, inputs: _Inputs) -> list[str]:
    """Return the inputs of one number with their values."""
    return [yaml_text.value_of(one, synthetic_tensor(one, subject.ran.values.get(one.name))) for one in inputs.numbers]


def _fed(subject: Subject, inputs: _Inputs, values: Mapping[str, str]) -> str:
    """Return what a run step feeds, by input."""
    return ", ".join([flow(dict(values))[1:-1], *_values(subject, inputs)])


def _whole(subject: Subject, inputs: _Inputs) -> Starter:
    """Return a manifest that feeds whole recordings, with their lengths if the model asks for them."""
    name, heard = scalar(subject.name), scalar(inputs.heard.name)
    fed = {inputs.heard.name: "$samples"} | {one.name: "$" + _after(one) for one in inputs.lengths}
    made = {one.name: f"y{number}" for number, one in enumerate(subject.facts.outputs) if one.kind == "tensor"}
    lines = [
        f"{{op: Shape, by_row: {provenance.graph('by_row', 'true')}, in: {{data: $samples}}, out: counted}}",
        f"{{do: squeeze, in: {{x: $counted, squeeze: {provenance.graph('squeeze', 0)}}}, out: length}}",
        *(
            f"{{do: cast, in: {{x: $length, cast: {provenance.graph('cast', one.tensor.dtype)}}}, out: {_after(one)}}}"
            for one in inputs.lengths
            if one.tensor.dtype != "int64"
        ),
        f"{{run: {name}, in: {{{_fed(subject, inputs, fed)}}}, out: {flow(made)}}}",
    ]
    results = {name if name.isidentifier() else value: f"${value}" for name, value in made.items()}
    values = _values(subject, inputs)
    if inputs.lengths:
        section, job = yaml_text.pipeline("hear", lines, results), "pipeline: hear"
        columns, taken = [], "samples"
    else:
        section, job = "", f"model: {name}"
        columns, taken = [f"columns: {{{heard}: samples}}"], inputs.heard.name
        columns += ["values:", *(f"  {value}" for value in values)] if values else []
    text = (
        yaml_text.head(f"A model of recordings, {_because(subject, inputs)}: it takes them whole, at any length.")
        + yaml_text.models(subject)
        + section
        + f"jobs:\n  run:\n    {job}\n"
        + yaml_text.recordings_section(subject, samples.RATE, taken, *columns)
        + yaml_text.batch(inputs.rows, 1, "recordings differ in length")
        + yaml_text.output(subject)
    )
    return Starter(family=FAMILY, page=Page(marked=text), files=_sample(subject))


def _after(one: ValueFacts) -> str:
    return "length" if one.tensor.dtype == "int64" else f"length_{one.tensor.dtype}"


def _windowed(subject: Subject, inputs: _Inputs, window: int, output: str) -> Starter:
    """Return a manifest that cuts recordings into windows of the length that the graph fixes."""
    name = scalar(subject.name)
    shape = subject.shape_of(output)
    single = len(shape) == _RANK and shape[1] == 1
    fed = _fed(subject, inputs, {inputs.heard.name: "$x"})
    steps = [f"{{run: {name}, in: {{{fed}}}, out: {flow({output: 'y' if single else 'found'})}}}"]
    steps += (
        [f"{{do: squeeze, in: {{x: $y, squeeze: {provenance.graph('squeeze', 0)}}}, out: found}}"] if single else []
    )
    batch = "" if inputs.rows is not None else f"        batch: {provenance.choice('batch', _WINDOWS)}\n"
    size = provenance.graph("windows", window)
    last = provenance.convention("last: pad", "pad", "zeros fill up the last window")
    pipeline = (
        "pipelines:\n  listen:\n    steps:\n"
        f"      - {{do: windows, in: {{x: $samples, size: {size}, last: {last}}}, out: [w, start]}}\n"
        f"      - each: $w\n        as: x\n{batch}        steps:\n"
        + yaml_text.steps(steps, 10)
        + "        collect: {found: found}\n    outputs: {start: $start, found: $found}\n\n"
    )
    text = (
        yaml_text.head(f"A model of recordings, {_because(subject, inputs)}: it takes windows of {window} samples.")
        + yaml_text.models(subject)
        + pipeline
        + "jobs:\n  run:\n    pipeline: listen\n"
        + yaml_text.recordings_section(subject, samples.RATE, "samples")
        + yaml_text.batch(None, _BATCH)
        + yaml_text.output(subject, "explode: [start, found]", note=_LINES)
    )
    seconds = max(2.0, 2.5 * window / samples.RATE)
    return Starter(family=FAMILY, page=Page(marked=text), files=_sample(subject, seconds), explodes=True)


def _because(subject: Subject, inputs: _Inputs) -> str:
    return f"by the name of its input {inputs.heard.name}" if subject.data is None else "as the data say"


def _sample(subject: Subject, seconds: float = 2.0) -> dict[str, bytes]:
    return {} if subject.data else {yaml_text.recording_path(subject): samples.recording(seconds)}
