"""`pad: [HEIGHT, WIDTH]`, or `pad: {multiple: 32}` — images of at least that size; `pad: LENGTH` — rows of values.

Larger images and longer rows stay as they are. An image is centered; with `place: top_left`, it is filled up only at
the right and the bottom. Rows of values are filled up at one end.
"""

from collections.abc import Mapping

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    IMAGE,
    NUMBERS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
)
from ortdeploy.tensors.conversion import ConversionError, convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.fitting import PLACE, padded
from ortdeploy.transforms.protocol import Apply, Options, image_axes


def _grow(solved: Solved, types: Types) -> None:
    """Enlarge the sizes of a shape to at least the wanted ones. Raises ContractError."""
    wanted = solved.options["pad"]
    is_length = isinstance(wanted, int)
    if not is_length and "side" in solved.options:
        raise ContractError("side is for rows of values; an image is filled up by its place. Take it away")
    if is_length and "place" in solved.options:
        raise ContractError("place is for images; rows of values are filled up at a side. Take it away")
    if is_length and types["x"].shape is None:  # it is no image
        solved.layout = None
    if types["x"].shape is not None and is_length != (len(types["x"].shape) == 2):  # noqa: PLR2004  rows and values
        said = "a length, such as pad: 1024, for rows of values" if not is_length else "a height and a width for images"
        raise ContractError(f"it takes {said}, and gets {types['x']}")
    for place, name in enumerate(["length"] if is_length else ["height", "width"]):
        have = solved.size(name)
        solved.sizes[f"padded_{name}"] = None if have is None else _at_least(wanted, place, have)
    _hold_value(solved)


def _at_least(wanted: Mapping[str, int] | list[int] | int, place: int, have: int) -> int:
    """Return the size of a side: the wanted one, or the present one if that is larger."""
    if isinstance(wanted, Mapping):
        return -(-have // wanted["multiple"]) * wanted["multiple"]
    return max(have, wanted if isinstance(wanted, int) else wanted[place])


def _hold_value(solved: Solved) -> None:
    """Refuse to fill up with a number that the element type cannot hold. Raises ContractError."""
    value, dtype = solved.options.get("value", 0), solved.types.get("T")
    try:
        convert(np.asarray(value), dtype or "float64")
    except ConversionError as error:
        raise ContractError(f"value: {error}; cast before") from error


CONTRACT = Contract(
    name="pad",
    meaning="At least that size, an image in the middle, other values at one end; what is larger stays as it is",
    inputs=(FormalParameter("x", "T", (*IMAGE, *forms("rows length")), "images, or rows of values"),),
    outputs=(
        FormalParameter(
            "padded",
            "T",
            forms(
                "NHWC rows padded_height padded_width channels",
                "NCHW rows channels padded_height padded_width",
                "rows padded_length",
            ),
            "what has at least that size",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(
        Attribute(
            "pad", "INTS", "height, width; or a length", required=True, least=1, most=2**24, length=2, scalar=True
        ),
        Attribute("pad.multiple", "INT", "what each side is to be a multiple of", least=1, most=65536),
        PLACE,
        Attribute("value", "FLOAT", "what is filled in", default=0),
        Attribute("side", "STRING", "where a row of values is filled up", default="end", choices=("start", "end")),
    ),
    types=(NUMBERS,),
    arithmetic=_grow,
)


def build(options: Options, tensor: TensorType) -> Apply:
    wanted = options["pad"]
    if isinstance(wanted, int):
        return lambda array: (_fill_up(array, wanted, options),)
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        height, width = (_at_least(wanted, place, array.shape[axis]) for place, axis in enumerate(axes))
        return (padded(array, axes, (height, width), options["place"], options["value"]),)

    return apply


def _fill_up(array: Array, length: int, options: Options) -> Array:
    """Return rows [rows, values, …] with at least `length` values each."""
    missing = max(length - array.shape[1], 0)
    widths = (missing, 0) if options["side"] == "start" else (0, missing)
    return np.pad(array, [(0, 0), widths], constant_values=convert(np.asarray(options["value"]), array.dtype.name))
