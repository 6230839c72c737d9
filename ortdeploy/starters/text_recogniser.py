"""Models that read a line of text: steps along the line, each with scores of letters (CTC; PaddleOCR, RapidOCR)."""

from collections.abc import Iterator
from functools import partial

from ortdeploy.facts.models import ModelFacts
from ortdeploy.files.text_lines import lines_of
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, coloured, picture_input, sample_pictures
from ortdeploy.starters.provenance import Page

_RANK = 3
_TALLEST = 96
_FEWEST = 10
_CHARACTER = "character"
_FILES = ("keys.txt", "dict.txt", "ppocr_keys_v1.txt", "en_dict.txt", "characters.txt", "charset.txt")
OF = "RapidOCR's, for models of PP-OCR"
FAMILY = "a reader of lines of text (CTC)"


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures of lines to their text."""
    line = _line(subject)
    alphabet = line and letters_of(subject, subject.name, subject.facts, _classes(subject, line[1]))
    if line is not None and alphabet is not None:
        yield _starter(subject, *line, *alphabet)


def missing_letters(subject: Subject) -> str | None:
    """Say what a model lacks that would be a reader of lines if its letters were known."""
    line = _line(subject)
    if line is None:
        return None
    classes = _classes(subject, line[1])
    return (
        f"If this is a reader of lines of text ({classes} scores for each place of a line), its letters are unknown: "
        f"write them, one a line, to {_FILES[0]} beside the model, and run init again"
    )


def _line(subject: Subject) -> tuple[PictureInput, str] | None:
    """Return the input that takes a picture of a line, and the output that has scores along it."""
    picture = picture_input(subject)
    along = [name for name in subject.ran.outputs if _classes(subject, name) > _FEWEST]
    if picture is None or not along or picture.height > _TALLEST or picture.layout != "NCHW":
        return None
    return picture, along[0]


def _classes(subject: Subject, output: str) -> int:
    """Return how many scores an output [rows, steps, classes] has for each step; 0 if the graph does not fix that."""
    shape = subject.shape_of(output)
    return shape[-1] or 0 if len(shape) == _RANK and isinstance(shape[-1], int) else 0


def letters_of(subject: Subject, name: str, facts: ModelFacts, classes: int) -> tuple[str, str] | None:
    """Return the letters of a model as settings of ctc_greedy, and where they are from.

    They are all but the blank, or all but the blank and the space. `name` is what the manifest calls the model.
    """
    written = facts.metadata.get(_CHARACTER, "")
    if written:
        letters = len(lines_of(written))
        of = provenance.metadata("letters", scalar(name))
        return f"model: {of}{_space(classes - letters)}", f'"{_CHARACTER}" in the model\'s metadata'
    beside = subject.beside(*_FILES)
    letters = len(subject.lines(beside)) if beside is not None else 0
    if beside is None or not letters:
        return None
    blank = provenance.convention("blank 0 (some models have it last: -1)", 0, OF)
    given = f"from: {provenance.beside('letters', scalar(beside))}, blank: {blank}{_space(classes - letters)}"
    return given, f"the lines of {beside}"


def _space(missing: int) -> str:
    """Return what puts a space behind the letters, if the model has a class for it beside the blank."""
    return f", append: {provenance.convention('the space behind the letters', scalar(' '), OF)}" if missing > 1 else ""


def _starter(subject: Subject, picture: PictureInput, output: str, alphabet: str, told: str) -> Starter:
    name, taken = scalar(subject.name), scalar(picture.name)
    high, wide = picture.height, picture.width if not picture.open else 320
    height = provenance.graph("height", high)
    width = provenance.convention("width 320", wide, OF) if picture.open else provenance.graph("width", wide)
    resized = f"{{height: {height}, {'round_up_to' if picture.open else 'max_width'}: {width}}}"
    lines = [
        coloured(picture, "bgr", OF),
        *reading("$colors", resized, (high, wide)),
        f"{{run: {name}, in: {{{taken}: $line_planes}}, out: {{{scalar(output)}: logits}}}}",
        f"{{do: ctc_greedy, in: {{logits: $logits, {alphabet}}}, out: [text, score]}}",
    ]
    text = (
        yaml_text.head(
            f"A reader of lines of text, by its shapes; its letters are {told}.",
            "Colors and scale are those of PaddleOCR and RapidOCR. A row is a picture of one line.",
        )
        + yaml_text.models(subject)
        + yaml_text.pipeline("read", lines, {"text": "$text", "score": "$score"})
        + yaml_text.picture_job(subject, yaml_text.batch(picture.batch, 1, "lines differ in width"))
    )
    return Starter(family=FAMILY, page=Page(marked=text), files=sample_pictures(subject, high, 240))


def reading(picture: str, resized: str, size: tuple[int, int]) -> list[str]:
    """Return the steps from a picture of a line to `line_planes`, which a reader takes; none is less than `size`."""
    usual = partial(provenance.convention, of=OF)
    normal, padded = usual("mean and std", "{mean: 0.5, std: 0.5}"), usual("padding", flow(list(size)))
    return [
        f"{{do: resize, in: {{x: {picture}, resize: {resized}, sampling: {usual('sampling', 'opencv')}}}, out: small}}",
        f"{{do: scale, in: {{x: $small, scale: {usual('scale', PER_255)}}}, out: scaled_line}}",
        f"{{do: normalize, in: {{x: $scaled_line, normalize: {normal}}}, out: normal_line}}",
        f"{{do: pad, in: {{x: $normal_line, pad: {padded}, place: {usual('place', 'top_left')}}}, out: padded}}",
        f"{{do: layout, in: {{x: $padded, layout: {provenance.graph('layout', 'NCHW')}}}, out: line_planes}}",
    ]
