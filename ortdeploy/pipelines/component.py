"""The open sessions of a pipeline's models, and the form in which a job runs every pipeline: as one session."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.runs import prove_effect
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import is_narrow, widened


class Component:
    """An open session of one of a pipeline's models. One run at a time: several pipelines share it."""

    def __init__(self, model: str, opened: OpenedSession) -> None:
        """Take the session, and what its first run is compared with."""
        self.model = model
        self.opened = opened
        self.failed = False
        self._probe = opened.probe
        self._effective: set[tuple[str, ...]] = set()
        self._turn = threading.Lock()

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Run once. Raises OrtdeployError that names the model, ProviderFailedError."""
        try:
            with self._turn:
                values = self._run(outputs, feeds, adapters)
        except ProviderFailedError as error:
            self.failed = True
            raise ProviderFailedError(f"{self.model}: {error}") from error
        except OrtdeployError as error:
            raise type(error)(f"{self.model}: {error}") from error
        return [widened(value) if type(value) is np.ndarray and is_narrow(value) else value for value in values]

    def _run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        values = self.opened.session.run(outputs, feeds, adapters)
        if adapters and tuple(adapters) not in self._effective:
            self._effective.add(tuple(adapters))
            prove_effect(self.opened.session, outputs, feeds, adapters)
        if self._probe is not None and self._probe.session is not None:
            self._probe.compare(outputs, values, self._probe.session.run(outputs, feeds, adapters))
            self._probe.take()
        self._probe = None
        return values


class ComposedSession:
    """Several open sessions that look like one; a pipeline says how rows go through them."""

    def __init__(self, components: Mapping[str, Component]) -> None:
        """Take the sessions by model."""
        self.components = components
        sessions = [component.opened.session for component in components.values()]
        counts: Counter[str] = Counter()
        for session in sessions:
            counts.update(session.placement)
        self.placement: Mapping[str, int] = dict(counts)
        self.cpu_operators: Sequence[str] = sorted({name for session in sessions for name in session.cpu_operators})
        self.cache: str | None = None

    def begin(self, key: tuple[str, ...]) -> None:
        """Take note of what the next rows belong to: state that belongs to something else is dropped."""

    def undo(self) -> None:
        """Take the state back to before the last run: its rows are run again."""

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Take rows through and return the named outputs, each with the rows first. Raises OrtdeployError."""
        raise NotImplementedError
