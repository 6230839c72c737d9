"""The kernel definitions of the providers that this process has, and its operators, as facts.

Source: onnxruntime.capi._pybind_state of 1.31 and 1.32, which has no public names for them. What follows from them is
assumed for versions that are not in `versions.TESTED_WITH`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from onnxruntime.capi import _pybind_state

from ortdeploy.facts.host import Kernel


@cache  # what a library is built with stays as it is, and asking takes longer than the rest of a plan
def built_in_kernels() -> dict[str, dict[str, tuple[Kernel, ...]]]:
    """Return kernels by provider and by `domain.operator`."""
    by_provider: dict[str, list[Any]] = {}
    for definition in _pybind_state.get_all_opkernel_def():
        by_provider.setdefault(definition.provider, []).append(definition)
    return {provider: _by_operator(definitions) for provider, definitions in by_provider.items()}


@cache
def known_attributes() -> dict[str, dict[int, frozenset[str]]]:
    """Return the attributes of ONNX's operators as this runtime knows them, by `domain.operator` and version."""
    known: dict[str, dict[int, frozenset[str]]] = {}
    for schema in _pybind_state.get_all_operator_schema():
        if not schema.domain:
            known.setdefault(f"ai.onnx.{schema.name}", {})[schema.since_version] = frozenset(schema.attributes)
    return known


def plugin_kernels(provider: str) -> dict[str, tuple[Kernel, ...]]:
    """Return the kernels of a registered plugin provider; none where it compiles, or does not tell without options."""
    try:
        return _by_operator(_pybind_state.get_registered_ep_kernel_defs(provider))
    except Exception:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        return {}


def _by_operator(definitions: Iterable[Any]) -> dict[str, tuple[Kernel, ...]]:
    """Merge definitions that differ in the types of one parameter only: the CPU provider has one for each type."""
    merged: dict[tuple[str, int, int], list[dict[str, frozenset[str]]]] = {}
    for definition in definitions:
        first, last = definition.version_range
        types = {key: frozenset(kinds) for key, kinds in definition.type_constraints.items()}
        known = merged.setdefault((f"{definition.domain or 'ai.onnx'}.{definition.op_name}", first, last), [])
        same = next((one for one in known if len(types) == 1 and one.keys() == types.keys()), None)
        if same is None:
            known.append(types)
        else:
            same.update({key: same[key] | kinds for key, kinds in types.items()})
    kernels: dict[str, tuple[Kernel, ...]] = {}
    for (operator, first, last), variants in merged.items():
        made = tuple(Kernel(first=first, last=last, types=types) for types in variants)
        kernels[operator] = (*kernels.get(operator, ()), *made)
    return kernels
