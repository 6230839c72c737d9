"""Models that read a line of text: steps along the line, each with scores of letters (CTC; PaddleOCR, RapidOCR)."""

from collections.abc import Iterator

from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import writing
from ortdeploy.starters.pictures import SCALE, PictureInput, picture_input, sample_pictures
from ortdeploy.starters.subject import Starter, Subject

_RANK = 3
_TALLEST = 96
_FEWEST = 10
_CHARACTER = "character"
_FILES = ("keys.txt", "dict.txt", "ppocr_keys_v1.txt", "en_dict.txt", "characters.txt", "charset.txt")
FAMILY = "a reader of lines of text (CTC)"


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures of lines to their text."""
    line = _line(subject)
    alphabet = line and letters_of(subject, subject.name, subject.facts, subject.shape_of(line[1])[2])
    if line is not None and alphabet is not None:
        yield _starter(subject, *line, *alphabet)


def missing_letters(subject: Subject) -> str | None:
    """Say what a model lacks that would be a reader of lines if its letters were known."""
    line = _line(subject)
    if line is None:
        return None
    classes = subject.shape_of(line[1])[2]
    return (
        f"If this is a reader of lines of text ({classes} scores for each place of a line), its letters are unknown: "
        f"write them, one a line, to {_FILES[0]} beside the model, and run init again"
    )


def _line(subject: Subject) -> tuple[PictureInput, str] | None:
    """Return the input that takes a picture of a line, and the output that has scores along it."""
    picture = picture_input(subject)
    along = [name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK and shape[2] > _FEWEST]
    if picture is None or not along or picture.height > _TALLEST or picture.layout != "NCHW":
        return None
    return picture, along[0]


def letters_of(subject: Subject, name: str, facts: ModelFacts, classes: int) -> tuple[str, str] | None:
    """Return the letters of a model as settings of ctc_greedy, and where they are from.

    They are all but the blank, or all but the blank and the space. `name` is what the manifest calls the model.
    """
    written = facts.metadata.get(_CHARACTER, "")
    if written:
        letters = len(written.splitlines())
        return f"model: {scalar(name)}{_space(classes - letters)}", f'"{_CHARACTER}" in the model\'s metadata'
    beside = subject.beside(*_FILES)
    letters = len(subject.lines(beside)) if beside is not None else 0
    return (f"from: {scalar(beside)}{_space(classes - letters)}", f"the lines of {beside}") if letters else None


def _space(missing: int) -> str:
    """Return what puts a space behind the letters, if the model has a class for it beside the blank."""
    return ', append: " "' if missing > 1 else ""


def _starter(subject: Subject, picture: PictureInput, output: str, alphabet: str, told: str) -> Starter:
    name, taken = scalar(subject.name), scalar(picture.name)
    high, wide = picture.height, picture.width if not picture.open else 320
    resized = f"{{height: {high}, round_up_to: {wide}}}" if picture.open else f"{{height: {high}, max_width: {wide}}}"
    color = "grayscale" if picture.channels == 1 else "bgr"
    lines = [
        f"{{do: {color}, in: {{x: $image}}, out: colors}}",
        *reading("$colors", resized, (high, wide)),
        f"{{run: {name}, in: {{{taken}: $line_planes}}, out: {{{scalar(output)}: logits}}}}",
        f"{{do: ctc_greedy, in: {{logits: $logits, {alphabet}}}, out: [text, score]}}",
    ]
    text = (
        writing.head(
            f"A reader of lines of text, by its shapes; its letters are {told}.",
            "Colors and scale are those of PaddleOCR and RapidOCR. A row is a picture of one line.",
        )
        + writing.models(subject)
        + writing.picture_pipeline(
            subject, "read", lines, {"text": "$text", "score": "$score"}, "1}  # lines differ in width"
        )
    )
    return Starter(family=FAMILY, text=text, files=sample_pictures(subject, high, 240))


def reading(picture: str, resized: str, size: tuple[int, int]) -> list[str]:
    """Return the steps from a picture of a line to `line_planes`, which a reader takes; none is less than `size`."""
    return [
        f"{{do: resize, in: {{x: {picture}, resize: {resized}, sampling: opencv}}, out: small}}",
        f"{{do: scale, in: {{x: $small, {SCALE[1:-1]}}}, out: scaled_line}}",
        "{do: normalize, in: {x: $scaled_line, normalize: {mean: 0.5, std: 0.5}}, out: normal_line}",
        f"{{do: pad, in: {{x: $normal_line, pad: {flow(list(size))}, place: top_left}}, out: padded}}",
        "{do: layout, in: {x: $padded, layout: NCHW}, out: line_planes}",
    ]
