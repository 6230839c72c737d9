"""Sizes for the dimensions that a graph leaves open, in the order in which they are tried."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.graph.nodes import weight_sizes
from ortdeploy.graph.row_axes import input_axes
from ortdeploy.runtime.trial_run import MadeUp, Ran, try_to_run

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

_LENGTHS = (1, 16, 8, 64, 80, 128, 100, 256, 400, 512, 576, 1000, 1024, 1280, 1600, 3000, 4000, 8000, 16000, 32000)
"""Lengths of sequences, spectra and recordings."""

_MOST_OF_WEIGHTS = 24
_IMAGE_RANK = 4
_MOST = 200
_COUNTS = ("int32", "int64")
_KNOWN = {"sr": 16_000, "sample_rate": 16_000, "sampling_rate": 16_000}
"""Values of inputs that say what others are, by their names."""


def run_made_up(facts: ModelFacts) -> Ran:
    """Run a model on inputs that are made up, with several rows where it takes them, else with one."""
    values = [value for value in facts.inputs if not value.optional]
    if any(value.kind != "tensor" or value.tensor.dtype is None or value.tensor.shape is None for value in values):
        return Ran(refusal="an input is no tensor of a known type and rank")
    ran = _run(facts, values, fill=None)
    if ran.refusal is None or not any(value.tensor.dtype in _COUNTS for value in values):
        return ran
    again = _run(facts, values, fill=1)  # lengths and shapes are no zeros
    return ran if again.refusal is not None else replace(again, fill=1)


def _run(facts: ModelFacts, values: Sequence[ValueFacts], *, fill: int | None) -> Ran:
    inputs = [made_up_input(value, fill) for value in values]
    sizes = _OpenSizes.of(values, inputs, input_axes(values, ()))
    likely = tuple(dict.fromkeys((*_LENGTHS, *weight_sizes(facts.skeleton)[:_MOST_OF_WEIGHTS])))
    attempts = list(islice(sizes.attempts(likely), _MOST))
    return try_to_run(facts.path, inputs, attempts, sizes.lengths, extensions=facts.uses_extensions)


def made_up_input(value: ValueFacts, fill: int | None = None) -> MadeUp:
    """Return what an input is made up from; `fill` is the value of whole numbers that nothing else is known of."""
    tensor = value.tensor
    return MadeUp(
        name=value.name,
        dtype=tensor.dtype or "float32",
        shape=tensor.shape or (),
        limits=value.limits,
        value=_KNOWN.get(value.name, fill if tensor.dtype in _COUNTS and value.limits is None else None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSizes:
    """What a graph leaves open, by key: numbers of rows, heights and widths of pictures, and lengths of all else."""

    rows: tuple[str, ...]
    sides: tuple[tuple[str | None, str | None], ...]
    lengths: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[ValueFacts], inputs: Sequence[MadeUp], axes: Mapping[str, int | None]) -> "_OpenSizes":
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
    """Return the keys of a picture's height and width, where they are open."""
    if len(value.tensor.shape or ()) != _IMAGE_RANK:
        return None, None
    high, wide = (1, 2) if value.tensor.layout == "NHWC" else (2, 3)
    return keys.get(high), keys.get(wide)
