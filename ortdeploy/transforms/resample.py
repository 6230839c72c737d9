"""`resample: RATE` — recordings [rows, …, frames] at another sample rate, by libsoxr's high quality as in librosa.

`from` is the present rate in samples a second; if it is left out, each row has the rate of its file. A recording of n
samples becomes one of n * RATE / from samples, rounded up.
"""

from math import ceil

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    TypeConstraint,
    Types,
    forms,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options
from ortdeploy.transforms.sample_rates import RESAMPLE

SOXR = Package(module="soxr", name="soxr", extra="audio")
_MOST = 10_000_000
FLOATS = TypeConstraint("T", ("float32", "float64"), "float32 or float64", "cast before")
_RECORDINGS = forms("rows *dims frames")


def _count(solved: Solved, types: Types) -> None:  # noqa: ARG001  the frames are solved
    """Compute the number of samples that come out, if number and rate of those that come in are known."""
    frames, rate = solved.size("frames"), solved.options.get("from")
    solved.sizes["new_frames"] = None if frames is None or rate is None else count(frames, rate, solved.options)


def count(frames: int, rate: int, options: Options) -> int:
    """Return how many samples come out of `frames` samples at `rate` a second."""
    return ceil(frames * int(options["resample"]) / rate)


CONTRACT = Contract(
    name=RESAMPLE,
    meaning="Recordings at another number of samples a second",
    inputs=(FormalParameter("x", "T", _RECORDINGS, "recordings", finite=True),),
    outputs=(FormalParameter("resampled", "T", forms("rows *dims new_frames"), "recordings at that rate"),),
    attributes=(
        Attribute("resample", "INT", "samples a second that come out", required=True, least=1, most=_MOST),
        Attribute("from", "INT", "samples a second that come in; if left out, those of the file", least=1, most=_MOST),
    ),
    types=(FLOATS,),
    arithmetic=_count,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    if "from" not in options:
        raise ContractError("it needs the rate that recordings have: from, or a source of recordings")
    rate = options["from"]
    return lambda array: (resampled(array, rate, options),)


def resampled(array: Array, rate: int, options: Options) -> Array:
    """Convert [..., frames] from `rate` samples a second to the rate in the options."""
    frames = count(array.shape[-1], rate, options)
    if rate == options["resample"] or not frames:
        return array
    import soxr  # noqa: PLC0415  an extra, for resampling only

    flat = array.reshape(-1, array.shape[-1])
    made = np.zeros((len(flat), frames), array.dtype)
    for one, samples in zip(made, flat, strict=True):
        found = soxr.resample(np.ascontiguousarray(samples), rate, options["resample"], quality="HQ")[:frames]
        one[: len(found)] = found
    return made.reshape(*array.shape[:-1], frames)
