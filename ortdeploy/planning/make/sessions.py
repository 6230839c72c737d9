"""Writes down the sessions of a model with their options."""

from collections.abc import Iterator, Sequence

from ortdeploy.deployment.number_formats import compared_within, details_of
from ortdeploy.deployment.resolved import (
    Deployment,
    ResolvedJob,
    ResolvedModel,
    ResolvedProvider,
)
from ortdeploy.deployment.threads import (
    provider_with_threads,
    with_threads,
    without_spinning,
)
from ortdeploy.facts.models import AdapterFacts
from ortdeploy.manifest.spec import AdapterSpec
from ortdeploy.plan.steps import (
    LoadAdapter,
    OpenSession,
    PlannedDevice,
    PlannedProvider,
    PlannedSession,
    PlannedThreadLayout,
)
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import serialise, with_texts


def planned_layouts(
    model: ResolvedModel, deployment: Deployment, jobs: Sequence[ResolvedJob], *, varying: bool
) -> Iterator[PlannedThreadLayout]:
    """Yield the thread layouts that are to be measured and that fit the memory limit of every job."""
    for layout in deployment.thread_layouts_of(model):
        forecasts = (deployment.preflight.memory.get(job.spec.name) for job in jobs if model in job.models)
        if all(forecast is None or layout.name in forecast.thread_layouts for forecast in forecasts):
            opening = planned_opening(model.laid_out(layout), layout.threads, varying=varying)
            yield PlannedThreadLayout(name=layout.name, candidates=opening.candidates, options=opening.options)


def planned_adapter(adapter: AdapterSpec, facts: AdapterFacts) -> LoadAdapter:
    """Write down an adapter, with the digest of the file that was looked at."""
    return LoadAdapter(
        adapter=adapter.name,
        session=adapter.model,
        path=facts.path,
        sha256=facts.sha256,
        size=facts.size,
        parameters=tuple(one.name for one in facts.parameters),
    )


def planned_opening(model: ResolvedModel, threads: int | None = None, *, varying: bool = False) -> OpenSession:
    """Write down a model's sessions, each with `threads` threads; `varying`: its runs may differ in shape."""
    session = with_threads(model.session, threads)
    session = without_spinning(session, (one.chain[0].name for one in model.usable if one.chain))
    if varying and model.spec.memory.pattern_by_shape:
        session = {"enable_mem_pattern": False, **session}
    return OpenSession(
        session=model.spec.name,
        model=model.spec.name,
        path=model.facts.path,
        sha256=model.facts.sha256,
        candidates=tuple(
            PlannedSession(
                name=session.spec.name,
                providers=tuple(_planned_provider(provider, threads) for provider in session.chain),
                count=session.spec.count,
                callers=session.spec.callers,
                predicted=session.prediction.nodes if session.prediction else None,
            )
            for session in model.usable
        ),
        use=model.spec.use,
        on_unavailable=model.spec.on_unavailable,
        cpu_fallback=model.spec.cpu_fallback,
        probe=compared_within(model) if model.is_compared and not model.spec.generates else None,
        computes=details_of(model),
        options=with_texts(session),
        run_options=with_texts(model.run),
        cache=model.spec.cache,
        trim=model.spec.memory.trim,
        extensions=model.facts.uses_extensions,
        shapes=model.facts.given_shapes,
        files=model.facts.files,
        option_files=model.option_files,
        generates=model.spec.generates,
        together=model.spec.together,
    )


def _planned_provider(provider: ResolvedProvider, threads: int | None) -> PlannedProvider:
    device = provider.device
    written = provider_with_threads(provider.name, provider.options, device.kind if device else "", threads)
    options = serialise(find_provider(provider.name), written)
    if device is None:
        return PlannedProvider(name=provider.name, options=options)
    planned = PlannedDevice(
        index=device.index, kind=device.kind, vendor=device.vendor, name=device.name, library=device.library
    )
    return PlannedProvider(name=provider.name, options=options, device=planned)
