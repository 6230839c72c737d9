"""Binds the inputs of a model to the columns of a job's rows: which columns, by which steps, in which types."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from ortdeploy.deployment.bound_inputs import Binding, StepProblem
from ortdeploy.deployment.column_patterns import expanded, fillers, is_pattern
from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.expected_types import read_type
from ortdeploy.deployment.op_names import KnownOperators
from ortdeploy.deployment.resolved import ResolvedModel
from ortdeploy.deployment.step_types import infer_prepare
from ortdeploy.facts.data import TEXT_FORMATS, InputFacts
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.spec import JobSpec, StepSpec
from ortdeploy.tensors.row_axes import RowAxes
from ortdeploy.tensors.types import INTEGERS, ROWS, USUAL, WIDER, Shape, TensorType
from ortdeploy.transforms.sample_rates import RATE, needs_rate


def bind_all(
    job: JobSpec,
    model: ResolvedModel,
    source: InputFacts,
    inputs: Sequence[ValueFacts],
    targets: Mapping[str, TensorType],
    axes: RowAxes,
    *,
    wanted: Mapping[str, str],
    before: Mapping[str, Sequence[str]],
    operators: KnownOperators,
) -> tuple[Binding, ...]:
    """Bind every input that must be fed, and the optional ones that the manifest feeds.

    `wanted` are the element types in which inputs are wanted, `before` the columns that earlier rows were stacked from.
    """
    unnamed = [v.name for v in inputs if not v.optional and v.name not in job.input.columns]
    only_column = source.only_column if len(unnamed) == 1 else None
    bindings = []
    there = dict.fromkeys((*source.columns, *sorted(source.repeated), *sorted(source.differing)))  # or a problem
    for value in inputs:
        written = job.input.columns.get(value.name, ())
        if not written and value.name in there:
            written = (value.name,)
        if not written and only_column and value.name == unnamed[0]:
            may_feed = _may_feed(job, source, only_column, value, targets[value.name])
            written = (only_column,) if may_feed else ()
        if written or not value.optional:
            columns = expanded(written, there, before.get(value.name, ()))
            stacked = is_stacked(written, columns, source)
            bound = _bind(
                job,
                model,
                source,
                value,
                targets[value.name],
                columns,
                stacked=stacked,
                wanted=wanted.get(value.name),
                operators=operators,
            )
            bindings.append(replace(bound, axis=axes.of_input(value.name)))
    return tuple(bindings)


def _may_feed(job: JobSpec, source: InputFacts, column: str, value: ValueFacts, target: TensorType) -> bool:
    """Return whether the only column is what an input wants: nothing but text is text, unless steps make it."""
    is_text = column not in source.columns or source.columns[column].dtype in {None, "string"}
    return is_text or target.dtype != "string" or value.name in job.prepare


def fed_value(job: JobSpec, value: ValueFacts, target: TensorType, axes: RowAxes) -> FedValue:
    """Return an input's value; if each row is one run, it belongs to the run."""
    axis = None if job.batch.is_none else axes.of_input(value.name)
    return FedValue(value=value, axis=axis, target=target, content=job.input.values[value.name])


def _bind(
    job: JobSpec,
    model: ResolvedModel,
    source: InputFacts,
    value: ValueFacts,
    target: TensorType,
    columns: tuple[str, ...],
    *,
    stacked: bool,
    wanted: str | None,
    operators: KnownOperators,
) -> Binding:
    steps = job.prepare.get(value.name, ())
    if not stacked and _needs_vector(source, columns, target):
        stacked = not _make_vector(steps, source_type(source, columns, target, stacked=False), operators)
    start = source_type(source, columns, target, stacked=stacked)
    is_read_as_wanted = reads_as_wanted(source, start)
    told = read_type(steps, wanted, operators) if is_read_as_wanted else None
    if is_read_as_wanted and source.format not in TEXT_FORMATS:  # the next file may have lists where this one has nulls
        start = TensorType(told or USUAL, start.shape if stacked else None)
    start = replace(start, dtype=told or start.dtype)
    if is_read_as_wanted and target.dtype in WIDER:  # text is read as the type that holds each value of it
        steps = (*steps, StepSpec(name="cast", options={"cast": target.dtype}, at=(*job.at, "prepare", value.name)))
    types = infer_prepare(steps, start, operators)
    return Binding(
        value=value,
        declared=next((tensor for tensor in model.spec.inputs if tensor.name == value.name), None),
        target=target,
        columns=columns,
        unknown=tuple(name for name in columns if name not in source.columns),
        stacked=stacked,
        source=start,
        steps=steps,
        stages=types.stages,
        problem=types.problem or _without_rate(steps, source),
        ops=types.ops,
        guessed=source.format in TEXT_FORMATS and told is None and start.dtype == USUAL,
    )


