"""Combines the open models of a pipeline into what looks like the sessions of one model."""

from collections.abc import Callable, Mapping, Sequence

from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedPreset
from ortdeploy.plan.steps import PlannedProvider, PlannedSession
from ortdeploy.sessions.opening import OpenedModel, OpenedSession

_Build = Callable[[PlannedPipeline, Mapping[str, Component]], ComposedSession]


def _session_of(preset: PlannedPreset | None) -> _Build:
    """Return the class that runs a preset, or steps if there is none; it is imported only if it is used."""
    match None if preset is None else preset.kind:
        case None:
            from ortdeploy.pipelines.steps import StepsSession  # noqa: PLC0415

            return StepsSession
        case "text-to-image":
            from ortdeploy.pipelines.text_to_image import TextToImageSession  # noqa: PLC0415

            return TextToImageSession
        case "diffusion":
            from ortdeploy.pipelines.optimum import OptimumSession  # noqa: PLC0415

            return OptimumSession
        case "generate" if preset is not None and preset.task == "speech":
            from ortdeploy.pipelines.transcribe import TranscribeSession  # noqa: PLC0415

            return TranscribeSession
        case "generate" if preset is not None and "vision" in preset.sessions:
            from ortdeploy.pipelines.describe import DescribeSession  # noqa: PLC0415

            return DescribeSession
        case "generate":
            from ortdeploy.pipelines.generate import GenerateSession  # noqa: PLC0415

            return GenerateSession
    raise AssertionError(preset)


def compose(pipeline: PlannedPipeline, models: Mapping[str, OpenedModel]) -> OpenedModel:
    """Return a pipeline as the sessions of one model. Raises OrtdeployError.

    There are as many as the model with the most sessions has, and at least two if models are on different providers:
    one can run the first model while another runs the next. A pipeline with state has one.
    """
    shared = {name: [Component(name, one) for one in opened.sessions] for name, opened in models.items()}
    chains = [one.candidate.providers for opened in models.values() for one in opened.sessions]
    different = len({tuple(provider.name for provider in chain) for chain in chains})
    count = 1 if pipeline.state else max([1, min(different, 2), *map(len, shared.values())])
    candidate = PlannedSession(name=pipeline.name, providers=_all_providers(chains), count=count)
    build = _session_of(pipeline.preset)
    sessions = []
    for index in range(count):
        components = {name: some[index % len(some)] for name, some in shared.items()}
        sessions.append(OpenedSession(session=build(pipeline, components), candidate=candidate, instance=index))
    skipped = tuple(one for opened in models.values() for one in opened.skipped)
    return OpenedModel(sessions=tuple(sessions), skipped=skipped, memory=_memory(list(models.values())))


def _memory(models: Sequence[OpenedModel]) -> Mapping[str, Mapping[str, int | None]]:
    """Return the memory of the process before the first model was opened, and after the last."""
    if not models:
        return {}  # operations alone need no session
    return {**models[-1].memory, **{key: one for key, one in models[0].memory.items() if key == "before_opening"}}


def _all_providers(chains: Sequence[tuple[PlannedProvider, ...]]) -> tuple[PlannedProvider, ...]:
    """Return each provider once, by its name; the components have the options."""
    return tuple({provider.name: provider for chain in chains for provider in chain}.values())


def failed_component(opened: OpenedModel) -> str | None:
    """Return the model of a pipeline whose provider failed; None if none did, or if it is no pipeline."""
    sessions = (one.session for one in opened.sessions if isinstance(one.session, ComposedSession))
    failed = (component.model for session in sessions for component in session.components.values() if component.failed)
    return next(failed, None)
