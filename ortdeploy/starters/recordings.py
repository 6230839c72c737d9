"""Models that take recordings: whole ones if the graph leaves the length open, else window by window."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.sources.catalogue import RECORDINGS
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import Labels, find_labels, named
from ortdeploy.starters.model_info import Starter, Subject, fixed_rows
from ortdeploy.starters.open_sizes import channel_axis, is_length, is_sound, synthetic_tensor
from ortdeploy.starters.provenance import Given, Origin, Page
from ortdeploy.tensors.types import FLOATING

FAMILY = "a model of recordings"
_RANK = 2
_LINES = "a line for each window; start is in samples"
_BATCH, _WINDOWS = 4, 256


class _Inputs(Struct, frozen=True, kw_only=True):
    """The input that takes samples, those of lengths [rows], and those of one number for all rows.

    Samples are [rows, samples], or have an axis of one channel before or behind the samples.
    """

    heard: ValueFacts
    lengths: Sequence[ValueFacts]
    numbers: Sequence[ValueFacts]

    @property
    def window(self) -> int | None:
        """The number of samples that the graph fixes."""
        shape = self.heard.tensor.shape or (None, None)
        size = shape[2 if self.channel == 1 else 1]
        return size if isinstance(size, int) else None

    @property
    def channel(self) -> int | None:
        """The axis of the one channel; None if there is none."""
        return channel_axis(self.heard)

    @property
    def expanded(self) -> str | None:
        """The setting that gives a row of samples that axis."""
        return None if self.channel is None else str(provenance.graph("expand", self.channel - 1))


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
    if len(rest) != 1 or rest[0].tensor.dtype != "float32":
        return None
    if len(rest[0].tensor.shape or ()) != _RANK and channel_axis(rest[0]) is None:
        return None
    by_name = subject.data is None and is_sound(rest[0])
    if not by_name and (subject.data is None or subject.data.format not in RECORDINGS):
        return None
    return _Inputs(heard=rest[0], lengths=lengths, numbers=numbers)


def _rate(subject: Subject) -> Given:
    """Return the sample rate: as the model or a file beside it says, else the user's, else the usual one."""
    known = yaml_text.rate_of(subject)
    rates = subject.data.rates if subject.data is not None else frozenset()
    if known.origin is not Origin.CONVENTION or len(rates) != 1 or int(known.text) in rates:
        return known
    because = "the recordings have it, and nothing tells which one the model wants"
    return provenance.made_up("rate", next(iter(rates)), because, "the rate that it was trained on")


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
    run = f"{{run: {name}, in: {{{_fed(subject, inputs, fed)}}}, out: {flow(made)}}}"
    results = {name if name.isidentifier() else value: f"${value}" for name, value in made.items()}
    values = _values(subject, inputs)
    said = _said(subject, made)
    if inputs.lengths or said is not None:
        lines = [*_counted(inputs), run, *(said.steps if said is not None else ())]
        job = yaml_text.pipeline("hear", lines, results if said is None else said.result)
        columns, taken = [], "samples"
    else:
        job = yaml_text.model_job(subject)
        columns, taken = [f"columns: {{{heard}: samples}}"], inputs.heard.name
        columns += ["values:", *(f"  {value}" for value in values)] if values else []
    text = (
        yaml_text.head(
            f"A model of recordings, {_because(subject, inputs)}: it takes them whole, at any length.",
            *((said.told,) if said is not None else ()),
        )
        + yaml_text.models(subject)
        + job
        + yaml_text.recordings_section(subject, taken, *columns, expand=inputs.expanded, rate=_rate(subject))
        + yaml_text.batch(fixed_rows(inputs.heard), 1, "recordings differ in length")
        + yaml_text.output(subject)
    )
    files = _sample(subject) | dict(said.files if said is not None else {})
    return Starter(family=said.family if said is not None else FAMILY, page=Page(marked=text), files=files)


def _counted(inputs: _Inputs) -> Iterator[str]:
    """Yield the steps that count the samples of each recording, if the model asks for that."""
    if inputs.lengths:
        yield f"{{op: Shape, by_row: {provenance.graph('by_row', 'true')}, in: {{data: $samples}}, out: counted}}"
        yield f"{{do: squeeze, in: {{x: $counted, squeeze: {provenance.graph('squeeze', 0)}}}, out: length}}"
    for one in inputs.lengths:
        if one.tensor.dtype != "int64":
            dtype = provenance.graph("cast", one.tensor.dtype)
            yield f"{{do: cast, in: {{x: $length, cast: {dtype}}}, out: {_after(one)}}}"


class _Said(Struct, frozen=True, kw_only=True):
    """What files beside a model say of its output: its letters or its classes, and the steps that follow from it."""

    family: str
    told: str
    steps: tuple[str, ...]
    result: Mapping[str, str]
    files: Mapping[str, bytes]


