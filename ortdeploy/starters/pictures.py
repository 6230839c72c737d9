"""What starters of picture models share: which input takes a picture, its size, its samples, and how it is prepared."""

import glob

from msgspec import Struct

from ortdeploy.manifest.write import flow
from ortdeploy.starters import provenance, samples
from ortdeploy.starters.labels import Labels
from ortdeploy.starters.model_info import Subject, is_installed
from ortdeploy.starters.provenance import Given

_PICTURES = ("image", "video")
_RANK = 4
PER_255 = "0.00392156862745098"
"""The scale from 0..255 to 0..1."""


class PictureInput(Struct, frozen=True, kw_only=True):
    """The input that takes a picture: its name, layout, channels, height and width.

    `batch` is None if any number of rows will do. `open`: the graph leaves height or width open.
    """

    name: str
    layout: str
    channels: int
    height: int
    width: int
    batch: int | None
    open: bool
    floating: bool


def picture_input(subject: Subject) -> PictureInput | None:
    """Return the one input of a model if it takes pictures and they can be read here."""
    value = subject.only_input
    shape = () if value is None else value.tensor.shape or ()
    data = subject.data
    if value is None or len(shape) != _RANK or not is_installed("PIL") or (data and data.format not in _PICTURES):
        return None
    layout = value.tensor.layout or ("NHWC" if shape[3] in {1, 3} else "NCHW")
    axes = {sign: layout.index(sign) for sign in "CHW"}
    channels = shape[axes["C"]]
    fed = subject.ran.fed.get(value.name)
    if channels not in {1, 3} or not isinstance(channels, int) or fed is None:
        return None
    return PictureInput(
        name=value.name,
        layout=layout,
        channels=channels,
        height=fed[axes["H"]],
        width=fed[axes["W"]],
        batch=shape[0] if isinstance(shape[0], int) else None,
        open=not (isinstance(shape[axes["H"]], int) and isinstance(shape[axes["W"]], int)),
        floating=value.tensor.dtype != "uint8",
    )


def size_of(picture: PictureInput) -> Given:
    """Return the height and width that a model takes, as steps name them."""
    text = flow([picture.height, picture.width])
    if picture.open:
        return provenance.convention("size", text, "the graph takes others too")
    return provenance.graph("size", text)


def coloured(picture: PictureInput, usual: str, of: str) -> str:
    """Return the step from `$image` to `$colors`: the channels that a model takes, three of them in `of`'s usual order.

    Pictures of a folder may be grey ones and coloured ones.
    """
    step = f"{{do: {'grayscale' if picture.channels == 1 else usual}, in: {{x: $image}}, out: colors}}"
    if picture.channels == 1:
        return str(provenance.graph("grayscale", step))
    return str(provenance.convention(usual.upper(), step, of))


def sample_pictures(subject: Subject, height: int, width: int, labels: Labels | None = None) -> dict[str, bytes]:
    """Return two pictures, by name, or none if the user has some; and what is written of labels."""
    made = {
        f"{subject.stem}-sample-{number}.png": samples.picture(height + 40 * number, width + 64 * number, 3)
        for number in (range(2) if subject.data is None else ())
    }
    return made | dict(labels.files if labels else {})


def sample_path(subject: Subject) -> str:
    """Return the path of these."""
    return f"{glob.escape(subject.stem)}-sample-*.png"
