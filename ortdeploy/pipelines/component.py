"""The open sessions of a pipeline's models, and the form in which a job runs every pipeline: as one session."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.evidence import DisagreementError, Evidence
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.run_limit import end_runs
from ortdeploy.sessions.runs import prove_effect
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import is_narrow, widened


class Component:
    """An open session of one of a pipeline's models. It does one run at a time, because several pipelines share it."""

    def __init__(self, model: str, opened: OpenedSession) -> None:
        """Take the session, and with it the CPU reference that its first run is compared with."""
        self.model = model
        self.opened = opened
        self.failed = False
        self._probe = opened.probe
        self._effective: set[tuple[str, ...]] = set()
        self._turn = threading.Lock()

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> list[Any]:
        """Run once, with the graph's axes, mostly [rows, …]; element types that numpy lacks are widened.

        Raises OrtdeployError or ProviderFailedError, with the model's name.
        """
        try:
            with self._turn:
                if self._probe is None and not adapters:
                    values = self.opened.session.run(outputs, feeds, adapters)
                else:
                    values = self._run_and_compare(outputs, feeds, tuple(adapters))
        except ProviderFailedError as error:
            self.failed = True
            raise ProviderFailedError(f"{self.model}: {error}") from error
        except DisagreementError as error:
            raise DisagreementError(f"{self.model}: {error}", error.since, error.kind) from error
        except OrtdeployError as error:
            raise type(error)(f"{self.model}: {error}") from error
        for value in values:
            if type(value) is np.ndarray and is_narrow(value):
                return [widened(one) if type(one) is np.ndarray else one for one in values]
        return list(values)

    def _run_and_compare(
        self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: tuple[str, ...]
    ) -> Sequence[Any]:
        """Run with a CPU reference or with adapters, and prove that provider and adapters do what they should."""
        began = time.perf_counter()
        values = self.opened.session.run(outputs, feeds, adapters)
        if adapters and adapters not in self._effective:
            self._effective.add(adapters)
            prove_effect(self.opened.session, outputs, feeds, adapters)
        if self._probe is not None and self._probe.session is not None:
            seconds = time.perf_counter() - began
            self._probe.look(outputs, feeds, values, self._run_on_cpu, adapters, number=_unknown, seconds=seconds)
        return values

    def _run_on_cpu(
        self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: tuple[str, ...]
    ) -> Sequence[Any]:
        if self._probe is None or self._probe.session is None:
            raise AssertionError("nothing is compared without a session")
        return self._probe.session.run(outputs, feeds, adapters)

    @property
    def evidence(self) -> Evidence | None:
        """On what it is proven that the provider computes what the CPU does; None if that is not compared."""
        return None if self._probe is None else self._probe.evidence

    def finish(self) -> None:
        """Compare the last run with the CPU's. Raises as `run`."""
        if self._probe is not None:
            with self._turn:
                self._probe.finish(self._run_on_cpu)


def _unknown(_place: int) -> int:
    """Return the first row: a model of a pipeline does not know which rows it runs."""
    return 0


class ComposedSession:
    """Several open sessions that look like one; a pipeline says how rows go through them."""

    def __init__(self, components: Mapping[str, Component]) -> None:
        self.components = components
        sessions = [component.opened.session for component in components.values()]
        counts: Counter[str] = Counter()
        for session in sessions:
            counts.update(session.placement)
        self.placement: Mapping[str, int] = dict(counts)
        self.cpu_operators: Sequence[str] = sorted({name for session in sessions for name in session.cpu_operators})
        self.cache: str | None = None

    def begin(self, key: tuple[str, ...]) -> None:
        """Set the reset key of the next rows. State that was kept under another key is dropped."""

    @property
    def evidence(self) -> Sequence[Evidence]:
        """On what each model's comparison with the CPU is proven."""
        return [one.evidence for one in self.components.values() if one.evidence is not None]

    def finish(self) -> None:
        """Compare the last run of each model with the CPU's. Raises as `Component.run`."""
        for component in self.components.values():
            component.finish()

    def end_runs(self, *, early: bool) -> None:
        """Ask the current run to end, whichever model is running."""
        for component in self.components.values():
            opened = component.opened
            end_runs(opened.session, early=early)
            if opened.probe is not None:
                end_runs(opened.probe.session, early=early)

    def undo(self) -> None:
        """Restore the state from before the last run, whose rows are run again."""

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Run rows, and return the named outputs, [rows, …] each. Raises OrtdeployError."""
        raise NotImplementedError


def components_of(session: Session) -> tuple[Component, ...]:
    """Return the components of a pipeline's session; none for a session of a single model."""
    return tuple(session.components.values()) if isinstance(session, ComposedSession) else ()
