"""`ctc_greedy` — text from scores [rows, steps, classes]: the best class of each step, without repeats and blanks.

The class `blank` (default 0; -1 is the last) stands for no letter. The other classes are letters, in the order of
`alphabet`, of the lines of a file `from`, or of the lines in the `metadata` of a `model`. `append` adds letters at the
end.

The confidence float32 [rows] is the mean probability of the letters, each at its first step; it is 0 if there are no
letters. Scores that are no probabilities go through softmax first.

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
from ortdeploy.transforms.protocol import Options, computable
from ortdeploy.transforms.softmax import softmax

ALPHABET = "character"
"""The metadata key under which PaddleOCR and RapidOCR store the letters."""
_SOURCES = ("alphabet", "from", "model")


def _hold_alphabet(solved: Solved, types: Types) -> None:  # noqa: ARG001  the classes are solved
    """Check that there is one source of letters, and that letters and blank fit the classes. Raises ContractError."""
    options = solved.options
    named = [name for name in _SOURCES if name in options]
    if len(named) != 1:
        raise ContractError(
            f"it takes its letters from alphabet, from or model, and gets {' and '.join(named) or 'none'}"
        )
    classes, letters = solved.size("classes"), len(_letters(options))
    if letters == 0:  # the file or the model says why
        return
    if classes is not None and classes != letters + 1:
        raise ContractError(f"logits have {classes} classes, and the alphabet has {letters} letters and a blank")
    if options.get("blank", 0) > letters:
        raise ContractError(f"blank is {options['blank']}, and the last class is {letters}")


def _letters(options: Options) -> list[str]:
    """Return the letters of all classes but the blank; an empty list if they could not be read."""
    letters = list(options["lines"] if "lines" in options else options.get("alphabet", ""))
    return [*letters, *options.get("append", "")] if letters else []


CONTRACT = Contract(
    name="ctc_greedy",
    meaning="Text: the best class at every step, repeats and blanks left out; and how sure that is",
    inputs=(
        FormalParameter(
            "logits", "T", forms("rows steps classes"), "scores", units=(LOGITS, PROBABILITY), not_nan=True
        ),
    ),
    outputs=(
        FormalParameter("text", "string", forms("rows"), "the text"),
        FormalParameter(
            "confidence", "float32", forms("rows"), "the mean over the letters, from 0 to 1", units=(PROBABILITY,)
        ),
    ),
    attributes=(
        Attribute("alphabet", "STRING", "the letters, in the order of their classes", least=1, most=65536),
        Attribute("from", "STRING", "a text file with the letters, one a line", path="file"),
        Attribute("model", "STRING", "a model of the pipeline that has the letters in its metadata", least=1, most=255),
        Attribute("metadata", "STRING", "the key of the letters there", default=ALPHABET, least=1, most=255),
        Attribute("append", "STRING", "letters behind these, such as PaddleOCR's space", least=1, most=255),
        Attribute("blank", "INT", "the class that stands for no letter; -1: the last", default=0, least=-1),
    ),
    types=(NUMBERS,),
    arithmetic=_hold_alphabet,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    letters = _letters(options)
    blank = options["blank"] if options["blank"] >= 0 else len(letters)
    letters.insert(blank, "")

    def decode(logits: Array) -> tuple[str, Array]:
        best = logits.argmax(axis=-1)
        kept = (np.diff(best, prepend=-1) != 0) & (best != blank)
        chosen = _probabilities(computable(logits))[kept, best[kept]]
        confidence = np.float32(chosen.mean() if len(chosen) else 0)
        return "".join(letters[index] for index in best[kept]), np.asarray(confidence)

    return by_row(decode, 2, "logits")


_HALF_PRECISION = 0.02
"""How far the sum of thousands of float16 probabilities may be from 1."""


def _probabilities(scores: Array) -> Array:
    """Return probabilities [steps, classes]: the scores themselves if each step sums up to 1, else their softmax."""
    if not scores.size:
        return scores
    sums = scores.sum(axis=-1, dtype=np.float64)
    given = scores.min() >= 0 and np.abs(sums - 1).max() <= _HALF_PRECISION
    return scores if given else softmax(scores)
