"""Element types and shapes, in numpy's and in ONNX Runtime's names. No arrays here, so that planning stays light."""

from msgspec import Struct
from msgspec.structs import replace

Dimension = int | str | None
"""A fixed size, a symbolic dimension, or one that nothing is known about."""

Shape = tuple[Dimension, ...]

_ELEMENTS: dict[str, tuple[str, int]] = {
    "bool": ("bool", 9),
    "float16": ("float16", 10),
    "float32": ("float", 1),
    "float64": ("double", 11),
    "int8": ("int8", 3),
    "int16": ("int16", 5),
    "int32": ("int32", 6),
    "int64": ("int64", 7),
    "string": ("string", 8),
    "uint8": ("uint8", 2),
    "uint16": ("uint16", 4),
    "uint32": ("uint32", 12),
    "uint64": ("uint64", 13),
    "bfloat16": ("bfloat16", 16),
    "float8_e4m3fn": ("float8e4m3fn", 17),
    "float8_e4m3fnuz": ("float8e4m3fnuz", 18),
    "float8_e5m2": ("float8e5m2", 19),
    "float8_e5m2fnuz": ("float8e5m2fnuz", 20),
    "float8_e8m0fnu": ("float8e8m0", 24),
    "int2": ("int2", 26),
    "int4": ("int4", 22),
    "uint2": ("uint2", 25),
    "uint4": ("uint4", 21),
}
"""Element types that a row can have; what ONNX Runtime calls them inside `tensor(…)`; and their numbers in ONNX's
TensorProto. The names are numpy's, and ml_dtypes' from bfloat16 on."""

ELEMENT_TYPES: dict[str, str] = {name: word for name, (word, _) in _ELEMENTS.items()}
"""What ONNX Runtime calls them."""

ELEMENT_NUMBERS: dict[str, int] = {
    name: number for number, name in sorted((number, name) for name, (_, number) in _ELEMENTS.items())
}
"""Their numbers, in order."""

WIDER: dict[str, str] = {
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e8m0fnu": "float32",
    "int2": "int8",
    "int4": "int8",
    "uint2": "uint8",
    "uint4": "uint8",
}
"""Element types that numpy does not have, and the type of numpy that holds all their values, which files hold."""

MAP = "map"
"""The type of results whose items are maps, which no tensor holds."""

USUAL = "float32"
"""The element type in which numbers of text are read, if nothing wants another."""

FLOATING = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

ROWS = "rows"
"""The name that the rows' own dimension, always the first one, has in what ortdeploy prints."""

LINE_COLUMNS = ("row", "item")
"""What each line has where it is an item of a row: the number of the row in its job, and its place in the row."""


class TensorType(Struct, frozen=True):
    """What is known of a tensor: None for an unknown element type, an unknown rank, an unknown layout or unit.

    A unit is one of those of `contracts`, and only steps tell it: a graph does not.
    """

    dtype: str | None = None
    shape: Shape | None = None
    layout: str | None = None
    unit: str | None = None

    def __str__(self) -> str:
        """`float32 [rows, 1, 8, 8]`, with `?` for what is unknown."""
        return f"{self.dtype or '?'} {format_shape(self.shape)}"

    def with_shape(self, shape: Shape | None) -> "TensorType":
        """Return the same element type, layout and unit in another shape."""
        return replace(self, shape=shape)


def format_shape(shape: Shape | None) -> str:
    """`[batch, 1, 8, 8]`; `[…]` when not even the rank is known."""
    if shape is None:
        return "[…]"
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def row_in_words(shape: Shape | None) -> str:
    """Return what one row is: `[3, 8, 8]`, or `a single value`."""
    return "a single value" if shape == () else format_shape(shape)


def dimensions_agree(have: Dimension, want: Dimension) -> bool:
    """Two dimensions disagree only when both are numbers and differ."""
    return not (isinstance(have, int) and isinstance(want, int)) or have == want


def shapes_agree(have: Shape | None, want: Shape | None) -> bool:
    """Two shapes disagree if their ranks differ, or two of their dimensions."""
    if have is None or want is None:
        return True
    return len(have) == len(want) and all(map(dimensions_agree, have, want))


def is_of_one_row(have: Shape | None, want: Shape | None) -> bool:
    """Return whether the whole of what is wanted looks like one row of what there is."""
    if have is None or want is None or len(have) != len(want) + 1:
        return False
    return all(dimensions_agree(*pair) for pair in zip(have[1:], want, strict=True))


class InapplicableError(Exception):
    """The step cannot take a tensor of this type; the text says why, in a sentence without its full stop."""
