"""A session that can be let go of while others still know it, so that its memory is free for the rest of a job."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.opening import OpenedModel
from ortdeploy.sessions.run_limit import end_runs
from ortdeploy.tensors.columns import Array


class ReleasableSession:
    """Passes runs on to a session until it is released. What the report says of the session stays."""

    def __init__(self, session: Session) -> None:
        """Take an open session, with its adapters."""
        self._session: Session | None = session
        self.placement = session.placement
        self.cpu_operators = session.cpu_operators
        self.cache = session.cache

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        """Run once, with the graph's axes. Raises what the session raises, and OrtdeployError once it is released."""
        session = self._session
        if session is None:
            raise OrtdeployError("the session was released, for another thread layout is faster")
        return session.run(outputs, feeds, adapters)

    def end_runs(self, *, early: bool) -> None:
        """Ask the session's runs to end early, if it can be asked."""
        if self._session is not None:
            end_runs(self._session, early=early)

    def release(self) -> None:
        """Close the session as soon as nobody runs it any more."""
        self._session = None

    @property
    def held(self) -> Session:
        """The session itself; of a released one, what remembers it."""
        return self._session or self


def releasable(opened: OpenedModel) -> OpenedModel:
    """Return open sessions that can be let go of; callers of one session share it."""
    held = {id(one.session): ReleasableSession(one.session) for one in opened.sessions}
    return replace(opened, sessions=tuple(replace(one, session=held[id(one.session)]) for one in opened.sessions))


def held(opened: OpenedModel) -> OpenedModel:
    """Return the sessions themselves, for a job that tries nothing."""
    sessions = (
        replace(one, session=one.session.held) if isinstance(one.session, ReleasableSession) else one
        for one in opened.sessions
    )
    return replace(opened, sessions=tuple(sessions))
