"""Returns the kernel definitions of this process's providers, and its operators, as facts.

Source: onnxruntime.capi._pybind_state of 1.31 and 1.32, which has no public names for them. What follows from them is
assumed for versions that are not in `versions.TESTED_WITH`. There are thousands of which a model uses a few, so each is
read when somebody asks for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, TypeVar

from ortdeploy.facts.host import Kernel
from ortdeploy.facts.kernel_text import dump_kernels, parse_kernels
from ortdeploy.process.child import Asked, ask
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.library import binding, ort, preload
from ortdeploy.runtime.native_library import own_library

Value = TypeVar("Value")

_SECONDS = 60
_WITHOUT_KERNELS = frozenset((CPU, "AzureExecutionProvider"))
"""What every wheel has: providers that need no child to tell their kernels."""


class _OnDemand(Mapping[str, Value]):
    """A mapping over things by name, each of which is made of its definitions when it is first asked for."""

    def __init__(self, definitions: Callable[[], Mapping[str, list[Any]]], make: Callable[[list[Any]], Value]) -> None:
        self._get, self._make = definitions, make
        self._made: dict[str, Value] = {}

    @cached_property
    def _definitions(self) -> Mapping[str, list[Any]]:
        return self._get()

    def __getitem__(self, name: str) -> Value:
        if name not in self._made:
            self._made[name] = self._make(self._definitions[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)


class KnownKernels(Mapping[str, Mapping[str, tuple[Kernel, ...]]]):
    """Kernels by provider and by `domain.operator`, of the plugins given and of what this library is built with.

    Those of the CPU are asked for in this process; those of other built-in providers in a child, and only if somebody
    wants them: to tell them, ONNX Runtime makes one of each provider. get_all_opkernel_def of onnxruntime-gpu 1.31
    crashes if the library of one cannot be loaded, as TensorRT's where only CUDA is installed.
    """

    def __init__(self, plugins: Mapping[str, Mapping[str, tuple[Kernel, ...]]]) -> None:
        self._plugins = plugins

    def __getitem__(self, provider: str) -> Mapping[str, tuple[Kernel, ...]]:
        if provider in self._plugins:
            return self._plugins[provider]
        return _own_kernels() if provider == CPU else other_kernels()[provider]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._plugins, CPU: None, **other_kernels()})

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache  # what a library is built with stays as it is
def _own_kernels() -> Mapping[str, tuple[Kernel, ...]]:
    return _by_operator(binding.get_registered_ep_kernel_defs(CPU))


@cache
def other_kernels() -> Mapping[str, Mapping[str, tuple[Kernel, ...]]]:
    """Return the kernels of built-in providers but the CPU's; none if the process that asks for them crashes."""
    if _WITHOUT_KERNELS.issuperset(ort.get_available_providers()):
        return {}
    done = ask(__name__, None, seconds=_SECONDS)
    told = {message["provider"]: parse_kernels(message["kernels"]) for message in done.messages}
    return {provider: kernels for provider, kernels in told.items() if kernels}


def main(asked: Asked) -> None:
    """Be the child: tell the kernels of each built-in provider but the CPU's.

    One with a library of its own is asked as a plugin is, so that another's library that cannot be loaded is no matter.
    """
    preload()
    libraries = {name: own_library(name) for name in ort.get_available_providers()}
    for name, library in libraries.items():
        if library is not None:
            with suppress(Exception):  # it cannot be loaded, or offers no device: every error is its own class
                ort.register_execution_provider_library(name, str(library))
                asked.say(provider=name, kernels=dump_kernels(plugin_kernels(name)))
    if not any(libraries.values()):
        by_provider: dict[str, list[Any]] = {}
        for definition in binding.get_all_opkernel_def():
            by_provider.setdefault(definition.provider, []).append(definition)
        for provider in sorted(by_provider.keys() - {CPU}):
            asked.say(provider=provider, kernels=dump_kernels(_by_operator(by_provider[provider])))


@cache
def known_attributes() -> Mapping[str, Mapping[int, frozenset[str]]]:
    """Return the attributes of ONNX's operators as this runtime knows them, by `domain.operator` and version."""
    return _OnDemand(_own_schemas, lambda schemas: {one.since_version: frozenset(one.attributes) for one in schemas})


def _own_schemas() -> dict[str, list[Any]]:
    known: dict[str, list[Any]] = {}
    for schema in binding.get_all_operator_schema():
        if not schema.domain:
            known.setdefault(f"ai.onnx.{schema.name}", []).append(schema)
    return known


def plugin_kernels(provider: str) -> Mapping[str, tuple[Kernel, ...]]:
    """Return the kernels of a registered plugin provider; none if it compiles, or does not tell without options."""
    try:
        return _by_operator(binding.get_registered_ep_kernel_defs(provider))
    except Exception:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        return {}


def _by_operator(definitions: Iterable[Any]) -> Mapping[str, tuple[Kernel, ...]]:
    named: dict[str, list[Any]] = {}
    for definition in definitions:
        named.setdefault(f"{definition.domain or 'ai.onnx'}.{definition.op_name}", []).append(definition)
    return _OnDemand(lambda: named, _merged)


def _merged(definitions: Iterable[Any]) -> tuple[Kernel, ...]:
    """Merge definitions that differ only in the types of one parameter: the CPU provider has one for each type."""
    merged: dict[tuple[int, int], list[dict[str, frozenset[str]]]] = {}
    for definition in definitions:
        types = {key: frozenset(kinds) for key, kinds in definition.type_constraints.items()}
        known = merged.setdefault(definition.version_range, [])
        same = next((one for one in known if len(types) == 1 and one.keys() == types.keys()), None)
        if same is None:
            known.append(types)
        else:
            same.update({key: same[key] | kinds for key, kinds in types.items()})
    return tuple(
        Kernel(first=first, last=last, types=types) for (first, last), variants in merged.items() for types in variants
    )