def _said(subject: Subject, made: Mapping[str, str]) -> _Said | None:
    """Return what is said of the first output that is scores of letters along a recording, or of classes."""
    for name, value in made.items():
        shape = subject.shape_of(name)
        size = shape[-1] if shape else None
        if not isinstance(size, int):
            continue
        labels = find_labels(subject, size) if len(shape) == _RANK else None
        if labels is not None:
            return _classes(subject, name, value, labels)
        letters = _letters(subject, size) if len(shape) == _RANK + 1 else None
        if letters is not None:
            return _reading(subject, value, *letters)
    return None


def _classes(subject: Subject, name: str, value: str, labels: Labels) -> _Said:
    given = subject.operator_of(name) == "Softmax"
    steps = () if given else (f"{{do: softmax, in: {{x: ${value}}}, out: scores}}",)
    return _Said(
        family="a classifier of recordings",
        told=f"Its classes have labels: {labels.told}.",
        steps=(
            *steps,
            f"{{do: argmax, in: {{x: ${value if given else 'scores'}}}, out: [class, probability]}}",
            *named(labels, "class", "label"),
        ),
        result={"label": "$label", "probability": "$probability"},
        files=labels.files,
    )


def _letters(subject: Subject, classes: int) -> tuple[list[str], int] | None:
    """Return the letters that vocab.json numbers, without the blank, and the number of the blank."""
    numbers = subject.settings("vocab.json")
    if sorted(map(str, numbers.values())) != sorted(map(str, range(classes))):
        return None
    letters = sorted(numbers, key=lambda letter: int(numbers[letter]))
    settings = subject.settings("tokenizer_config.json")
    blank, between = settings.get("pad_token", "<pad>"), settings.get("word_delimiter_token", "|")
    if blank not in letters:
        return None
    return [" " if letter == between else letter for letter in letters if letter != blank], letters.index(blank)


def _reading(subject: Subject, value: str, letters: list[str], blank: int) -> _Said:
    path = f"{subject.stem}-letters.txt"
    given = f"from: {provenance.beside('letters', scalar(path))}, blank: {provenance.beside('blank', blank)}"
    return _Said(
        family="a model that writes down what is said (CTC)",
        told=f"It scores letters along the recording; {subject.beside('vocab.json')} numbers them.",
        steps=(f"{{do: ctc_greedy, in: {{logits: ${value}, {given}}}, out: [text, confidence]}}",),
        result={"text": "$text", "confidence": "$confidence"},
        files={path: "".join(f"{letter}\n" for letter in letters).encode()},
    )


def _after(one: ValueFacts) -> str:
    return "length" if one.tensor.dtype == "int64" else f"length_{one.tensor.dtype}"


def _windowed(subject: Subject, inputs: _Inputs, window: int, output: str) -> Starter:
    """Return a manifest that cuts recordings into windows of the length that the graph fixes."""
    name = scalar(subject.name)
    shape = subject.shape_of(output)
    single = len(shape) == _RANK and shape[1] == 1
    expanded = inputs.expanded
    fed = _fed(subject, inputs, {inputs.heard.name: "$x" if expanded is None else "$one"})
    steps = [] if expanded is None else [f"{{do: expand, in: {{x: $x, expand: {expanded}}}, out: one}}"]
    steps += [f"{{run: {name}, in: {{{fed}}}, out: {flow({output: 'y' if single else 'found'})}}}"]
    steps += (
        [f"{{do: squeeze, in: {{x: $y, squeeze: {provenance.graph('squeeze', 0)}}}, out: found}}"] if single else []
    )
    batch = [f"batch: {provenance.choice('batch', _WINDOWS)}"] if fixed_rows(inputs.heard) is None else []
    size = provenance.graph("windows", window)
    last = provenance.convention("last: pad", "pad", "zeros fill up the last window")
    lines = [
        f"{{do: windows, in: {{x: $samples, size: {size}, last: {last}}}, out: [w, start]}}",
        yaml_text.each("$w", "x", steps, {"found": "found"}, *batch),
    ]
    text = (
        yaml_text.head(f"A model of recordings, {_because(subject, inputs)}: it takes windows of {window} samples.")
        + yaml_text.models(subject)
        + yaml_text.pipeline("listen", lines, {"start": "$start", "found": "$found"})
        + yaml_text.recordings_section(subject, "samples", rate=_rate(subject))
        + yaml_text.batch(None, _BATCH)
        + yaml_text.output(subject, "explode: [start, found]", note=_LINES)
    )
    seconds = max(2.0, 2.5 * window / int(yaml_text.rate_of(subject).text))
    return Starter(family=FAMILY, page=Page(marked=text), files=_sample(subject, seconds), explodes=True)


def _because(subject: Subject, inputs: _Inputs) -> str:
    return f"by the name of its input {inputs.heard.name}" if subject.data is None else "as the data say"


def _sample(subject: Subject, seconds: float = 2.0) -> dict[str, bytes]:
    return yaml_text.sample_recording(subject, seconds, int(yaml_text.rate_of(subject).text))
