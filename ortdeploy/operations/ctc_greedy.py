"""`ctc_greedy` — text from [rows, steps, classes]: the best class at every step, repeats joined, blanks left out.

Class `blank` (default 0) is the blank; the others are the letters of `alphabet`, in order.

Source: Graves et al., Connectionist Temporal Classification, ICML 2006, best path decoding.
"""

import numpy as np

from ortdeploy.operations.protocol import Array, Call, Types, by_row, need_rank
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:
    shape = need_rank(types, "logits", 3, "[rows, steps, classes]")
    classes, letters = shape[2] if shape else None, len(options["alphabet"])
    if isinstance(classes, int) and classes != letters + 1:
        raise InapplicableError(f"logits have {classes} classes, and the alphabet has {letters} letters and a blank")
    return (TensorType("string", (ROWS,)),)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    blank = int(options.get("blank", 0))
    letters = list(options["alphabet"])
    letters.insert(blank, "")

    def decode(logits: Array) -> tuple[str]:
        best = logits.argmax(axis=-1)
        if best.size and best.max() >= len(letters):
            raise ValueError(f"class {best.max()} has no letter")
        fresh = np.diff(best, prepend=-1) != 0
        return ("".join(letters[index] for index in best[fresh]),)

    return by_row(decode, 1, "logits")
