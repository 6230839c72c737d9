"""Wake words of openWakeWord: a small network over embeddings, which two shared networks make of recordings."""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
from ortdeploy.sources.catalogue import RECORDINGS
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.provenance import Given, Page

FAMILY = "a wake word (openWakeWord)"
_VALUES = 96
"""Of one embedding."""

_SHARED = {"melspectrogram": ("melspectrogram.onnx",), "embedding": ("embedding_model.onnx", "embedding.onnx")}
_RANK = 3
_BATCH, _WINDOWS = 1, 256


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that hears a word in recordings, if the shared networks lie beside its model."""
    value = subject.only_input
    shape = () if value is None else value.tensor.shape or ()
    given = subject.shape_of(next(iter(subject.ran.outputs), ""))
    if (
        value is None
        or len(shape) != _RANK
        or shape[2] != _VALUES
        or not isinstance(shape[1], int)
        or given[1:] != (1,)
    ):
        return
    shared = {name: subject.beside(*files) for name, files in _SHARED.items()}
    if all(shared.values()) and (subject.data is None or subject.data.format in RECORDINGS):
        yield _starter(subject, value.name, shape[1], {name: path or "" for name, path in shared.items()})


def _starter(subject: Subject, heard: str, length: int, shared: dict[str, str]) -> Starter:
    text = (
        yaml_text.head(
            f"A wake word for openWakeWord, by its shapes, with {' and '.join(shared.values())} beside it.",
            "openWakeWord hears whole numbers of 16 bits, and its embeddings take a tenth of the decibels, and 2.",
            "A line says how probable the word is at one more step of 80 ms.",
        )
        + yaml_text.models(subject, shared)
        + _pipeline(subject, heard, length)
        + yaml_text.recordings_section(subject, "samples")
        + yaml_text.batch(None, _BATCH, "recordings differ in length")
        + yaml_text.output(subject, "explode: [at, score]")
    )
    return Starter(family=FAMILY, page=Page(marked=text), files=yaml_text.sample_recording(subject, 4.0), explodes=True)


def _pipeline(subject: Subject, heard: str, length: int) -> str:
    """Return the section of the pipeline, from samples to a score for each `length` embeddings."""
    name, output = scalar(subject.name), scalar(next(iter(subject.ran.outputs)))
    size, steps = provenance.graph("embeddings", length), _usual("steps", "hop: 1, last: drop")
    before = [
        f"{{do: scale, in: {{x: $samples, scale: {_usual('scale', 32768)}}}, out: loud}}",
        "{run: melspectrogram, in: {input: $loud}, out: {output: decibels}}",
        f"{{op: Squeeze, {_usual('axes', 'by_row: true, in: {data: $decibels, axes: [0]}')}, out: spectrum}}",
        f"{{op: Div, in: {{A: $spectrum, B: {_usual('a tenth of the decibels', 10)}}}, out: tenth}}",
        f"{{op: Add, in: {{A: $tenth, B: {_usual('and 2', 2)}}}, out: mel}}",
        f"{{do: windows, in: {{x: $mel, {_usual('windows', 'size: 76, hop: 8, last: drop')}}}, out: [w, begins]}}",
    ]
    embeds = [
        f"{{op: Unsqueeze, in: {{data: $x, axes: {_usual('axes', '[3]')}}}, out: planes}}",
        "{run: embedding, in: {input_1: $planes}, out: {conv2d_19: embedded}}",
        f"{{op: Squeeze, in: {{data: $embedded, axes: {_usual('axes', '[1, 2]')}}}, out: vector}}",
    ]
    decides = [
        f"{{run: {name}, in: {{{scalar(heard)}: $y}}, out: {{{output}: p}}}}",
        f"{{do: squeeze, in: {{x: $p, squeeze: {provenance.graph('squeeze', 0)}}}, out: score}}",
    ]
    batch = f"batch: {provenance.choice('batch', _WINDOWS)}"
    lines = [
        *before,
        yaml_text.each("$w", "x", embeds, {"vector": "vectors"}, batch),
        f"{{do: windows, in: {{x: $vectors, size: {size}, {steps}}}, out: [v, at]}}",
        yaml_text.each("$v", "y", decides, {"score": "scores"}, batch),
    ]
    return yaml_text.pipeline("listen", lines, {"at": "$at", "score": "$scores"})


def _usual(name: str, text: object) -> Given:
    return provenance.convention(name, text, "openWakeWord's")
