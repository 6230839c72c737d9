"""Models that read a line of text: steps along the line, each with scores of letters (CTC; PaddleOCR, RapidOCR)."""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
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
    picture = picture_input(subject)
    steps = [name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK and shape[2] > _FEWEST]
    if picture is None or not steps or picture.height > _TALLEST or picture.layout != "NCHW":
        return
    alphabet = _alphabet(subject, subject.shape_of(steps[0])[2])
    if alphabet is not None:
        yield _starter(subject, picture, steps[0], *alphabet)


def _alphabet(subject: Subject, classes: int) -> tuple[str, str] | None:
    """Return the letters as settings of ctc_greedy, and where they are from: all but the blank, or the space too."""
    written = subject.facts.metadata.get(_CHARACTER, "")
    if written:
        letters = len(written.splitlines())
        return f"model: {scalar(subject.name)}{_space(classes - letters)}", f'"{_CHARACTER}" in the model\'s metadata'
    beside = subject.beside(*_FILES)
    if beside is None:
        return None
    letters = len((subject.folder / beside).read_text(encoding="utf-8", errors="replace").splitlines())
    return f"from: {scalar(beside)}{_space(classes - letters)}", f"the lines of {beside}"


def _space(missing: int) -> str:
    """Return what puts a space behind the letters, where the model has a class for it beside the blank."""
    return ', append: " "' if missing > 1 else ""


def _starter(subject: Subject, picture: PictureInput, output: str, alphabet: str, told: str) -> Starter:
    name, taken = scalar(subject.name), scalar(picture.name)
    high, wide = picture.height, picture.width if not picture.open else 320
    resized = f"{{height: {high}}}" if picture.open else f"{{height: {high}, max_width: {wide}}}"
    gray = picture.channels == 1
    lines = [
        f"{{do: {'grayscale' if gray else 'bgr'}, in: {{x: $image}}, out: colors}}",
        f"{{do: resize, in: {{x: $colors, resize: {resized}, sampling: opencv}}, out: sized}}",
        f"{{do: scale, in: {{x: $sized, {SCALE[1:-1]}}}, out: scaled}}",
        "{do: normalize, in: {x: $scaled, normalize: {mean: 0.5, std: 0.5}}, out: normal}",
        f"{{do: pad, in: {{x: $normal, pad: [{high}, {wide}], place: top_left}}, out: padded}}",
        "{do: layout, in: {x: $padded, layout: NCHW}, out: planes}",
        f"{{run: {name}, in: {{{taken}: $planes}}, out: {{{scalar(output)}: logits}}}}",
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
