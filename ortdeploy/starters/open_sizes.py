"""Sizes for the dimensions that a graph leaves open, in the order in which they are tried."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.graph.nodes import weight_sizes
from ortdeploy.graph.row_axes import input_axes
from ortdeploy.runtime.trial_run import Ran, SyntheticTensor, try_to_run

ROWS = 4
"""Rows of a sample."""

_SIDES = (
    (224, 224),
    (640, 640),
    (48, 320),
    (320, 320),
    (256, 256),
    (512, 512),
    (32, 100),
    (64, 64),
    (160, 160),
    (28, 28),
)
"""Heights and widths that pictures of widespread models have."""

_OF_SOUND = (16_000, 32_000, 8_000)
"""Lengths of recordings: a model of sound may run on one sample, and say nothing."""

_LENGTHS = (16, 1, 8, 64, 80, 128, 100, 256, 400, 512, 576, 1000, 1024, 1280, 1600, 3000, 4000, 8000, 16000, 32000)
"""Lengths of sequences, spectra and recordings."""

_MOST_OF_WEIGHTS = 24
_IMAGE_RANK, _SOUND_RANK = 4, 3
_MOST = 200
_COUNTS = ("int32", "int64")
RATES = ("sr", "sample_rate", "sampling_rate")
"""Names of inputs, and keys of metadata, that say how many samples a second there are."""

KNOWN = dict.fromkeys(RATES, 16_000)
"""Values of scalar inputs that their names tell."""

_LENGTH_OF = re.compile(r"(?:^|_)(?:len|lens|length|lengths)\Z", re.IGNORECASE)
"""Names of inputs that say how long others are."""

_SOUND = re.compile(r"wav|audio|speech|sound|signal|pcm|samples|input_values", re.IGNORECASE)


def is_sound(value: ValueFacts) -> bool:
    """Return whether an input takes recordings, by its type and name."""
    flat = len(value.tensor.shape or ()) in {1, 2} or channel_axis(value) is not None
    return value.tensor.dtype == "float32" and flat and bool(_SOUND.search(value.name))


def channel_axis(value: ValueFacts) -> int | None:
    """Return the axis of one channel that an input [rows, 1, samples] or [rows, samples, 1] has; None for others."""
    shape = value.tensor.shape or ()
    ones = [axis for axis in (1, 2) if len(shape) == _SOUND_RANK and shape[axis] == 1]
    return ones[0] if len(ones) == 1 else None


def run_on_synthetic(facts: ModelFacts) -> Ran:
    """Run a model on inputs that are made up, with several rows if it takes them, else with one."""
    values = [value for value in facts.inputs if not value.optional]
    if any(value.kind != "tensor" or value.tensor.dtype is None or value.tensor.shape is None for value in values):
        return Ran(refusal="an input is no tensor of a known type and rank")
    ran = _run(facts, values, fill=None)
    if ran.refusal is None or not any(value.tensor.dtype in _COUNTS for value in values):
        return ran
    again = _run(facts, values, fill=1)  # lengths and shapes are no zeros
    return ran if again.refusal is not None else again


def _run(facts: ModelFacts, values: Sequence[ValueFacts], *, fill: int | None) -> Ran:
    inputs = [synthetic_tensor(value, fill) for value in values]
    sizes = _OpenSizes.of(values, inputs, input_axes(values, ()))
    if sizes.lengths:
        counted = {value.name for value in values if is_length(value)}
        inputs = [replace(one, counts=sizes.lengths[0]) if one.name in counted else one for one in inputs]
    usual = (*_OF_SOUND, *_LENGTHS) if any(map(is_sound, values)) else _LENGTHS
    likely = tuple(dict.fromkeys((*usual, *weight_sizes(facts.skeleton)[:_MOST_OF_WEIGHTS])))
    attempts = list(islice(sizes.attempts(likely), _MOST))
    may_be_told = sizes.lengths or sizes.rows
    return try_to_run(facts.path, inputs, attempts, may_be_told, extensions=facts.uses_extensions)


def is_length(value: ValueFacts) -> bool:
    """Return whether an input is the length of another, by its type and name."""
    rank = len(value.tensor.shape or ())
    return value.tensor.dtype in _COUNTS and rank <= 1 and bool(_LENGTH_OF.search(value.name))


def synthetic_tensor(value: ValueFacts, fill: int | None = None) -> SyntheticTensor:
    """Return what an input is made up from; `fill` is the value of whole numbers that nothing else is known of."""
    tensor = value.tensor
    return SyntheticTensor(
        name=value.name,
        dtype=tensor.dtype or "float32",
        shape=tensor.shape or (),
        limits=value.limits,
        value=KNOWN.get(value.name, fill if tensor.dtype in _COUNTS and value.limits is None else None),
    )


class _OpenSizes(Struct, frozen=True, kw_only=True):
    """What a graph leaves open, by key: numbers of rows, heights and widths of pictures, and lengths of all else."""

    rows: tuple[str, ...]
    sides: tuple[tuple[str | None, str | None], ...]
    lengths: tuple[str, ...]

    @classmethod
    def of(
        cls, values: Sequence[ValueFacts], inputs: Sequence[SyntheticTensor], axes: Mapping[str, int | None]
    ) -> "_OpenSizes":
        """Sort the open dimensions of inputs."""
        keys = {one.name: dict(one.open_sizes()) for one in inputs}
        rows = {key for name, open_ in keys.items() for axis, key in open_.items() if axis == axes[name]}
        sides = [_sides(value, keys[value.name]) for value in values]
        taken = rows.union(*sides)
        rest = dict.fromkeys(key for open_ in keys.values() for key in open_.values() if key not in taken)
        return cls(rows=tuple(rows), sides=tuple(pair for pair in sides if any(pair)), lengths=tuple(rest))

    def attempts(self, likely: Sequence[int]) -> Iterator[dict[str, int]]:
        """Yield sizes by key, with likely lengths: those of several rows first."""
        for number in (ROWS, 1) if self.rows else (1,):
            for high, wide in _SIDES if self.sides else _SIDES[:1]:
                for length in likely if self.lengths else likely[:1]:
                    sides = {key: side for pair in self.sides for key, side in zip(pair, (high, wide), strict=True)}
                    chosen = dict.fromkeys(self.lengths, length) | dict.fromkeys(self.rows, number)
                    yield chosen | {key: side for key, side in sides.items() if key is not None}


def _sides(value: ValueFacts, keys: Mapping[int, str]) -> tuple[str | None, str | None]:
    """Return the keys of a picture's height and width, if they are open."""
    if len(value.tensor.shape or ()) != _IMAGE_RANK:
        return None, None
    high, wide = (1, 2) if value.tensor.layout == "NHWC" else (2, 3)
    return keys.get(high), keys.get(wide)
