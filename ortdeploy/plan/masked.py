"""Plans in the form that anybody may see, without the secrets of options and URLs. The executor gets the whole plan."""

from msgspec.structs import replace

from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, PlannedThreadLayout, RunJob, Step
from ortdeploy.providers.secrets import masked_options, masked_settings
from ortdeploy.redaction import masked, masked_setting, shown_path


def masked_step(step: Step) -> Step:
    """Return a step with the mask in place of every secret; it says the same of everything else."""
    if isinstance(step, OpenSession):
        return replace(
            step,
            candidates=tuple(map(_session, step.candidates)),
            options=masked_settings("session", step.options),
            run_options=masked_settings("run", step.run_options),
            thread_layouts=tuple(map(_layout, step.thread_layouts)),
        )
    if isinstance(step, RunJob):
        return replace(
            step,
            input=replace(step.input, patterns=tuple(map(shown_path, step.input.patterns))),
            output=replace(step.output, upload=None if step.output.upload is None else shown_path(step.output.upload)),
            pipeline=None if step.pipeline is None else _pipeline(step.pipeline),
        )
    return step


def masked_plan(plan: Plan) -> Plan:
    """Return a plan whose steps, and what the command line set, hold no secrets."""
    return replace(plan, steps=tuple(map(masked_step, plan.steps)), sets=tuple(map(masked_setting, plan.sets)))


def _pipeline(pipeline: PlannedPipeline) -> PlannedPipeline:
    preset = pipeline.preset
    return (
        replace(pipeline, preset=replace(preset, arguments=masked("", dict(preset.arguments)))) if preset else pipeline
    )


def _session(session: PlannedSession) -> PlannedSession:
    providers = (replace(one, options=masked_options(one.name, one.options)) for one in session.providers)
    return replace(session, providers=tuple(providers))


def _layout(layout: PlannedThreadLayout) -> PlannedThreadLayout:
    candidates = tuple(map(_session, layout.candidates))
    return replace(layout, candidates=candidates, options=masked_settings("session", layout.options))
