"""Models that find lines of text: a map of heat as large as the picture (PaddleOCR, RapidOCR).

If a reader of lines lies beside it, both make one pipeline from pages to their text.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from ortdeploy.facts.models import ModelFacts
from ortdeploy.graph.model import read_model
from ortdeploy.manifest.write import scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, picture_input, sample_pictures
from ortdeploy.starters.provenance import Page
from ortdeploy.starters.text_recogniser import OF, letters_of, reading

_RANK, _READER_RANK = 4, 3
_TO_ONE = ("Clip", "HardSigmoid", "Sigmoid")
"""Operators that give numbers from 0 to 1."""
_DIFFER = "pictures differ in size"
_READERS = ("*rec*.onnx", "*reader*.onnx")
FAMILY = "a text detector (PaddleOCR, RapidOCR)"
TOGETHER = "a text detector and the reader of lines beside it (PaddleOCR, RapidOCR)"


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to the corners of lines of text."""
    picture = picture_input(subject)
    shapes = {name: subject.shape_of(name) for name in subject.ran.outputs}
    heat = [name for name, shape in shapes.items() if len(shape) == _RANK and shape[1] == 1]
    if picture is None or not heat or not picture.open or picture.layout != "NCHW":
        return
    as_large = subject.ran_shape(heat[0])[2:] == (picture.height, picture.width)
    upsampled = any(node.operator == "ConvTranspose" for node in subject.facts.nodes)
    if as_large and upsampled and subject.operator_of(heat[0]) in _TO_ONE:
        reader = _reader(subject)
        if reader is not None:
            yield _starter(subject, picture, heat[0], reader)
        yield _starter(subject, picture, heat[0], None)


class _Reader(Struct, frozen=True, kw_only=True):
    """A model that reads lines: its path from the manifest, its facts, the height of its lines, and its letters."""

    path: str
    facts: ModelFacts
    height: int
    letters: str

    @property
    def name(self) -> str:
        """What the manifest calls it."""
        return PurePosixPath(self.path).stem


def _reader(subject: Subject) -> _Reader | None:
    """Return the first model beside the detector whose name and metadata say that it reads lines."""
    for pattern in _READERS:
        for path in sorted(subject.model.parent.glob(pattern)):
            facts = read_model(path, str(path))
            found = _as_reader(subject, path, facts) if path != subject.model and facts.problem is None else None
            if found is not None:
                return found
    return None


def _as_reader(subject: Subject, path: Path, facts: ModelFacts) -> _Reader | None:
    shapes = [one.tensor.shape or () for one in (*facts.inputs, *facts.outputs)]
    if [len(shape) for shape in shapes] != [_RANK, _READER_RANK] or not subject.holds(path):
        return None
    height, classes = shapes[0][2], shapes[1][2]
    letters = letters_of(subject, path.stem, facts, classes if isinstance(classes, int) else 0)
    if letters is None or not isinstance(height, int):
        return None
    return _Reader(path=subject.relative(path), facts=facts, height=height, letters=letters[0])


def _starter(subject: Subject, picture: PictureInput, heat: str, reader: _Reader | None) -> Starter:
    name, taken = scalar(subject.name), scalar(picture.name)
    outputs = "[boxes, scores]" if reader is None else "boxes"
    usual = partial(provenance.convention, of=OF)
    sized = usual("size", "{shortest: 736, only: grow, multiple: 32}")
    normal = usual("mean and std", "{mean: 0.5, std: 0.5}")
    lines = [
        str(usual("BGR", "{do: bgr, in: {x: $image}, out: bgr}")),
        f"{{do: resize, in: {{x: $bgr, resize: {sized}, sampling: {usual('sampling', 'opencv')}}}, out: sized}}",
        f"{{do: scale, in: {{x: $sized, scale: {usual('scale', PER_255)}}}, out: scaled}}",
        f"{{do: normalize, in: {{x: $scaled, normalize: {normal}}}, out: normal}}",
        f"{{do: layout, in: {{x: $normal, layout: {provenance.graph('layout', 'NCHW')}}}, out: planes}}",
        f"{{run: {name}, in: {{{taken}: $planes}}, out: {{{scalar(heat)}: heat}}}}",
        f"{{do: text_boxes, in: {{heat: $heat, image: $image}}, out: {outputs}}}",
    ]
    pipeline = _found(lines) if reader is None else _read(lines, reader)
    text = (
        yaml_text.head(
            "A text detector, by its graph: it gives one map from 0 to 1, as large as the picture.",
            *([f"{reader.path}, which lies beside it, reads each line that it finds."] if reader else []),
            "Sizes, colors and scale are those of RapidOCR, for models of PP-OCR.",
        )
        + yaml_text.models(subject, {reader.name: reader.path} if reader else {})
        + pipeline
        + yaml_text.picture_job(subject, yaml_text.batch(None, 1, _DIFFER))
    )
    family, files = FAMILY if reader is None else TOGETHER, sample_pictures(subject, 160, 320)
    return Starter(family=family, page=Page(marked=text), files=files)


def _found(lines: list[str]) -> str:
    return yaml_text.pipeline("find", lines, {"boxes": "$boxes", "scores": "$scores"})


def _read(lines: list[str], reader: _Reader) -> str:
    """Return the pipeline that also reads each line that was found."""
    (taken,), (given,) = reader.facts.inputs, reader.facts.outputs
    name, width = scalar(reader.name), 320
    fed, made = f"{{{scalar(taken.name)}: $line_planes}}", f"{{{scalar(given.name)}: logits}}"
    usual = provenance.convention("width 320", width, OF)
    resized = f"{{height: {provenance.graph('height', reader.height)}, round_up_to: {usual}}}"
    each = [
        *reading("$line", resized, (reader.height, width)),
        f"{{run: {name}, in: {fed}, out: {made}}}",
        f"{{do: ctc_greedy, in: {{logits: $logits, {reader.letters}}}, out: [text, score]}}",
    ]
    lines = [
        *lines,
        "{do: crop, in: {image: $bgr, boxes: $boxes}, out: lines}",
        yaml_text.each("$lines", "line", each, {"text": "texts", "score": "scores"}),
    ]
    return yaml_text.pipeline("read", lines, {"boxes": "$boxes", "texts": "$texts", "scores": "$scores"})
