"""`letters` — the ids of the letters of a text, by a JSON file that maps letters to ids, or lists them in order.

A text longer than `length` is cut, and a shorter one is filled up with `pad`; without `length`, rows have one id for
each of their letters. `begin` and `end` are ids before and after the letters. A letter that the file does not have is
`unknown`; without that, its row fails. Results are like those of `tokenize`: ids, mask, and where each stands.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    MASK,
    TOKEN,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
)
from ortdeploy.transforms.protocol import Options

_TOKENS = forms("rows tokens")
_LARGEST = 2**31 - 1


def _refuse_no_room(solved: Solved, types: Types) -> None:  # noqa: ARG001  settings alone
    """Check that the ids around the letters leave room for some. Raises ContractError."""
    around = len(solved.options.get("begin", ())) + len(solved.options.get("end", ()))
    if around >= solved.options.get("length", around + 1):
        raise ContractError(f"begin and end are {around} ids, and length is {solved.options['length']}: no letter fits")


CONTRACT = Contract(
    name="letters",
    meaning="Ids of the letters of a text, by a JSON file that maps letters to ids",
    inputs=(FormalParameter("text", "string", forms("rows"), "text"),),
    outputs=(
        FormalParameter("ids", "int64", _TOKENS, "ids of letters", units=(TOKEN,)),
        FormalParameter("attention_mask", "int64", _TOKENS, "1 for an id, 0 for what is filled up", units=(MASK,)),
        FormalParameter("offsets", "int64", forms("rows tokens 2"), "where each letter begins and ends in the text"),
    ),
    attributes=(
        Attribute("map", "STRING", "a JSON file of letters and ids", required=True, path="file"),
        Attribute("length", "INT", "rows are cut and filled up to it", least=1, most=65536, binds=("tokens",)),
        Attribute("pad", "INT", "what rows are filled up with", default=0, least=0, most=_LARGEST),
        Attribute("unknown", "INT", "the id of letters that are not in the file", least=0, most=_LARGEST),
        Attribute("begin", "INTS", "ids before the letters", least=0, most=_LARGEST),
        Attribute("end", "INTS", "ids after them", least=0, most=_LARGEST),
    ),
    arithmetic=_refuse_no_room,
)


def read(path: str) -> Mapping[str, int]:
    """Return the ids of letters, by a file. Raises OSError, or ValueError if it holds something else."""
    found = read_json(read_text(Path(path)))
    if isinstance(found, list):
        found = {letter: number for number, letter in enumerate(found)}
    if not isinstance(found, dict) or not found:
        raise ValueError("it is no JSON object of letters and ids, and no list of letters")
    for letter, number in found.items():
        if not isinstance(letter, str) or type(number) is not int or not 0 <= number <= _LARGEST:
            raise ValueError(f"{letter!r}: {number!r} is no letter with an id from 0 to {_LARGEST}")
    return found


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  texts alone
    ids = read(options["map"])
    begin, end = options.get("begin", []), options.get("end", [])
    length, unknown = options.get("length"), options.get("unknown")
    most = None if length is None else length - len(begin) - len(end)

    def of_letter(letter: str) -> int:
        number = ids.get(letter, unknown)
        if number is None:
            raise ValueError(f"{letter!r} is not in {options['map']}; give unknown letters an id with unknown")
        return number

    def of_text(text: str) -> tuple[Array, Array, Array]:
        letters = [of_letter(letter) for letter in str(text)[:most]]
        found = [*begin, *letters, *end]
        filled = (length or len(found)) - len(found)
        offsets = np.zeros((len(found) + filled, 2), np.int64)
        offsets[len(begin) : len(begin) + len(letters)] = np.arange(len(letters))[:, np.newaxis] + [0, 1]
        mask = np.array([1] * len(found) + [0] * filled, np.int64)
        return np.array([*found, *[options["pad"]] * filled], np.int64), mask, offsets

    return by_row(of_text, 3, "text")
