"""A pipeline in a plan: plain data that says which sessions a row goes through, and by which names values pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortdeploy.deployment import ResolvedPipeline
from ortdeploy.facts import ValueFacts
from ortdeploy.manifest.pipelines import FILES
from ortdeploy.tensors import Shape, TensorType
from ortdeploy.wiring import WiredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """A value by its name, with what is known of it; `limits` are those of an index into a constant table."""

    name: str
    dtype: str | None
    shape: Shape | None
    layout: str | None
    limits: tuple[float, float] | None = None

    @property
    def tensor(self) -> TensorType:
        """Its type."""
        return TensorType(self.dtype, self.shape, self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWireStep:
    """One step: `run` the session of a model, `do` an operation, `each` of a value's items through inner steps.

    `wires` are pairs of an argument and a value's name, `takes` what must arrive there, `outputs` pairs of what the
    step gives and its name, `makes` their types.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPreset:
    """Images: the folder with tokenizer and scheduler, sessions by component, and how images are made.

    `kind` is the preset's name; `task` and `arguments` are for one that optimum-onnx runs.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A pipeline: the sessions that it runs, its steps or its preset, and its outputs by name with their values.

    `state` are pairs of a value and the one of the row before that it is; `first_state` are their types. The state
    begins anew where a column of `reset` changes.
    """

    name: str
    sessions: tuple[str, ...]
    steps: tuple[PlannedWireStep, ...]
    outputs: tuple[tuple[str, str], ...]
    preset: PlannedPreset | None = None
    state: tuple[tuple[str, str], ...] = ()
    first_state: tuple[PlannedValue, ...] = ()
    reset: tuple[str, ...] = ()

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that it names, each once."""
        of_components = self.preset.adapters.values() if self.preset else ()
        names = [name for step in walk(self.steps) for name in step.adapters]
        return tuple(dict.fromkeys([*names, *(name for some in of_components for name in some)]))


def walk(steps: Sequence[PlannedWireStep]) -> Iterator[PlannedWireStep]:
    """Yield every step, those inside of others too."""
    for step in steps:
        yield step
        yield from walk(step.steps)


def plan_pipeline(pipeline: ResolvedPipeline, folder: str) -> PlannedPipeline:
    """Write down a pipeline to which no rule objects; files of operations get their full paths."""
    return PlannedPipeline(
        name=pipeline.spec.name,
        sessions=pipeline.spec.models,
        steps=tuple(_plan_steps(pipeline.wiring.steps, folder)) if pipeline.wiring else (),
        outputs=tuple(pipeline.spec.outputs.items()),
        preset=_plan_preset(pipeline, folder),
        state=tuple(pipeline.spec.state.items()),
        first_state=tuple(
            _value(name, one) for name, one in (pipeline.wiring.state if pipeline.wiring else {}).items()
        ),
        reset=pipeline.spec.reset,
    )


def _plan_preset(pipeline: ResolvedPipeline, folder: str) -> PlannedPreset | None:
    preset, found = pipeline.spec.preset, pipeline.diffusion
    if preset is None or found is None:
        return None
    return PlannedPreset(
        kind=preset.kind,
        folder=str(Path(folder) / preset.folder),
        sessions=preset.parts,
        scheduler=found.scheduler,
        steps=preset.steps,
        guidance_scale=preset.guidance_scale,
        height=preset.height,
        width=preset.width,
        latents=str(Path(folder) / preset.latents) if preset.latents else None,
        ports=found.ports,
        adapters={part: list(names) for part, names in preset.adapters.items()},
        task=preset.task,
        arguments=preset.arguments,
    )


def _plan_steps(steps: Sequence[WiredStep], folder: str) -> Iterator[PlannedWireStep]:
    for step in steps:
        spec = step.spec
        paths = FILES.get(spec.name, {}) if spec.kind == "do" else {}
        full = {name: str(Path(folder) / step.options[name]) for name in paths if name in step.options}
        yield PlannedWireStep(
            kind=spec.kind,
            name=spec.name,
            wires=tuple(spec.wires.items()),
            takes=tuple(map(_port, step.ports)) or tuple(_value(name, one) for name, one in step.types.items()),
            options={**step.options, **full},
            outputs=spec.outputs,
            makes=tuple(_value(name, tensor) for name, tensor in step.made.items()),
            adapters=spec.adapters,
            item=spec.item,
            batch=spec.batch,
            most=spec.most,
            steps=tuple(_plan_steps(step.inner, folder)),
        )


def _port(port: ValueFacts) -> PlannedValue:
    tensor, limits = port.tensor, port.limits
    return PlannedValue(
        name=port.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        layout=tensor.layout,
        limits=(float(limits[0]), float(limits[1])) if limits else None,
    )


def _value(name: str, tensor: TensorType) -> PlannedValue:
    return PlannedValue(name=name, dtype=tensor.dtype, shape=tensor.shape, layout=tensor.layout)
