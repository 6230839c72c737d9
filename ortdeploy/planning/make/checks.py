"""Writes down golden checks and searches for leaks."""

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from ortdeploy.deployment.number_formats import details_of, filled, golden_within
from ortdeploy.deployment.resolved import Deployment, ResolvedModel, ResolvedSession
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.spec import CheckSpec, Spec
from ortdeploy.plan.steps import GoldenValue, LoadAdapter, PlannedCheck, SyntheticInput
from ortdeploy.planning.make.sessions import planned_adapter, planned_opening


def make_checks(deployment: Deployment, models: Collection[str]) -> tuple[PlannedCheck, ...]:
    """Write down the golden checks of some models, and of their adapters, on each of the models' sessions."""
    return tuple(
        check for model in deployment.models if model.spec.name in models for check in _checks(model, deployment)
    )


def _checks(model: ResolvedModel, deployment: Deployment) -> Iterator[PlannedCheck]:
    """Yield the checks of a model and then of its adapters, one for each session that the model may get."""
    yield from _checks_of(model, None, model.spec.checks, deployment.spec)
    for adapter in deployment.spec.adapters:
        if adapter.model == model.spec.name:
            loading = planned_adapter(adapter, deployment.facts.adapters[adapter.name])
            yield from _checks_of(model, loading, adapter.checks, deployment.spec)


def _checks_of(
    model: ResolvedModel, adapter: LoadAdapter | None, golden: Sequence[CheckSpec], spec: Spec
) -> Iterator[PlannedCheck]:
    for session, check in _checks_of_sessions(model, golden, spec) if golden else ():
        within = golden_within(model, session.chain)
        yield replace(
            check,
            opening=replace(check.opening, computes=details_of(model, (session,))),
            tolerances=tuple(
                {name: filled(written, within) for name, written in (*one.outputs.items(), ("", one.tolerance))}
                for one in golden
            ),
            adapter=adapter,
        )


def make_leak_checks(deployment: Deployment, models: Collection[str], runs: int) -> tuple[PlannedCheck, ...]:
    """Write down a search for leaks on each session of some models."""
    return tuple(
        replace(check, leak_runs=runs, synthetic_inputs=tuple(_synthetic_inputs(model)))
        for model in deployment.models
        if model.spec.name in models
        for _, check in _checks_of_sessions(model, model.spec.checks, deployment.spec)
    )


def _checks_of_sessions(
    model: ResolvedModel, golden: Sequence[CheckSpec], spec: Spec
) -> Iterator[tuple[ResolvedSession, PlannedCheck]]:
    """Yield each session that a model may get, with what runs golden folders on it alone and compares nothing."""
    opening = planned_opening(model)
    for session, candidate in zip(model.usable, opening.candidates, strict=True):
        alone = (replace(candidate, count=1, callers=1),)
        yield (
            session,
            PlannedCheck(
                opening=replace(opening, candidates=alone, use="first", probe=None),
                root=spec.folder,
                folders=tuple(spec.places.get(one.path, one.path) for one in golden),
                tolerances=(),
                inputs=_golden_values(model.facts.inputs),
                outputs=_golden_values(model.facts.outputs),
            ),
        )


def _synthetic_inputs(model: ResolvedModel) -> Iterator[SyntheticInput]:
    """Yield the inputs that must be fed, with shapes from the graph and the manifest."""
    declared = {tensor.name: tensor for tensor in model.spec.inputs}
    for value in (value for value in model.facts.inputs if not value.optional and value.kind == "tensor"):
        said = declared.get(value.name)
        shape = value.tensor.shape
        if shape is not None and said is not None and said.tensor.shape is not None:
            shape = tuple(w if isinstance(w, int) else h for h, w in zip(shape, said.tensor.shape, strict=False))
        limits = value.limits or (said.limits if said else None)
        kept = (float(limits[0]), float(limits[1])) if limits else None
        yield SyntheticInput(name=value.name, dtype=value.tensor.dtype or "float32", shape=shape, limits=kept)


def _golden_values(values: Sequence[ValueFacts]) -> tuple[GoldenValue, ...]:
    return tuple(GoldenValue(name=one.name, kind=one.kind, optional=one.optional) for one in values)
