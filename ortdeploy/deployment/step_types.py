"""The types between prepare and postprocess steps, up to the first step that cannot take what reaches it."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ortdeploy.deployment.bound_inputs import StepProblem
from ortdeploy.deployment.op_names import KnownOperators, OpStepError
from ortdeploy.deployment.op_steps import OpStep, type_op
from ortdeploy.manifest.op_steps import OpSpec
from ortdeploy.manifest.spec import StepSpec
from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE

SO_FAR = "x"
"""What an op step of prepare calls the value so far."""
NOT_OF_EACH_ROW = "follows from sizes or constants and is not one of each row"


class PreparedTypes(Struct, frozen=True, kw_only=True):
    """The type before the first step and after each, what is wrong, and the op steps by their places."""

    stages: tuple[TensorType, ...]
    problem: StepProblem | None = None
    ops: tuple[OpStep | None, ...] = ()


def infer_prepare(steps: Sequence[StepSpec], tensor: TensorType, operators: KnownOperators) -> PreparedTypes:
    """Take a type through prepare steps."""
    stages, ops = [tensor], list[OpStep | None]()
    for index, step in enumerate(steps):
        line = None
        try:
            if step.op is None:
                (tensor,) = PREPARE[step.name].infer(step.options, tensor)
            else:
                before = _line_before(step.op, ops)
                line = _join(step.op, tensor, index, before, operators)
                tensor = line.made[_so_far(index + 1)]
        except InapplicableError as error:
            problem = StepProblem(step=step, reason=str(error))
            return PreparedTypes(stages=(*stages, TensorType()), problem=problem, ops=tuple(ops))
        except OpStepError as error:
            problem = StepProblem(step=step, reason=_without_numbers(error.detail), at=error.at)
            return PreparedTypes(stages=(*stages, TensorType()), problem=problem, ops=tuple(ops))
        stages.append(tensor)
        ops.append(line)
    return PreparedTypes(stages=tuple(stages), ops=tuple(ops))


def _line_before(spec: OpSpec, ops: Sequence[OpStep | None]) -> OpStep | None:
    """Return the op step that another goes on from."""
    last = ops[-1] if ops else None
    return last if last is not None and last.graph.by_row == spec.by_row else None


def _so_far(index: int) -> str:
    """Return the name that the value before a step has in the graph of its line."""
    return f"{SO_FAR}.{index}" if index else SO_FAR


def _join(spec: OpSpec, tensor: TensorType, index: int, before: OpStep | None, operators: KnownOperators) -> OpStep:
    """Join an op step with the value so far. Raises OpStepError."""
    other = next((name for _, name in spec.wires() if name != SO_FAR), None)
    if other is not None:
        raise OpStepError((*spec.at, "in"), f"${other} is not known here: a prepare step takes the value so far, $x.")
    if spec.outputs:
        raise OpStepError((*spec.at, "out"), "What a prepare step gives is $x of the next one. Remove out:.")
    here, after = _so_far(index), _so_far(index + 1)
    joined = type_op(spec.renamed({SO_FAR: here}, after), {here: tensor}, operators, before)
    if after in joined.whole:
        detail = f"{spec.operator} gives {joined.made[after]}, which {NOT_OF_EACH_ROW}."
        raise OpStepError(spec.at, detail)
    return joined


def _without_numbers(detail: str) -> str:
    """Return a text that calls the value so far $x, and steps to paste without the result that they must not name."""
    return re.sub(r", out: x[.\d]*_\w+", "", re.sub(r"\$x\.\d+", "$x", detail))


class PostprocessTypes(Struct):
    """The types of the results that steps have made so far; `whole` are those that are not by row."""

    results: dict[str, TensorType]
    problems: list[StepProblem] = field(default_factory=list)
    ops: list[OpStep | None] = field(default_factory=list)
    whole: frozenset[str] = frozenset()
    untold: set[str] = field(default_factory=set)

    def take(self, step: StepSpec, operators: KnownOperators) -> None:
        """Add what a step makes."""
        if step.op is None:
            self._transform(step)
            self.ops.append(None)
        else:
            self.ops.append(self._join(step, step.op, operators))

    def _transform(self, step: StepSpec) -> None:
        (name,) = step.reads
        try:
            self._refuse_whole(step, [name])
            types = POSTPROCESS[step.name].infer(step.options, self.results.get(name, TensorType()))
        except InapplicableError as error:
            self.problems.append(StepProblem(step=step, reason=str(error)))
            types = tuple(TensorType() for _ in step.results)
        self.results.update(zip(step.results, types, strict=True))

    def _join(self, step: StepSpec, spec: OpSpec, operators: KnownOperators) -> OpStep | None:
        self.results.update(dict.fromkeys(step.results, TensorType()))
        if self.untold.intersection(step.reads) or not set(step.reads) <= self.results.keys():
            self.untold.update(step.results)
            return None
        before = _line_before(spec, self.ops)
        try:
            self._refuse_whole(step, [name for name in step.reads if before is None or not before.makes(name)])
            joined = type_op(spec, self.results, operators, before, self.whole)
        except (InapplicableError, OpStepError) as error:
            at = error.at if isinstance(error, OpStepError) else spec.at
            self.problems.append(StepProblem(step=step, reason=str(error), at=at))
            self.untold.update(step.results)
            return None
        self.whole |= joined.whole
        self.results.update(joined.made)
        return joined

    def _refuse_whole(self, step: StepSpec, names: Sequence[str]) -> None:
        for name in self.whole.intersection(names):
            raise InapplicableError(f"{step.name} takes {name}, which {NOT_OF_EACH_ROW}")


def infer_postprocess(
    steps: Sequence[StepSpec], outputs: Mapping[str, TensorType], operators: KnownOperators
) -> PostprocessTypes:
    """Take the types of a model's outputs through postprocess steps."""
    types = PostprocessTypes(dict(outputs))
    for step in steps:
        types.take(step, operators)
    return types
