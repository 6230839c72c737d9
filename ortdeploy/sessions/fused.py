"""A session with op steps in its model's graph, whose first runs prove that it computes what they do side by side."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.plan.op_graph import Fusion, OpGraph
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.protocol import Runtime, Session
from ortdeploy.sessions.evidence import Evidence, varying
from ortdeploy.sessions.run_limit import end_runs
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.tolerances import TOLERANCES

_FINE, _COARSE = TOLERANCES["float32"], TOLERANCES["float16"]
"""How much floating results may differ, relative to the largest: of float32 on the CPU, and of anything else."""

_EQUAL_SHARE = 0.9  # of whole numbers, which may flip where a float beside them is close


class FusedSession:
    """Runs the fused graph. The unfused parts are open until rows, and their results, have differed."""

    def __init__(self, session: Session, step: OpenSession, open_parts: Callable[[], Sequence[Session | None]]) -> None:
        """Take the open session; `open_parts` opens the steps before, the model and the steps behind it."""
        if step.fusion is None:
            raise TypeError("a fused session is planned with a fusion")
        self._session, self._fusion, self._model = session, step.fusion, step.model
        self._open_parts: Callable[[], Sequence[Session | None]] | None = open_parts
        self._parts: Sequence[Session | None] | None = None
        self._evidence = Evidence()
        self._called = {name: output for output, name in step.fusion.gives}
        self._coarse = set(session.placement) != {CPU}
        self.placement: Mapping[str, int] = session.placement
        self.cpu_operators: Sequence[str] = session.cpu_operators
        self.cache = session.cache

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        """Run once, by the names of values, mostly [rows, …]. Raises what the session raises, ProviderFailedError."""
        called = {f"${name}": array for name, array in feeds.items()}
        found = self._session.run([self._called.get(name, f"${name}") for name in outputs], called, adapters)
        if self._open_parts is not None:
            self._look(outputs, feeds, found, self._open_parts)
        return found

    def _look(
        self,
        outputs: Sequence[str],
        feeds: Mapping[str, Array],
        found: Sequence[Array],
        open_parts: Callable[[], Sequence[Session | None]],
    ) -> None:
        """Compare a run with the parts side by side, and let go of these once it is proven. Raises as `run`."""
        evidence, values = self._evidence, dict(zip(outputs, found, strict=True))
        evidence.note_block(len(next(iter(feeds.values()), ())), 0.0, feeds, values)
        agree = _COARSE if self._coarse else _FINE
        new = varying(feeds, values, agree, but=evidence.varied)
        if not evidence.is_due(is_new=bool(new)) and not evidence.repeats:
            return
        if self._parts is None:
            self._parts = open_parts()
        expected = _run_parts(self._parts, self._fusion, feeds)
        for name, value in values.items():
            self._compare(name, value, expected[name])
        evidence.agree(len(next(iter(feeds.values()), ())), new, (0.0, 0.0))
        if evidence.is_proven:
            self._parts = self._open_parts = None

    def end_runs(self, *, early: bool) -> None:
        """Ask runs of the fused graph to end early, if they can be asked."""
        end_runs(self._session, early=early)

    def _compare(self, name: str, value: Array, expected: Array) -> None:
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise self._differs(name, f"{value.dtype} {list(value.shape)}, not {expected.dtype} {list(expected.shape)}")
        value, expected = widened(value), widened(expected)
        if not np.issubdtype(expected.dtype, np.floating):
            if value.size and float(np.mean(value == expected)) < _EQUAL_SHARE:
                raise self._differs(name, "other values")
            return
        coarse = self._coarse or expected.dtype == np.float16
        rtol, atol = _COARSE if coarse else _FINE
        allowed = atol + rtol * float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
        if not np.allclose(value, expected, rtol=0, atol=allowed, equal_nan=True):
            raise self._differs(name, f"more than {allowed:.3g} away")

    def _differs(self, name: str, how: str) -> ProviderFailedError:
        return ProviderFailedError(
            f'model "{self._model}" with its op steps fused gives another ${name} than side by side: {how}. '
            "Remove fuse: true"
        )


def _run_parts(parts: Sequence[Session | None], fusion: Fusion, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the values that the parts give, one after the other; `feeds` and values are mostly [rows, …]."""
    before, model, after = parts
    values = dict(feeds)
    _run_graph(before, fusion.before, values)
    if model is not None:
        taken = {port: values[name] for port, name in fusion.takes}
        found = model.run([output for output, _ in fusion.gives], taken, ())
        values.update(zip((name for _, name in fusion.gives), found, strict=True))
    _run_graph(after, fusion.after, values)
    return values


def _run_graph(session: Session | None, graph: OpGraph | None, values: dict[str, Array]) -> None:
    if session is None or graph is None:
        return
    names = [value.name for value in graph.outputs]
    values.update(zip(names, session.run(names, {one.name: values[one.name] for one in graph.inputs}, ()), strict=True))


def with_proof(session: Session, step: OpenSession, candidate: PlannedSession, runtime: Runtime) -> Session:
    """Return a session that proves its fusion; itself where it has none."""
    fusion = step.fusion
    if fusion is None:
        return session

    def open_parts() -> Sequence[Session | None]:
        unfused = replace(step, fusion=None, cache=False)
        model = runtime.open_session(unfused, candidate)
        before, after = (_open_graph(step, graph, runtime) for graph in (fusion.before, fusion.after))
        return before, model, after

    return FusedSession(session, step, open_parts)


def _open_graph(step: OpenSession, graph: OpGraph | None, runtime: Runtime) -> Session | None:
    if graph is None:
        return None
    cpu = PlannedSession(name="cpu", providers=(PlannedProvider(name=CPU, options={}),))
    alone = replace(
        step, fusion=None, graph=graph, path="", files=(), options={}, run_options={}, cache=False, shared_arena=None
    )
    return runtime.open_session(alone, cpu)
