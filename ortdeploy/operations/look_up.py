"""`look_up` — the number that a table has for the text of each row, such as the limit of each device.

`table` is a CSV file of two columns: a text, and its number. Its first line is a header if its second cell is no
number. A text that the table does not have gives `otherwise`; without that, its row fails.
"""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortdeploy.files.opening import read_text
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import Attribute, Contract, FormalParameter, TypeConstraint, forms
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import FLOATING
from ortdeploy.tensors.written_numbers import read_numbers
from ortdeploy.transforms.protocol import Options

_CELLS = 2

CONTRACT = Contract(
    name="look_up",
    meaning="The number that a table has for a text",
    inputs=(FormalParameter("x", "string", forms("rows"), "a text a row"),),
    outputs=(FormalParameter("number", "N", forms("rows"), "its number"),),
    attributes=(
        Attribute("table", "STRING", "a CSV file of texts and numbers", required=True, path="file"),
        Attribute("otherwise", "FLOAT", "the number of texts that are not in the table"),
        Attribute("dtype", "STRING", "the type of numbers", default="float32", choices=FLOATING, binds=("N",)),
    ),
    types=(TypeConstraint("N", FLOATING, "floating numbers"),),
)


def read(path: str) -> Mapping[str, float]:
    """Return the numbers of texts, by a file. Raises OSError, or ValueError if it holds something else."""
    text = read_text(Path(path)).removeprefix("\ufeff")
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    found: dict[str, float] = {}
    for number, line in enumerate(lines):
        if len(line) != _CELLS:
            raise ValueError(f"its line {', '.join(line)!r} has {len(line)} cells; a table has a text and a number")
        key, value = line[0], _number(line[1])
        if value is None and number == 0:
            continue
        if value is None or math.isnan(value):
            raise ValueError(f"{line[1]!r} of {key!r} is no number")
        if key in found:
            raise ValueError(f"{key!r} is in it twice")
        found[key] = value
    if not found:
        raise ValueError("it has no line with a text and a number")
    return found


def _number(text: str) -> float | None:
    try:
        return float(read_numbers(np.array([text], dtype=object), "float64")[0])
    except ValueError:
        return None


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  texts alone
    dtype, otherwise = numpy_dtype(options["dtype"]), options.get("otherwise")
    numbers = read(options["table"])

    def find(text: Array) -> tuple[Array]:
        found = numbers.get(str(text), otherwise)
        if found is None:
            raise ValueError(f"{str(text)!r} is not in {options['table']}; give such texts a number with otherwise")
        with np.errstate(over="ignore"):
            made = np.asarray(found, dtype)
        if np.isinf(made) and not math.isinf(found):
            raise ValueError(f"{found:g}, the number of {str(text)!r}, is too large for {dtype}")
        return (made,)

    return by_row(find, 1, "x")
