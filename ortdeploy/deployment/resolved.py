"""One manifest on one machine, resolved: the nouns that rules judge and plans are made from."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.deployment.bound_inputs import Binding, StepProblem
from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.op_steps import OpStep
from ortdeploy.deployment.placement_prediction import Prediction
from ortdeploy.deployment.threads import sleeping, thread_layouts, threads_of_session, with_threads
from ortdeploy.deployment.typed_steps import PipelineTypes
from ortdeploy.facts.data import HashedFile, InputFacts, OutputFacts
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import DeviceFacts, RuntimeFacts
from ortdeploy.facts.models import AdapterFacts, DiffusionFacts, ModelFacts
from ortdeploy.facts.preflight import FirstRows, Preflight, RowRoom
from ortdeploy.facts.problems import ELSEWHERE, WAITING
from ortdeploy.manifest.pipelines import PipelineSpec
from ortdeploy.manifest.spec import ROW, AdapterSpec, JobSpec, ModelSpec, ProviderSpec, SessionSpec, Spec, StepSpec
from ortdeploy.plan.batching import Batching
from ortdeploy.plan.made_by import made_by_digest, output_layout
from ortdeploy.plan.thread_layout import BY_RULE, ThreadLayout, layout_of_name
from ortdeploy.providers.catalogue import CPU, find_provider, full_name
from ortdeploy.providers.option_files import needed_libraries
from ortdeploy.providers.secrets import masked_options
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.settings import identity
from ortdeploy.tensors.row_axes import RowAxes, to_place
from ortdeploy.tensors.types import Shape, TensorType
from ortdeploy.transforms.sample_rates import needs_rate
from ortdeploy.units import allowed_count, allows_none, rows_lately


class ResolvedProvider(Struct, frozen=True, kw_only=True):
    """A provider that the session will ask for, by its full name; `device` when it comes from a plugin package.

    Paths among its `options` are full.
    """

    name: str
    options: Mapping[str, Any]
    device: DeviceFacts | None


def missing_library(entry: ProviderSpec, runtime: RuntimeFacts) -> tuple[str, str] | None:
    """Return the option of a provider that decides a library which is not on this machine, and that library."""
    missing = runtime.missing_libraries.get(full_name(entry.name), frozenset())
    needed = needed_libraries(find_provider(entry.name), entry.options) if missing else ()
    return next((one for one in needed if one[1] in missing), None)


class ResolvedSession(Struct, frozen=True, kw_only=True):
    """A session with the chain that it gets; `unavailable` are the providers of its chain that are not here.

    `prediction` is of the chain that it gets; None if kernel definitions do not decide, or are not known.
    """

    spec: SessionSpec
    written: tuple[ProviderSpec, ...]
    chain: tuple[ResolvedProvider, ...]
    unavailable: tuple[ProviderSpec, ...]
    usable: bool
    prediction: Prediction | None


class ResolvedModel(Struct, frozen=True, kw_only=True):
    """A model with its facts and the sessions that it may get, in order.

    `axes` say where its graph has the rows. In `facts`, free_dimension_overrides have fixed their dimensions.
    `session` and `run` are the session and run options, with full paths; `option_files` are opened with the sessions.
    `overruled` are the shapes in the graph of inputs and outputs that have, in the facts, the shape that the manifest
    declares.
    """

    spec: ModelSpec
    facts: ModelFacts
    sessions: tuple[ResolvedSession, ...]
    session: Mapping[str, Any]
    run: Mapping[str, Any]
    axes: RowAxes = field(default_factory=RowAxes)
    option_files: tuple[HashedFile, ...] = ()
    overruled: Mapping[str, Shape | None] = field(default_factory=dict)

    @property
    def usable(self) -> tuple[ResolvedSession, ...]:
        """The sessions that this machine can honour; none of them where the model uses all, and not all can be."""
        usable = tuple(session for session in self.sessions if session.usable)
        needs_all = self.spec.use == "all" and self.spec.on_unavailable == "fail"
        return () if needs_all and len(usable) < len(self.sessions) else usable

    @property
    def sha256(self) -> str:
        """The digest of what is opened: of the file, and of the shapes that its inputs get."""
        shapes = self.facts.given_shapes
        return json_digest([self.facts.sha256, sorted(shapes.items())]) if shapes else self.facts.sha256

    @property
    def is_compared(self) -> bool:
        """Whether results are compared with the CPU's, which cannot open a model that a provider has compiled."""
        return self.spec.probe is not None and not self.facts.compiled_by

    def laid_out(self, layout: ThreadLayout) -> "ResolvedModel":
        """Return the model with as many sessions and callers as a layout has; threads that wait do not spin."""
        sessions = tuple(
            replace(one, spec=replace(one.spec, count=layout.sessions, callers=layout.callers)) for one in self.sessions
        )
        if layout.sessions == 1 or layout.threads == 1:
            return replace(self, sessions=sessions)
        return replace(self, sessions=sessions, session=sleeping(self.session))


class ResolvedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline with the models that it runs: its wires, or what is known of the folder of its preset."""

    spec: PipelineSpec
    parts: tuple[ResolvedModel, ...]
    types: PipelineTypes | None
    diffusion: DiffusionFacts | None


class ResolvedJob(Struct, frozen=True, kw_only=True):
    """A job with everything it rests on. `axes` say where its model has the rows.

    `missing` says by column that is fed what an empty value of it stands for. `postprocess_ops` are by step: those that
    are operators, joined.

    A pipeline stands for a `model` whose inputs and outputs are the pipeline's, and whose sessions are its models'.
    `upstream` is the job whose rows it reads, if it does not read files; `readers` are the jobs that
    read its own, with the folders that they write into. `row_room`: what its first rows take, once they were
    looked at.
    """

    spec: JobSpec
    model: ResolvedModel
    pipeline: ResolvedPipeline | None
    adapters: tuple[AdapterSpec, ...]
    adapter_facts: Mapping[str, AdapterFacts]
    input: InputFacts
    output: OutputFacts
    axes: RowAxes
    bindings: tuple[Binding, ...]
    missing: Mapping[str, Any]
    values: tuple[FedValue, ...]
    batching: Batching
    outputs: Mapping[str, TensorType]
    results: Mapping[str, TensorType]
    postprocess: tuple[StepSpec, ...]
    postprocess_problems: tuple[StepProblem, ...]
    postprocess_ops: tuple[OpStep | None, ...]
    columns: tuple[str, ...]
    upstream: JobSpec | None = None
    readers: Mapping[str, str] = field(default_factory=dict)
    row_room: RowRoom = field(default_factory=RowRoom)

    @property
    def identity(self) -> dict[str, str]:
        """What the results depend on, by the name that a message gives it.

        Two runs with the same identity give the same rows in the same files. What `errors` says and thread counts are
        not part of it: changing those lets a job go on where it stopped.
        """
        spec = self.spec
        of_pipeline = {"pipeline": json_digest(self.pipeline.spec.definition)} if self.pipeline else {}
        return {
            "model": self.model.sha256,
            **of_pipeline,
            "adapter": self._adapter_identity,
            "providers": json_digest(
                [[_written(entry) for entry in session.written] for session in self.model.sessions]
            ),
            "columns": json_digest(
                [
                    *([b.value.name, b.columns, b.stacked] for b in self.bindings),
                    *sorted(self.missing.items()),
                    *([one.value.name, one.axis, one.content] for one in self.values),
                    *([name, axis] for name, axis in self.moved_axes.items()),
                    *spec.input.dialect_identity,
                ]
            ),
            "prepare": json_digest(
                [
                    *([b.value.name, [dict(step.options) for step in b.steps]] for b in self.bindings),
                    *self._settings_identity,
                ]
            ),
            "batch": json_digest([self._batch_identity, spec.batch.last]),
            "postprocess": json_digest([dict(step.options) for step in self.postprocess]),
            "output": self._output_identity,
        }

    @property
    def _settings_identity(self) -> list[list[Any]]:
        name = self.input.format
        return identity(SOURCES[name], self.spec.input.settings) if name and self.spec.input.settings else []

    @property
    def _output_identity(self) -> str:
        """The digest of format, columns and parts, as it is noted of the output that there is.

        Earlier versions had on_nan in it, and their outputs stay what they are under any on_nan.
        """
        spec = self.spec
        output = [spec.output.format, self.columns, spec.input.key, spec.output.rows_per_part]
        more: list[Any] = [spec.output.images] if spec.output.images else []
        more += [[[name, one.rate, one.format] for name, one in sorted(spec.output.recordings.items())]] * bool(
            spec.output.recordings
        )
        more += [["explode", *spec.output.explode]] if spec.output.explode else []
        more += [["types", *sorted(spec.output.types.items())]] if spec.output.types else []
        digests = [json_digest([*output, policy, *more]) for policy in ("keep", "fail", "skip")]
        noted = self.output.identity.get("output", "")
        return noted if noted in digests else digests[0]

    @property
    def op_problems(self) -> tuple[StepProblem, ...]:
        """What is wrong with prepare and postprocess steps that are operators."""
        of_inputs = [binding.problem for binding in self.bindings if self.readable and not binding.unknown]
        return tuple(one for one in (*of_inputs, *self.postprocess_problems) if one is not None and one.at is not None)

    @property
    def changed(self) -> tuple[str, ...]:
        """What results depend on and is not what it was when those were made that are there already."""
        have = self.output.identity
        return tuple(name for name, value in self.identity.items() if have.get(name, value) != value)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns beside the results; what may be carried away says of each row which it is."""
        has_row = not self.spec.output.removable or ROW in self.spec.input.key
        return self.spec.input.key if has_row else (*self.spec.input.key, ROW)

    @property
    def layout(self) -> dict[str, Any]:
        """The format and the columns of what it writes."""
        output = self.spec.output
        shapes = [self.row_shape(name) for name in self.columns]
        dtypes = [self.dtype(name) for name in self.columns]
        return output_layout(
            output.format,
            self.key,
            self.columns,
            dtypes,
            shapes,
            images=output.files,
            explode=output.explode,
            stacked={one.value.name: one.columns for one in self.bindings if one.stacked},
            types=output.types,
        )

    @property
    def upgraded_at(self) -> int:
        """The row from which on rows are made by what the manifest says now; others have made those before."""
        if not self.output.made:
            return 0
        last, start = self.output.made[-1]
        is_same = not self.changed if last is None else last == made_by_digest(self.identity, self.layout)
        return start if is_same else self.output.rows

    def dtype(self, column: str) -> str | None:
        """Return the element type of a result if it is known."""
        tensor = self.results.get(column)
        return None if tensor is None else tensor.dtype

    def row_shape(self, column: str) -> tuple[int | None, ...] | None:
        """Return the sizes of a column's rows that the graph fixes."""
        tensor = self.results.get(column)
        unknown = column in self.spec.output.files or self.batching.size is None
        if unknown or tensor is None or tensor.shape is None:
            return None
        return tuple(size if isinstance(size, int) else None for size in tensor.shape[1:])

    @property
    def kind(self) -> str:
        """What `model` names, in a message: a model, or the pipeline that stands for one."""
        return "pipeline" if self.pipeline else "model"

    @property
    def moved_axes(self) -> dict[str, int]:
        """The row axes, by input and output, that are not the first one in the graph."""
        of_inputs = {binding.value.name: binding.axis for binding in self.bindings}
        of_outputs = {name: self.axes.of_output(name) for name in self.outputs} if self.batching.size else {}
        return {name: axis for name, axis in (of_inputs | of_outputs).items() if axis}

    def run_shapes(self, rows: int) -> dict[str, tuple[int | None, ...]]:
        """Return what is known of the shapes that a run is fed, with the rows at the graph's axis."""
        if self.batching.size:
            fed = {one.value.name: to_place(one.shape(rows), one.axis) for one in self.bindings}
        else:
            fed = {one.value.name: one.shape(rows)[1:] for one in self.bindings}
        for one in self.values:
            sizes = tuple(size if isinstance(size, int) else None for size in one.target.shape or ())
            fed[one.value.name] = sizes if one.axis is None else to_place((rows, *sizes[1:]), one.axis)
        return fed | self.adapter_shapes

    @property
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that adapters feed, by name; if several feed one, the largest sizes."""
        fed: dict[str, tuple[int, ...]] = {}
        for one in (one for facts in self.adapter_facts.values() for one in facts.parameters):
            fed[one.name] = tuple(map(max, fed.get(one.name, one.shape), one.shape))
        return fed

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        """The models that it opens: its own, or those of its pipeline."""
        return self.pipeline.parts if self.pipeline else (self.model,)

    @property
    def has_state(self) -> bool:
        """Whether a row hands something on to the next."""
        return self.pipeline is not None and bool(self.pipeline.spec.state)

    @property
    def is_finished(self) -> bool:
        """Whether a run has accounted for every row that there is."""
        found = self.input
        is_left = found.states or found.rerun or found.unreadable or found.superseded
        return self.output.state == "finished" and not is_left

    @property
    def is_waiting(self) -> bool:
        """Whether its input has nothing to read yet, as the manifest allows."""
        return self.input.problem is not None and self.input.problem.kind == WAITING

    @property
    def is_input_elsewhere(self) -> bool:
        """Whether its input is on the machine that the plan is for, and was not looked at on this one."""
        return self.input.problem is not None and self.input.problem.kind == ELSEWHERE

    @property
    def has_work(self) -> bool:
        """Whether there are rows that no run has accounted for."""
        return not (self.is_finished or self.is_waiting)

    @property
    def layout_by_rule(self) -> str | None:
        """The thread layout of new outputs, if rows give the same in any order and the manifest fixes none.

        That is so on the CPU provider, in batches of a known size, of rows that are proven to be independent.
        """
        spec, batching = self.model.spec, self.batching
        is_batched = self.pipeline is None and batching.size is not None and not batching.auto
        is_on_cpu = all([provider.name for provider in one.chain] == [CPU] for one in self.model.usable)
        is_proven = spec.checks_rows and spec.row_tolerance is None and not self.model.facts.draws
        is_free = spec.free_threads and bool(self.model.usable)
        return BY_RULE.name if is_free and is_batched and is_on_cpu and is_proven else None

    @property
    def thread_layout(self) -> ThreadLayout | None:
        """The thread layout of its output: the one that it has, or by rule; None: as the manifest says."""
        name = self.output.layout_or(self.layout_by_rule)
        return None if name is None else layout_of_name(name)

    @property
    def is_current(self) -> bool:
        """Whether what is committed was made from what the manifest and its files are now."""
        unmoved = not self.input.changed and not self.input.restarted
        return not self.changed and unmoved and self.output.problem is None

    @property
    def _batch_identity(self) -> int | str:
        """The batch size of the results' identity: one that is searched for is `auto`, whatever is found; none is 0."""
        return "auto" if self.spec.batch.size == "auto" else self.batching.size or 0

    @property
    def _adapter_identity(self) -> str:
        """The digest of the one adapter that all rows get, or of the choice with all their digests."""
        choice = self.spec.adapters
        digests = {adapter.name: self.adapter_facts[adapter.name].sha256 for adapter in self.adapters}
        if choice.column is None and len(digests) < 2:  # noqa: PLR2004  none, or one
            return next(iter(digests.values()), "")
        mapping = sorted(choice.mapping.items())
        return json_digest([choice.always, choice.column, mapping, choice.otherwise, sorted(digests.items())])

    def is_doomed(self, found: FirstRows) -> bool:
        """Return whether the first rows alone are more failures than the error budget can ever allow.

        A share of a number of rows that is not known leaves that open, unless none of the rows can be fed.
        """
        rows = found.rows if found.complete else self.input.rows
        if self.batching.last == "drop" and self.batching.size:
            known = self.input.first_row + (found.rows if rows is None else rows)
            found = found.before(self.batching.rows_run(known))
        if found.stopped or (self.spec.max_consecutive is not None and found.consecutive > self.spec.max_consecutive):
            return True
        limit, refused = self.spec.max_failed, len(found.refused)
        if isinstance(limit, int) or rows is not None:
            return refused > allowed_count(limit, rows_lately(limit, self.input.first_row) + (rows or 0))
        return refused > allowed_count(limit, refused) if found.useless else refused > 0 and allows_none(limit)

    def feeds(self, column: str) -> bool:
        """Return whether a column of the source reaches the model."""
        return any(column in binding.columns for binding in self.bindings)

    @property
    def resamples(self) -> bool:
        """Whether a prepare step brings recordings of any sample rate to one."""
        return any(needs_rate(step.name, step.options) for one in self.bindings for step in one.steps)

    @property
    def needed(self) -> frozenset[str]:
        """Results that are written, or that a step reads."""
        return frozenset({*self.columns, *(name for step in self.postprocess for name in step.reads)})

    @property
    def has_varying_shapes(self) -> bool:
        """Whether the graph leaves a size open beside the number of rows, so that runs may differ in shape."""
        return any(not all(isinstance(size, int) for size in (b.target.shape or (None,))[1:]) for b in self.bindings)

    @property
    def readable(self) -> bool:
        """Whether the model and the input are there, so that what is between them can be judged."""
        return self.model.facts.problem is None and self.input.problem is None and not self.input.missing_package

    @property
    def comparable(self) -> bool:
        """Whether what reaches the model can be judged too: no steps stand under a name that is no input's."""
        inputs = {value.name for value in self.model.facts.inputs}
        return self.readable and inputs.issuperset(self.spec.prepare)


