"""Writes down a pipeline: its steps, or its preset."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortdeploy.deployment.number_formats import narrowing_of
from ortdeploy.deployment.resolved import ResolvedModel, ResolvedPipeline
from ortdeploy.deployment.typed_steps import TypedStep
from ortdeploy.facts.data import FileFacts
from ortdeploy.facts.models import DiffusionFacts, ValueFacts
from ortdeploy.manifest.document import Path as Place
from ortdeploy.manifest.pipelines import GENERATE, PresetSpec
from ortdeploy.manifest.pipelines import walk as walk_specs
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedPlace, PlannedPreset, PlannedValue, PlannedWireStep, walk
from ortdeploy.planning.make.fusions import FusedStep
from ortdeploy.planning.make.op_lines import OpLine, planned_line
from ortdeploy.tensors.types import TensorType

_OPENED = frozenset({"letters", "table", "tokenizer", "vectors", "vocabulary"})
"""The files that a run opens; of others, the plan holds what is in them."""


def plan_pipeline(
    pipeline: ResolvedPipeline,
    folder: str,
    resources: Mapping[str, FileFacts],
    lines: Sequence[OpLine],
    fused: Sequence[FusedStep],
) -> PlannedPipeline:
    """Write down a pipeline in which no rule found an error; files of operations (`resources`) get full paths.

    `lines` are its op steps, `fused` the models that have some of them in their session.
    """
    ops = {line.last: planned_line(line) for line in lines} | {one.at: one.planned for one in fused}
    steps = tuple(_plan_steps(pipeline.types.steps, folder, ops, _models(pipeline))) if pipeline.types else ()
    sessions = dict.fromkeys(step.name for step in walk(steps) if step.kind in {"run", "op"})
    return PlannedPipeline(
        name=pipeline.spec.name,
        sessions=tuple(sessions) if pipeline.types else pipeline.spec.models,
        steps=steps,
        outputs=tuple(pipeline.spec.outputs.items()),
        preset=_plan_preset(pipeline, folder),
        places=tuple(_places(pipeline, folder, resources)),
        state=tuple(pipeline.spec.state.items()),
        first_state=tuple(_value(name, one) for name, one in (pipeline.types.state if pipeline.types else {}).items()),
        reset=pipeline.spec.reset,
    )


def _places(pipeline: ResolvedPipeline, folder: str, resources: Mapping[str, FileFacts]) -> Iterator[PlannedPlace]:
    """Yield the files that the pipeline's steps and its preset read, each once."""
    preset = pipeline.spec.preset
    if preset is not None and pipeline.diffusion is not None:
        yield PlannedPlace(path=str(Path(folder) / preset.folder), files=pipeline.diffusion.files, single=False)
    named = [preset.latents] if preset is not None and preset.latents else []
    for step in walk_specs(pipeline.spec.steps):
        named += [step.options[name] for name, kind in step.files.items() if name in step.options and kind in _OPENED]
    for path in dict.fromkeys(named):
        facts, full = resources[path], Path(folder) / path
        single = len(facts.files) == 1 and facts.files[0].path == facts.path
        yield PlannedPlace(path=str(full), files=facts.files, single=single)


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
        arguments=_arguments(preset, found),
        image_folder=str(Path(folder) / preset.image_folder) if preset.image_folder else None,
    )


def _arguments(preset: PresetSpec, found: DiffusionFacts) -> Mapping[str, Any]:
    if preset.kind != GENERATE:
        return preset.arguments
    from ortdeploy.presets.generation import search_of  # noqa: PLC0415  only for presets

    return search_of(preset, found)


def _plan_steps(
    steps: Sequence[TypedStep],
    folder: str,
    ops: Mapping[Place, PlannedWireStep],
    models: Mapping[str, ResolvedModel],
) -> Iterator[PlannedWireStep]:
    for step in steps:
        spec = step.spec
        if spec.at in ops:
            yield ops[spec.at]
        if spec.at in ops or spec.kind == "op":
            continue
        opened = [name for name, kind in spec.files.items() if name in step.options and kind in _OPENED]
        full = {name: str(Path(folder) / step.options[name]) for name in opened}
        yield PlannedWireStep(
            kind=spec.kind,
            name=spec.name,
            wires=tuple(step.wires.items()),
            takes=tuple(_port(port, models.get(spec.name)) for port in step.ports)
            or tuple(_value(name, one) for name, one in step.types.items()),
            options={**step.options, **full},
            outputs=spec.outputs,
            makes=tuple(_value(name, tensor) for name, tensor in step.made.items()),
            adapters=spec.adapters,
            item=spec.item,
            batch=spec.batch,
            most=spec.most,
            steps=tuple(_plan_steps(step.inner, folder, ops, models)),
            row_axes={name: axis for name, axis in (*step.axes.inputs.items(), *step.axes.outputs.items()) if axis},
            constants=tuple(one.planned for one in step.constants),
            state=tuple(spec.state.items()),
            first_state=tuple(_value(name, tensor) for name, tensor in step.state.items()),
            state_by_row=step.state_by_row,
            by_row=spec.by_row,
            fixed_rows=step.fixed_rows,
        )


def _models(pipeline: ResolvedPipeline) -> dict[str, ResolvedModel]:
    return {model.spec.name: model for model in pipeline.parts}


def _port(port: ValueFacts, model: ResolvedModel | None) -> PlannedValue:
    tensor = port.tensor
    return PlannedValue(
        name=port.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        layout=tensor.layout,
        limits=(float(port.limits[0]), float(port.limits[1])) if port.limits else None,
        narrowed_by=narrowing_of(model, tensor.dtype),
    )


def _value(name: str, tensor: TensorType) -> PlannedValue:
    return PlannedValue(name=name, dtype=tensor.dtype, shape=tensor.shape, layout=tensor.layout)