def _without_rate(steps: Sequence[StepSpec], source: InputFacts) -> StepProblem | None:
    """Return the step that needs the sample rate of each row, of an input that has none."""
    step = next((one for one in steps if needs_rate(one.name, one.options)), None)
    if step is None or RATE in source.columns or not source.columns:
        return None
    return StepProblem(step=step, reason="the input has no column rate; say which rate it has, as in from: 44100")


def is_stacked(written: Sequence[str], columns: Sequence[str], source: InputFacts) -> bool:
    """Return whether columns make one vector a row: several do, and those of a pattern, however many they are."""
    return len(columns) > 1 or any(is_pattern(name, source.columns) for name in written)


def with_fillers(source: InputFacts, job: JobSpec) -> InputFacts:
    """Return the input with the types that its columns are read as: whole numbers with nan among them are float64."""
    if source.format in TEXT_FORMATS:
        return source
    filled = [name for name, filler in fillers(job.input.missing, source.columns).items() if filler == "nan"]
    whole = [name for name in filled if source.columns[name].dtype in {*INTEGERS, "bool"}]
    return replace(
        source, columns={**source.columns, **{n: replace(source.columns[n], dtype="float64") for n in whole}}
    )


def _needs_vector(source: InputFacts, columns: tuple[str, ...], target: TensorType) -> bool:
    """Return whether a column of single values feeds [rows, 1]: there is only one way to read it so."""
    shapes = [source.columns[name].shape for name in columns if name in source.columns]
    return shapes == [(ROWS,)] and target.shape is not None and len(target.shape) == 2 and target.shape[1] == 1  # noqa: PLR2004


def _make_vector(steps: Sequence[StepSpec], single: TensorType, operators: KnownOperators) -> bool:
    """Return whether steps take single values [rows] to [rows, 1], and not [rows, 1] itself."""
    of_values, of_vectors = (
        infer_prepare(steps, single.with_shape(shape), operators).stages[-1].shape for shape in ((ROWS,), (ROWS, 1))
    )
    return of_values == (ROWS, 1) != of_vectors


def reads_as_wanted(source: InputFacts, tensor: TensorType) -> bool:
    """Return whether values have no element type of their own: those of text, and columns of nulls alone."""
    return source.format in TEXT_FORMATS or (tensor.dtype is None and tensor.shape is not None)


def source_type(source: InputFacts, columns: tuple[str, ...], target: TensorType, *, stacked: bool) -> TensorType:
    """Return the type of what columns give for an input, rows first; `stacked`: each is one element of it."""
    known = [source.columns[name] for name in columns if name in source.columns]
    if not known:
        return TensorType()
    first = known[0]
    dtype = numpy_type(target.dtype) if source.format in TEXT_FORMATS else _common_type(known, target)
    if not stacked:
        return replace(first, dtype=dtype)
    shape: Shape | None = (ROWS, len(columns), *first.shape[1:]) if first.shape else None
    return TensorType(dtype, shape)


def _common_type(columns: Sequence[TensorType], target: TensorType) -> str | None:
    """Return the element type of columns that are stacked: numpy's for numbers; text and numbers have none.

    Of those the one that the target does not have is named, so that a cast is asked for: it is done column by column.
    """
    typed = [column for column in columns if column.dtype or column.shape is None]  # any type fits nulls alone
    dtypes = list(dict.fromkeys(column.dtype for column in typed or columns))
    if len(dtypes) < 2 or None in dtypes:  # noqa: PLR2004  all of one type
        return dtypes[0]
    if "string" in dtypes:
        return "string" if target.dtype != "string" else next(dtype for dtype in dtypes if dtype != "string")
    return str(np.result_type(*(str(dtype) for dtype in dtypes)))


def numpy_types(tensors: Mapping[str, TensorType]) -> dict[str, str]:
    """Return the element types of tensors by name, those that are known."""
    return {name: dtype for name, tensor in tensors.items() if (dtype := numpy_type(tensor.dtype)) is not None}


def numpy_type(dtype: str | None) -> str | None:
    """Return the element type itself, or the one that numpy has for its values."""
    return WIDER.get(dtype, dtype) if dtype else dtype
