"""Models that find lines of text: a map of heat as large as the picture (PaddleOCR, RapidOCR)."""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
from ortdeploy.starters import writing
from ortdeploy.starters.pictures import SCALE, PictureInput, picture_input, sample_pictures
from ortdeploy.starters.subject import Starter, Subject

_RANK = 4
FAMILY = "a text detector (PaddleOCR, RapidOCR)"


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to the corners of lines of text."""
    picture = picture_input(subject)
    heat = [name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK and shape[1] == 1]
    if picture is None or not heat or not picture.open or picture.layout != "NCHW":
        return
    low, high = subject.ran.ranges.get(heat[0], (-1.0, 2.0))
    as_large = subject.shape_of(heat[0])[2:] == (picture.height, picture.width)
    upsampled = any(node.operator == "ConvTranspose" for node in subject.facts.nodes)
    if as_large and upsampled and low >= 0 and high <= 1:
        yield _starter(subject, picture, heat[0])


def _starter(subject: Subject, picture: PictureInput, heat: str) -> Starter:
    name, taken = scalar(subject.name), scalar(picture.name)
    lines = [
        "{do: bgr, in: {x: $image}, out: bgr}",
        "{do: resize, in: {x: $bgr, resize: {shortest: 736, only: grow, multiple: 32}, sampling: opencv}, out: sized}",
        f"{{do: scale, in: {{x: $sized, {SCALE[1:-1]}}}, out: scaled}}",
        "{do: normalize, in: {x: $scaled, normalize: {mean: 0.5, std: 0.5}}, out: normal}",
        "{do: layout, in: {x: $normal, layout: NCHW}, out: planes}",
        f"{{run: {name}, in: {{{taken}: $planes}}, out: {{{scalar(heat)}: heat}}}}",
        "{do: text_boxes, in: {heat: $heat, image: $image}, out: [boxes, scores]}",
    ]
    text = (
        writing.head(
            "A text detector, by its graph: it gives one map from 0 to 1, as large as the picture.",
            "Sizes, colors and scale are those of RapidOCR, for models of PP-OCR.",
        )
        + writing.models(subject)
        + writing.picture_pipeline(
            subject, "find", lines, {"boxes": "$boxes", "scores": "$scores"}, "1}  # pictures differ in size"
        )
    )
    return Starter(family=FAMILY, text=text, files=sample_pictures(subject, 160, 320))
