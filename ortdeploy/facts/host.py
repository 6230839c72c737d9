"""Facts about a machine: ONNX Runtime, its providers and devices, processor, memory and packages."""

from collections.abc import Mapping

from msgspec import Struct, field

from ortdeploy.facts.problems import Package
from ortdeploy.facts.variants import OfferedDevice, Traits
from ortdeploy.process.cores import within_quota

DEFAULT_LOCALE = "en_US.UTF-8"
"""The locale of nodes that name none."""

EXTENSION_DOMAINS = ("ai.onnx.contrib", "com.microsoft.extensions")
"""Domains of the operators that onnxruntime-extensions carries; all of them run on the CPU."""


EXTENSIONS = Package(module="onnxruntime_extensions", name="onnxruntime-extensions", extra="extensions")
OPTIMUM = Package(module="optimum", name="optimum-onnx", extra="diffusion")
GENAI = Package(module="onnxruntime_genai", name="onnxruntime-genai", extra="generate")


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """A device that a plugin package's provider offers: CPU, GPU or NPU, numbered within its provider.

    `memory` names the memory that its tensors live in (None: the CPU's), `host_accessible_memory` a part of the CPU's
    memory that the provider allocates and other providers may mistake for their own.
    """

    provider: str
    index: int
    kind: str
    vendor: str
    name: str
    library: str
    memory: str | None = None
    host_accessible_memory: str | None = None


class MachineFacts(Struct, frozen=True, kw_only=True):
    """A machine: what this process may use of it, and the processor features that kernels care about.

    `total_memory_bytes` and `online_cores` are the system's, whatever this process may use of them.
    `sensors` are those that can be read: temperature, battery; None: not known. `gpu_memory_bytes` is that of
    device files, None of this machine, where plans open sessions.
    """

    system: str
    architecture: str
    python: str
    cores: int
    cpu_quota: float | None
    memory_bytes: int | None
    cpu_flags: tuple[str, ...]
    sensors: frozenset[str] | None = None
    total_memory_bytes: int | None = None
    online_cores: int | None = None
    gpu_memory_bytes: int | None = None

    @property
    def usable_cores(self) -> int:
        """How many threads can work at once: the cores of the affinity mask, limited by the quota."""
        return within_quota(self.cores, self.cpu_quota)


class Kernel(Struct, frozen=True, kw_only=True):
    """A kernel of a provider: the operator versions that it implements, and the types that it takes by parameter."""

    first: int
    last: int
    types: Mapping[str, frozenset[str]]


NO_DEVICE = "was loaded and offers no device here"
"""How a plugin's problem is told that has no device on this machine, and that is no fault of anything."""


class RuntimeFacts(Struct, frozen=True, kw_only=True):
    """The ONNX Runtime of this machine, and what it can load at most (None, and no opsets, if that is not known).

    `available_providers` are the built-in ones; `devices` are those of plugin packages that the manifest asks for,
    `plugin_problems` say of a provider why its package gives none, why its built-in library cannot be loaded, or that
    it opens no session there.
    `missing_libraries` are those of a provider that options decide and that are not here.
    `runtime_packages` are the installed packages that carry onnxruntime itself. `kernels` are by provider and by
    `domain.operator`, for the providers that tell them. `attributes` are those that this ONNX Runtime knows of an
    operator, by the version since which it has them; `has_default_locale` is None if that is not known.
    `library` is another text where the library is another; None of a machine that is described.
    """

    version: str
    available_providers: tuple[str, ...]
    max_ir_version: int | None
    max_opsets: Mapping[str, int]
    packages: frozenset[str] = frozenset()
    devices: tuple[DeviceFacts, ...] = ()
    plugin_problems: Mapping[str, str] = field(default_factory=dict)
    missing_libraries: Mapping[str, frozenset[str]] = field(default_factory=dict)
    runtime_packages: tuple[str, ...] = ()
    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    has_default_locale: bool | None = None
    library: str | None = None


class HostFacts(Struct, frozen=True, kw_only=True):
    """What a plan is made for: an ONNX Runtime and its machine; this one, or one that a device file describes.

    `traits` and `offered` are what decides the profile on a device that is described.
    """

    runtime: RuntimeFacts
    machine: MachineFacts | None
    traits: Traits = Traits()
    offered: tuple[OfferedDevice, ...] = ()
