"""Resolves a pipeline with the graphs of its models: the type of every value, and every wire that does not fit."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.declared_shapes import how_to_overrule
from ortdeploy.deployment.expected_types import wanted_types
from ortdeploy.deployment.fusing import why_not_fused
from ortdeploy.deployment.metadata import MetadataError, settings_of_metadata
from ortdeploy.deployment.op_names import KnownOperators, OpStepError
from ortdeploy.deployment.op_steps import OpStep, type_op
from ortdeploy.deployment.recurrent_state import axes_of_state
from ortdeploy.deployment.typed_steps import Arrives, PipelineTypes, TypedStep, WireProblem
from ortdeploy.deployment.wire_fit import (
    content_of_file,
    fixed_rows,
    how_to_feed_whole,
    how_to_take_one_value,
    is_handed_on,
    misfit,
    open_ranks,
    type_of_output,
    with_rows_first,
)
from ortdeploy.diagnostics import as_key, did_you_mean
from ortdeploy.facts.data import ConstantArray, FileFacts
from ortdeploy.facts.models import AdapterFacts, ModelFacts, ValueFacts
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.op_steps import OpSpec
from ortdeploy.manifest.pipelines import CONSTANT, PipelineSpec, StepOfPipeline
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.row_axes import RowAxes, rows_first
from ortdeploy.tensors.types import (
    ROWS,
    USUAL,
    Dimension,
    InapplicableError,
    TensorType,
    is_of_one_row,
)


def type_pipeline(
    pipeline: PipelineSpec,
    models: Mapping[str, ModelFacts],
    axes: Mapping[str, RowAxes],
    adapters: Mapping[str, AdapterFacts],
    arrives: Arrives,
    *,
    given: Mapping[str, Any],
    files: Mapping[str, FileFacts] = MappingProxyType({}),
    operators: KnownOperators,
) -> PipelineTypes:
    """Type a pipeline. `axes` say where its models have the rows, `given` are values that the job feeds to inputs.

    `files` are those that it names, `operators` what op steps may be. `arrives` is asked about inputs
    that only operations read. If there is no such column, which is a problem of the job, nothing is said about what is
    made of it.
    """
    wanted = wanted_types(pipeline.steps, models, operators)
    typer = _PipelineTyper(models, axes, adapters, arrives, operators, pipeline.state, files, given, wanted)
    values: dict[str, TensorType] = {}
    steps = tuple(typer.step(step, values) for step in pipeline.steps)
    typer.check_fusing(steps)
    typer.check_state((*pipeline.at, "state"), pipeline.state, values, pipeline.outputs.values())
    outputs = {}
    for name, value in pipeline.outputs.items():
        if value not in values and value not in typer.inputs:
            typer.complain((*pipeline.at, "outputs", name), f"No step makes ${value}. {did_you_mean(value, values)}")
        typer.check_rows({"": value}, (*pipeline.at, "outputs", name))
        carried = typer.inputs[value].tensor if value in typer.inputs else TensorType()
        outputs[name] = values.get(value, carried)
    open_ranks(typer.inputs, pipeline.steps)
    return PipelineTypes(
        inputs={**typer.inputs, **{name: one for name, one in typer.whole.items() if name not in typer.inputs}},
        outputs=outputs,
        steps=steps,
        problems=tuple(typer.problems),
        state=typer.taken,
        whole=frozenset(typer.whole).difference(typer.inputs),
        wanted=wanted,
    )


class _PipelineTyper(Struct):
    models: Mapping[str, ModelFacts]
    axes: Mapping[str, RowAxes]
    adapters: Mapping[str, AdapterFacts]
    arrives: Arrives
    operators: KnownOperators
    state: Mapping[str, str]
    files: Mapping[str, FileFacts]
    given: Mapping[str, Any]
    wanted: Mapping[str, str]
    carried: frozenset[str] = frozenset()
    untold: set[str] = field(default_factory=set)
    taken: dict[str, TensorType] = field(default_factory=dict)
    inputs: dict[str, ValueFacts] = field(default_factory=dict)
    whole: dict[str, ValueFacts] = field(default_factory=dict)
    problems: list[WireProblem] = field(default_factory=list)
    line: OpStep | None = None
    constants: dict[str, OpSpec] = field(default_factory=dict)
    of_sizes: frozenset[str] = frozenset()
    advice: dict[str, str] = field(default_factory=dict)

    def complain(self, at: Path, detail: str) -> None:
        self.problems.append(WireProblem(at=at, detail=detail))

    def check_state(
        self, where: Path, state: Mapping[str, str], values: Mapping[str, TensorType], results: Collection[str]
    ) -> None:
        """Hold what a row, or an item of it, hands on against what the next one takes."""
        for name, source in state.items():
            at: Path = (*where, name)
            taken, made = self.taken.get(name), values.get(source)
            if taken is None:
                self.complain(at, f"No model takes ${name}. State is handed to an input of a model.")
            if made is None:
                self.complain(at, f"No step makes ${source}. {did_you_mean(source, values)}")
            if taken is None or made is None:
                continue
            if not is_handed_on(made, taken):
                self.complain(at, f"${source} is {made}, and the next one takes {taken}.")
            if source in results and name in self.state:
                self.complain(at, f"${source} is handed on whole, and cannot be a result of the row too.")

    def step(self, step: StepOfPipeline, values: dict[str, TensorType]) -> TypedStep:
        """Type one step, and add what it makes to the values."""
        if step.op is not None:
            typed = self._op(step, values)
            self.line = typed.op
            values.update(typed.made)
            return typed
        self.line = None
        if step.kind != "run":
            self.check_rows(step.wires, (*step.at, "in"))
        match step.kind:
            case "run":
                typed = self._run(step, values)
            case "do":
                typed = self._do(step, values)
            case _:
                typed = self._each(step, values)
        values.update(typed.made)
        return typed

    def _run(self, step: StepOfPipeline, values: Mapping[str, TensorType]) -> TypedStep:
        model = self.models.get(step.name)
        if model is None or model.problem is not None:
            made = {name: TensorType() for _, name in step.outputs}
            return TypedStep(spec=step, types={}, made=made, options={})
        axes = RowAxes() if step.by_row or self._runs_whole(step) else self.axes.get(step.name, RowAxes())
        known = {value.name: self._as_fed(step, value, axes) for value in model.inputs}
        solved: dict[str, Dimension] = {}
        types = {}
        constants = self._constants(step, model, values)
        fed = {one.value.name for one in constants}
        for port, name in step.wires.items():
            if port in fed:
                continue
            if port not in known:
                detail = f'Model "{step.name}" has no input "{port}". {did_you_mean(port, known)}'
                self.complain((*step.at, "in", port), detail)
            elif name in self.of_sizes and axes.of_input(port) is not None:
                self.check_rows({port: name}, (*step.at, "in"), how_to_take_one_value(step.name, port))
            elif axes.of_input(port) is None:
                self.complain((*step.at, "in", port), how_to_feed_whole(step.name, port, name))
            else:
                types[port] = self._value_for_model(name, known[port], step.name, values)
                self._compare(step, port, types[port], known[port].tensor, solved)
        self._look_for_missing(step, known, fed)
        made = {
            name: self._made_by_model(step, port, model, axes.of_output(port), solved) for port, name in step.outputs
        }
        ports = tuple(value for value in known.values() if value.name in step.wires and value.name not in fed)
        wires = {port: name for port, name in step.wires.items() if port not in fed or name not in self.constants}
        return TypedStep(
            spec=replace(step, wires=wires),
            types=types,
            made=made,
            options={},
            ports=ports,
            axes=axes,
            constants=tuple(constants),
            fixed_rows=self._fixed_rows(step, ports, axes, constants),
        )

    def _compare(
        self, step: StepOfPipeline, port: str, given: TensorType, taken: TensorType, solved: dict[str, Dimension]
    ) -> None:
        """Complain if what is given to an input of a model is not what it takes."""
        problem = misfit(given, taken, solved)
        if problem:
            detail = f'Input "{port}" of model "{step.name}" takes {taken} and gets {given}. {problem}'
            if not step.by_row and is_of_one_row(given.shape, taken.shape):
                detail += " If the model has no dimension for rows, add by_row: true to the step."
            self.complain((*step.at, "in", port), detail + self.advice.get(step.wires[port], ""))

    def _as_fed(self, step: StepOfPipeline, value: ValueFacts, axes: RowAxes) -> ValueFacts:
        """Return an input of a model with its rows first; a model that has none is given those of its step."""
        if not step.by_row:
            return with_rows_first(value, axes.of_input(value.name))
        shape = value.tensor.shape
        is_state = self._is_state(step.wires.get(value.name, ""))
        return value if shape is None or is_state else replace(value, tensor=value.tensor.with_shape((ROWS, *shape)))

    def _is_state(self, name: str) -> bool:
        """Return whether a value is a row's state, which models take and give without rows."""
        return name in self.state or name in self.state.values()

    def _fixed_rows(
        self, step: StepOfPipeline, ports: Sequence[ValueFacts], axes: RowAxes, constants: Sequence[FedValue]
    ) -> int | None:
        """Return the number of rows that a graph takes if it takes only one."""
        fixed = {} if step.by_row or self._runs_whole(step) else fixed_rows(ports, axes, constants)
        if len(set(fixed.values())) > 1:
            numbers = " and ".join(f'{size} in "{name}"' for name, size in fixed.items())
            detail = f'Model "{step.name}" takes {numbers} as its number of rows, and a run has one. '
            detail += "If one of them is not for rows, say so: inputs: {NAME: {row_axis: none}} of the model."
            self.complain((*step.at, "in"), detail)
        return next(iter(fixed.values()), None)

    def _constants(self, step: StepOfPipeline, model: ModelFacts, values: Mapping[str, TensorType]) -> list[FedValue]:
        """Return what stands in the place of values, and what the job feeds to inputs that are not by row."""
        axes, known = self.axes.get(step.name, RowAxes()), {value.name: value for value in model.inputs}
        written = dict(step.options)
        for port, name in step.wires.items():
            is_whole = step.by_row or axes.of_input(port) is None
            array = self.constants[name].inputs.get("input") if name in self.constants else None
            if port in known and is_whole and isinstance(array, ConstantArray):
                written[port] = array.content
            elif port in known and is_whole and name in self.given and name not in values:
                self.whole.setdefault(name, replace(known[port], name=name))
                written[port] = self.given[name]
        constants = []
        for port, content in written.items():
            if port not in known:
                detail = f'Model "{step.name}" has no input "{port}". {did_you_mean(port, known)}'
                self.complain((*step.at, "in", port), detail)
                continue
            axis = None if step.by_row else axes.of_input(port)
            fed = FedValue(value=known[port], axis=axis, target=rows_first(known[port].tensor, axis), content=content)
            constants.append(fed)
            if fed.misfit and port in step.options:
                detail = f'Input "{port}" ({known[port].tensor}) of model "{step.name}" cannot take it: {fed.misfit}.'
                self.complain((*step.at, "in", port), detail)
        return constants

    def _runs_whole(self, step: StepOfPipeline) -> bool:
        """Return whether a step takes or gives a row's state: then its model is fed one row at a time, as it is."""
        return any(map(self._is_state, (*step.wires.values(), *(name for _, name in step.outputs))))

    def _look_for_missing(self, step: StepOfPipeline, known: Mapping[str, ValueFacts], fed: Collection[str]) -> None:
        given = [self.adapters[name] for name in step.adapters if name in self.adapters]
        adapted = {parameter.name for adapter in given for parameter in adapter.parameters}
        for name in (name for name in (*step.wires, *fed) if name in adapted):
            detail = f'An adapter of the step has "{name}", and ONNX Runtime would use that. Feed it nothing.'
            self.complain((*step.at, "in", name), detail)
        for value in known.values():
            if value.name not in {*step.wires, *fed, *adapted} and not value.optional:
                detail = f'Nothing feeds input "{value.name}" ({value.tensor}) of model "{step.name}".'
                have = [name for name, one in self.adapters.items() if value.name in {p.name for p in one.parameters}]
                detail += f" Adapters that have it: {', '.join(have)}." if have else ""
                self.complain((*step.at, "in"), detail)

    def _value_for_model(self, name: str, port: ValueFacts, model: str, values: Mapping[str, TensorType]) -> TensorType:
        """Return a value's type; an input of the pipeline is what the model takes."""
        tensor = port.tensor
        if name in self.state or name in self.carried:
            return self.taken.setdefault(name, tensor)
        if name in values:
            return values[name]
        shape = tensor.shape
        if shape is not None:
            shape = (ROWS, *(f"{model}.{size}" if isinstance(size, str) else size for size in shape[1:]))
        wanted = ValueFacts(name=name, kind=port.kind, tensor=tensor.with_shape(shape), limits=port.limits)
        return self.inputs.setdefault(name, wanted).tensor

    def _made_by_model(
        self, step: StepOfPipeline, port: str, model: ModelFacts, axis: int | None, solved: Mapping[str, Dimension]
    ) -> TensorType:
        value = dict(step.outputs)[port]
        self.advice[value] = how_to_overrule(step.name, model, port)
        made = type_of_output(step, port, model, axis, solved, is_state=self._is_state(value))
        if isinstance(made, str):
            self.complain((*step.at, "out", port), made)
            return TensorType()
        return made

    def _do(self, step: StepOfPipeline, values: dict[str, TensorType]) -> TypedStep:
        operation = OPERATIONS[step.name]
        options = {step.name: True, **step.options, **self._read_for(step)}
        types: dict[str, TensorType] = {}
        self._refuse_state(step, values)
        for argument, name in step.wires.items():
            types[argument] = values[name] if name in values else self._input_of_operation(name, argument, step.name)
        results: tuple[TensorType, ...] = ()
        if self.untold.intersection(step.wires.values()):
            self.untold.update(name for _, name in step.outputs)
        else:
            try:
                results = operation.infer(options, types)
            except InapplicableError as error:
                advice = "".join(self.advice.get(name, "") for name in step.wires.values())
                self.complain((*step.at, "in"), f"{step.name}: {error}.{advice}")
        if results and len(step.outputs) > len(results):
            detail = f"{step.name} gives {len(results)} results, and {len(step.outputs)} are named."
            self.complain((*step.at, "out"), detail)
        made = {
            name: results[index] if index < len(results) else TensorType()
            for index, (_, name) in enumerate(step.outputs)
        }
        return TypedStep(spec=step, types=types, made=made | self._in_turn(step), options=options)

    def _in_turn(self, step: StepOfPipeline) -> dict[str, TensorType]:
        """Note the state that an operation takes from the row before; return what it leaves for the next."""
        own = OPERATIONS[step.name].state
        if own is None:
            return {}
        if not self.state.keys() >= step.state.keys():
            self.complain(step.at, f"{step.name} follows the rows of a file, and items of a row are none.")
        self.taken.update(dict.fromkeys(step.state, own))
        return dict.fromkeys(step.state.values(), own)

    def _read_for(self, step: StepOfPipeline) -> dict[str, Any]:
        """Return what an operation takes from the lines of a file, or from what is written into a model."""
        for option, kind in step.files.items():
            if kind == "lines" and option in step.options:
                file = self.files.get(step.options[option])
                return {"lines": list(file.lines if file else ())}
        try:
            return settings_of_metadata(step.name, step.options, self.models, "The pipeline")
        except MetadataError as error:
            self.complain((*step.at, "in", error.setting), error.detail)
            return {}

    def _op(self, step: StepOfPipeline, values: dict[str, TensorType]) -> TypedStep:
        """Type an op step; it goes on from the one before, if that is one that is run for as many rows at once."""
        spec = step.op
        if spec is None:
            raise AssertionError("a step of this kind has an operator")
        nothing = {name: TensorType() for _, name in step.outputs}
        if CONSTANT in step.options:
            content = content_of_file(step, self.files)
            if not isinstance(content, ConstantArray):
                self.problems += [] if content is None else [content]
                self.untold.update(nothing)
                return TypedStep(spec=step, types={}, made=nothing, options={})
            spec = replace(spec, inputs={"input": content})
        given = {place: name for place, name in step.wires.items() if name in self.given and name not in values}
        if given:
            spec = spec.with_constants({name: self.given[name] for name in given.values()})
            step = self._with_given(step, spec, given)
        self._refuse_state(step, values)
        types = {
            place: values[name] if name in values else self._input_by_column(name) for place, name in step.wires.items()
        }
        before = self.line if self.line is not None and self.line.graph.by_row == spec.by_row else None
        strays = {place: name for place, name in step.wires.items() if before is None or not before.makes(name)}
        again = {place: name for place, name in strays.items() if name in self.constants}
        self.check_rows({place: name for place, name in strays.items() if place not in again}, (*step.at, "in"))
        if self.untold.intersection(step.wires.values()):
            self.untold.update(nothing)
            return TypedStep(spec=step, types=types, made=nothing, options={})
        try:
            known = {**{name: types[place] for place, name in step.wires.items()}, **values}
            before = self._with_constants(again.values(), spec.by_row, known, before)
            op = type_op(spec, known, self.operators, before, self.of_sizes)
        except OpStepError as error:
            detail = error.detail + self._if_text(step.wires.values())
            self.problems.append(WireProblem(at=error.at, detail=detail, of_operator=True))
            self.untold.update(nothing)
            return TypedStep(spec=step, types=types, made=nothing, options={})
        self.of_sizes |= op.whole
        if all(name in self.constants for name in step.wires.values()) and not given:
            self.constants |= {name: spec for _, name in step.outputs if name in op.whole}
        self._note_given(spec, given, op)
        step = replace(step, wires={place: name for place, name in step.wires.items() if place not in again})
        return TypedStep(spec=step, types=types, made=op.made, options={}, op=op)

    def _with_constants(
        self, names: Iterable[str], by_row: bool, values: Mapping[str, TensorType], before: OpStep | None
    ) -> OpStep | None:
        """Return the line before a step with the constants, made again in it, that other lines have made."""
        for name in names:
            spec = self.constants[name]
            if before is not None and before.makes(name):
                continue
            before = self._with_constants([one for _, one in spec.wires()], by_row, values, before)
            before = type_op(replace(spec, by_row=by_row), values, self.operators, before, self.of_sizes)
        return before

    def _if_text(self, names: Iterable[str]) -> str:
        """Return what to write if a column that is read as numbers, because nothing says otherwise, is text."""
        usual = [name for name in names if name in self.inputs and name not in self.wanted]
        read = [name for name in usual if self.inputs[name].tensor.dtype == USUAL]
        texts = ", ".join(f"{as_key(name)}: [{{cast: string}}]" for name in read)
        return f" If ${' or $'.join(read)} is text, say so: prepare: {{{texts}}}." if read else ""

    def _with_given(self, step: StepOfPipeline, spec: OpSpec, given: Mapping[str, str]) -> StepOfPipeline:
        """Return an op step in which the values that the job feeds, by their places, are constants."""
        for name in given.values():
            self.whole.setdefault(name, ValueFacts(name=name, kind="tensor", tensor=TensorType()))
        return replace(step, op=spec, wires={place: name for place, name in step.wires.items() if place not in given})

    def _note_given(self, spec: OpSpec, given: Mapping[str, str], op: OpStep) -> None:
        """Note the element types that the values of the job have as constants of a step."""
        _, first = next(spec.results())
        types = {constant.name: constant.dtype for constant in op.graph.constants}
        for place, name in given.items():
            if self.whole[name].tensor.dtype is None:
                tensor = TensorType(types[f"{first}.{place}"])
                self.whole[name] = replace(self.whole[name], tensor=tensor)

    def _refuse_state(self, step: StepOfPipeline, values: dict[str, TensorType]) -> None:
        """Complain of state that something else than a model takes, and say nothing about what is made of it."""
        for place, name in step.wires.items():
            if name in self.state or name in self.carried:
                self.complain((*step.at, "in", place), f"${name} is state, which goes from a model to a model.")
                self.untold.add(name)
                values[name] = TensorType()

    def check_fusing(self, steps: Sequence[TypedStep]) -> None:
        """Complain of steps that cannot take the op steps around them into their session."""
        state = {**self.state, **dict.fromkeys(self.carried, "")}
        for index, step in enumerate(steps):
            model = self.models.get(step.spec.name)
            if step.spec.fuse and model is not None and model.problem is None:
                why_not = why_not_fused(steps, index, model, state, self.operators)
                if why_not is not None:
                    self.problems.append(WireProblem(at=(*step.spec.at, "fuse"), detail=why_not, of_operator=True))

    def check_rows(self, wires: Mapping[str, str], at: Path, advice: str = "") -> None:
        """Complain of values that follow from sizes alone where one of each row is taken."""
        for name in self.of_sizes.intersection(wires.values()):
            taken = "Only op steps take it" if name in self.constants else "Only op steps right behind it take it"
            detail = f"${name} is not one of each row: it follows from sizes or constants. {taken}.{advice}"
            self.problems.append(WireProblem(at=at, detail=detail, of_operator=True))
            self.untold.add(name)

    def _input_of_operation(self, name: str, argument: str, operation: str) -> TensorType:
        """Return the type of an input of the pipeline that an operation reads: as it says, or as its column arrives."""
        wanted = OPERATIONS[operation].contract.takes(argument)
        return self._input_by_column(name) if wanted is None else self._input(name, wanted)

    def _input_by_column(self, name: str) -> TensorType:
        """Return the type of an input of the pipeline as its column arrives."""
        arriving = self.arrives(name, self.wanted.get(name))
        if arriving is None:
            self.untold.add(name)
        return self._input(name, arriving or TensorType())

    def _input(self, name: str, tensor: TensorType) -> TensorType:
        return self.inputs.setdefault(name, ValueFacts(name=name, kind="tensor", tensor=tensor)).tensor

    def _each(self, step: StepOfPipeline, values: Mapping[str, TensorType]) -> TypedStep:
        over = values[step.name] if step.name in values else self._input_by_column(step.name)
        if step.name in self.untold:
            self.untold.add(step.item)
        if over.shape is not None and len(over.shape) < 2:  # noqa: PLR2004  rows and items
            self.complain((*step.at, "each"), f"${step.name} is {over}: its rows list nothing.")
        item = over.with_shape((ROWS, *over.shape[2:]) if over.shape and len(over.shape) > 1 else None)
        inside = {**values, step.item: item}
        with self._state_of_items(step) as by_row:
            inner = tuple(self.step(one, inside) for one in step.steps)
            self.check_fusing(inner)
            self.line = None
            self.check_state((*step.at, "state"), step.state, inside, [name for name, _ in step.outputs])
        state = {name: self.taken.pop(name) for name in step.state if name in self.taken}
        made = {}
        items = next((size for size in (over.shape or ())[1:2] if isinstance(size, int)), None)
        for name, collected in step.outputs:
            if name not in inside:
                self.complain(
                    (*step.at, "collect", name), f"No step inside makes ${name}. {did_you_mean(name, inside)}"
                )
            one = inside.get(name, TensorType())
            made[collected] = one.with_shape((ROWS, items, *one.shape[1:]) if one.shape else None)
        types = {step.name: over}
        return TypedStep(spec=step, types=types, made=made, options={}, inner=inner, state=state, state_by_row=by_row)

    @contextmanager
    def _state_of_items(self, step: StepOfPipeline) -> Iterator[bool]:
        """Know the state of an each while its steps are typed; yields whether it has its rows first."""
        before = self.axes, self.state, self.carried
        axes = axes_of_state(step, self.models, self.axes)
        if axes is None:
            self.state = {**self.state, **step.state}
        else:
            self.axes, self.carried = axes, self.carried.union(step.state)
        yield axes is not None
        self.axes, self.state, self.carried = before
