"""Protocol of a runtime: what the executor needs. Tests use a fake one."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ortdeploy.plan.steps import LoadAdapter, OpenSession, PlannedSession
from ortdeploy.tensors.columns import Array


class Session(Protocol):
    """An open session; it holds the adapters that were loaded for it."""

    @property
    def placement(self) -> Mapping[str, int]:
        """Number of nodes by the provider that ONNX Runtime recorded for them."""

    @property
    def cpu_operators(self) -> Sequence[str]:
        """Operator types of the nodes that are on the CPU provider."""

    @property
    def cache(self) -> str | None:
        """What happened with the model's cache, in words; None if the plan asks for none."""

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        """Run once with these adapters active, and return the named outputs, in their order.

        `feeds` by input name and outputs have the axes and types of the graph: mostly [rows, …], but rows may be at
        another axis, as in [time, rows, features], or nowhere. Raises OrtdeployError if ONNX Runtime refuses,
        ProviderFailedError if an execution provider failed.
        """


@runtime_checkable
class AdapterFiles(Protocol):
    """A session that reads adapter files itself."""

    def load_adapter_file(self, name: str, path: str) -> None:
        """Load an adapter. Raises OrtdeployError."""


@runtime_checkable
class Writer(Protocol):
    """A session that writes texts."""

    @property
    def written(self) -> Mapping[str, int]:
        """Tokens that it wrote (tokens) and read (input_tokens), and its texts by why they ended."""

    @property
    def progressed(self) -> float:
        """Time of its last token, by perf_counter; 0 before the first."""


class Runtime(Protocol):
    """Opens sessions and loads adapters."""

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        """Open one of the step's candidates. Raises OrtdeployError."""

    def load_adapter(self, step: LoadAdapter, session: Session) -> None:
        """Load an adapter file for a session. Raises OrtdeployError."""