class Deployment(Struct, frozen=True, kw_only=True):
    """One manifest on this machine. Jobs that name no model are missing; the spec's rules have refused them.

    `preflight` is empty until nothing else speaks against the deployment.
    """

    spec: Spec
    facts: Facts
    models: tuple[ResolvedModel, ...]
    jobs: tuple[ResolvedJob, ...]
    preflight: Preflight = field(default_factory=Preflight)

    def thread_layouts_of(self, model: ResolvedModel) -> tuple[ThreadLayout, ...]:
        """Return the ways to use threads of a model that says threads: auto, within the limits of all its jobs."""
        machine = self.facts.machine
        if not model.spec.auto_threads or machine is None:
            return ()
        limits = (job.spec.limits.threads for job in self.jobs if model in job.models)
        return thread_layouts(min([machine.usable_cores, *(limit for limit in limits if limit is not None)]))

    def threads_said_of(self, model: ResolvedModel) -> int:
        """Return the threads of each session of a model by its options or its jobs' limits; 0 if nothing says them."""
        jobs = (job for job in self.spec.jobs if model.spec in self.spec.models_of(job))
        limited = threads_of_session(model.spec, [job.limits.threads for job in jobs])
        return int(with_threads(model.spec.session, limited).get("intra_op_num_threads", 0))


def _written(entry: ProviderSpec) -> list[Any]:
    return [full_name(entry.name), masked_options(entry.name, entry.options), entry.device, entry.library]


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value that JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
