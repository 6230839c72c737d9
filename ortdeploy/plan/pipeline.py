"""A pipeline as data of the plan: its steps, with the types and files for which they were planned."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from ortdeploy.facts.data import HashedFile
from ortdeploy.plan.constants import PlannedConstant
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.tensors.types import Shape, TensorType


class PlannedValue(Struct, frozen=True, kw_only=True):
    """A value by its name, with what is known of it; `limits` are those of an index into a constant table."""

    name: str
    dtype: str | None
    shape: Shape | None
    layout: str | None
    limits: tuple[float, float] | None = None
    narrowed_by: Narrowed | None = None

    @property
    def tensor(self) -> TensorType:
        """Its type."""
        return TensorType(self.dtype, self.shape, self.layout)


class PlannedWireStep(Struct, frozen=True, kw_only=True):
    """One step: `run` the session of a model, `do` an operation, `each` of a value's items through inner steps.

    An `op` runs the session that op steps in a line were made into. `by_row`: a session gets one row at a time, without
    axis 0. `fixed_rows` is the number of rows that a model's graph takes, if it takes only one.

    `wires` are pairs of an argument and a value's name, `takes` what must arrive there, `outputs` pairs of what the
    step gives and its name, `makes` their types, all rows first. `row_axes` are those of the model's inputs and
    outputs that are not the first. `constants` are fed to inputs of the model that no value feeds. `state` and
    `first_state` are of an `each` what they are of a pipeline, from item to item of a row; `state_by_row`: they have
    their rows first, so that rows run beside each other.
    """

    kind: str
    name: str
    wires: tuple[tuple[str, str], ...]
    takes: tuple[PlannedValue, ...]
    options: Mapping[str, Any]
    outputs: tuple[tuple[str, str], ...]
    makes: tuple[PlannedValue, ...]
    adapters: tuple[str, ...]
    item: str
    batch: int
    most: int | None
    steps: tuple["PlannedWireStep", ...]
    row_axes: Mapping[str, int] = field(default_factory=dict)
    constants: tuple[PlannedConstant, ...] = ()
    state: tuple[tuple[str, str], ...] = ()
    first_state: tuple[PlannedValue, ...] = ()
    state_by_row: bool = False
    by_row: bool = False
    fixed_rows: int | None = None


class PlannedPreset(Struct, frozen=True, kw_only=True):
    """Images: the folder with tokenizer and scheduler, sessions by component, and how images are made.

    `kind` is the preset's name; `task` and `arguments` are for one that optimum-onnx runs. `image_folder` is where the
    pictures are that rows name.
    """

    kind: str
    folder: str
    sessions: Mapping[str, str]
    scheduler: Mapping[str, Any]
    steps: int
    guidance_scale: float
    height: int
    width: int
    latents: str | None
    ports: Mapping[str, Any]
    adapters: Mapping[str, Any]
    task: str
    arguments: Mapping[str, Any]
    image_folder: str | None = None


class PlannedPlace(Struct, frozen=True, kw_only=True):
    """A file or folder that steps or a preset name by its path, and the files that are read of it.

    Names are below the folder; a `single` file has the name of the path.
    """

    path: str
    files: tuple[HashedFile, ...]
    single: bool


class PlannedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline: the sessions that it runs, its steps or its preset, and its outputs by name with their values.

    `places` are the files and folders that it reads. `state` are pairs of a value and the one of the row before that it
    is; `first_state` are their types. The state begins anew where a column of `reset` changes.
    """

    name: str
    sessions: tuple[str, ...]
    steps: tuple[PlannedWireStep, ...]
    outputs: tuple[tuple[str, str], ...]
    preset: PlannedPreset | None = None
    places: tuple[PlannedPlace, ...] = ()
    state: tuple[tuple[str, str], ...] = ()
    first_state: tuple[PlannedValue, ...] = ()
    reset: tuple[str, ...] = ()

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that it names, each once."""
        of_components = self.preset.adapters.values() if self.preset else ()
        names = [name for step in walk(self.steps) for name in step.adapters]
        return tuple(dict.fromkeys([*names, *(name for some in of_components for name in some)]))

    @property
    def constants(self) -> tuple[PlannedConstant, ...]:
        """What its steps feed their models, beside values."""
        return tuple(one for step in walk(self.steps) for one in step.constants)


def walk(steps: Sequence[PlannedWireStep]) -> Iterator[PlannedWireStep]:
    """Yield every step, those inside of others too."""
    for step in steps:
        yield step
        yield from walk(step.steps)
