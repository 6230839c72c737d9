"""The inputs of a job's model as its columns feed them: which columns, by which steps, and what is wrong with these."""

from msgspec import Struct

from ortdeploy.deployment.op_steps import OpStep
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.spec import StepSpec, TensorSpec
from ortdeploy.tensors.row_axes import to_front
from ortdeploy.tensors.types import Shape, TensorType


class StepProblem(Struct, frozen=True, kw_only=True):
    """A step that cannot take what reaches it; of an op step, `at` is the place inside of it."""

    step: StepSpec
    reason: str
    at: Path | None = None


class Binding(Struct, frozen=True, kw_only=True):
    """How one model input is fed: columns, steps, and the types from one end to the other.

    `target` is what the session takes, rows first, without the rows' dimension when the model has none; in the graph
    they are at `axis` (None: it is not by row). `columns` is empty when nothing feeds the input; `unknown` are columns
    that the source does not have. `ops` are by step: those that are operators, joined. `guessed`: the columns are text,
    and nothing tells that its numbers are those of `source`.
    """

    value: ValueFacts
    declared: TensorSpec | None
    target: TensorType
    columns: tuple[str, ...]
    unknown: tuple[str, ...]
    stacked: bool
    source: TensorType
    steps: tuple[StepSpec, ...]
    stages: tuple[TensorType, ...]
    problem: StepProblem | None
    ops: tuple[OpStep | None, ...] = ()
    axis: int | None = 0
    guessed: bool = False

    @property
    def final(self) -> TensorType:
        """What reaches the session, rows first."""
        return self.stages[-1]

    @property
    def declared_shape(self) -> Shape | None:
        """The declared shape as `target` has it: rows first."""
        return to_front(self.declared.tensor.shape, self.axis) if self.declared else None

    def shape(self, rows: int) -> tuple[int | None, ...]:
        """Return the known sizes of a tensor [rows, …] of `rows` rows."""
        known = [size if isinstance(size, int) else None for size in self.target.shape or ()]
        given = [size if isinstance(size, int) else None for size in self.final.shape or ()]
        sizes = [have if have is not None else want for have, want in zip(known, given or known, strict=False)]
        return (rows, *sizes[1:])
