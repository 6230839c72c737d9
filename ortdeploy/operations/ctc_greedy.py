"""`ctc_greedy` — text from [rows, steps, classes]: the best class at every step, repeats joined, blanks left out.

Class `blank` (default 0) is the blank; the others are the letters of `alphabet`, in order.

Source: Graves et al., Connectionist Temporal Classification, ICML 2006, best path decoding.
"""

import numpy as np

from ortdeploy.operations.protocol import Call, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    LOGITS,
    NUMBERS,
    PROBABILITY,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
)
from ortdeploy.transforms.protocol import Options

PACKAGE = None


def _hold_alphabet(solved: Solved, types: Types) -> None:  # noqa: ARG001  the classes are solved
    """Hold the letters and the blank against the classes. Raises ContractError."""
    classes, letters = solved.size("classes"), len(solved.options["alphabet"])
    if classes is not None and classes != letters + 1:
        raise ContractError(f"logits have {classes} classes, and the alphabet has {letters} letters and a blank")
    if solved.options.get("blank", 0) > letters:
        raise ContractError(f"blank is {solved.options['blank']}, and the last class is {letters}")


CONTRACT = Contract(
    name="ctc_greedy",
    meaning="Text: the best class at every step, repeats and blanks left out",
    inputs=(
        FormalParameter(
            "logits", "T", forms("rows steps classes"), "scores", units=(LOGITS, PROBABILITY), not_nan=True
        ),
    ),
    outputs=(FormalParameter("text", "string", forms("rows"), "the text"),),
    attributes=(
        Attribute(
            "alphabet", "STRING", "the letters, in the order of their classes", required=True, least=1, most=65536
        ),
        Attribute("blank", "INT", "the class that stands for no letter", default=0, least=0),
    ),
    types=(NUMBERS,),
    arithmetic=_hold_alphabet,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    blank = int(options["blank"])
    letters = list(options["alphabet"])
    letters.insert(blank, "")

    def decode(logits: Array) -> tuple[str]:
        best = logits.argmax(axis=-1)
        fresh = np.diff(best, prepend=-1) != 0
        return ("".join(letters[index] for index in best[fresh]),)

    return by_row(decode, 1, "logits")
