"""Converts adapter matrices with other names, orientations and types into the parameters of a graph."""

from collections.abc import Iterable, Sequence

import numpy as np

from ortdeploy.adapters.training_formats import Weights
from ortdeploy.diagnostics import OrtdeployError, did_you_mean
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.tensors import conversion
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import dimensions_agree, format_shape

_DROPPED = ("base_model.model.",)
"""Beginnings of names that PEFT puts before the layer's own."""

_PAIR = 2


def convert(weights: Weights, model: ModelFacts, renames: Sequence[tuple[str, str]]) -> dict[str, Array]:
    """Return the parameters by the names of a model's inputs. Raises OrtdeployError for what has no place in it.

    Each is a matrix as the graph multiplies it: [features, rank] or [rank, features].
    """
    inputs = {value.name: value for value in model.inputs}
    made: dict[str, Array] = {}
    for name, array in weights.arrays.items():
        value = inputs.get(_place(name, inputs, renames) or "")
        if value is None:
            renamed = _renamed(name, renames)
            hint = did_you_mean(renamed, inputs)
            raise OrtdeployError(
                f"the graph has no input for {name}. Say which with --map {renamed}=INPUT. {hint}".rstrip(".")
            )
        if value.name in made:
            raise OrtdeployError(f"{name} and another matrix both go to the graph's input {value.name}")
        made[value.name] = _fitted(name, _scaled(name, array, weights), value, transposed=weights.transposed)
    return made


def _renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for old, new in renames:
        name = name.replace(old, new)
    return name


def _place(name: str, inputs: Iterable[str], renames: Sequence[tuple[str, str]]) -> str | None:
    """Return the input that a matrix goes to: by its name, or the only one that ends with it, or that it ends with."""
    wanted = _renamed(name, renames)
    if wanted in inputs:
        return wanted
    for beginning in _DROPPED:
        wanted = wanted.removeprefix(beginning)
    if wanted in inputs:
        return wanted
    ending = [known for known in inputs if f".{known}".endswith(f".{wanted}") or f".{wanted}".endswith(f".{known}")]
    return ending[0] if len(ending) == 1 else None


def _scaled(name: str, array: Array, weights: Weights) -> Array:
    """Fold alpha / rank into the second matrix of a pair, because ONNX Runtime has no scale of its own.

    That matrix is [rank, features], or [features, rank] if the weights are transposed.
    """
    layer, found, _ = name.partition(".lora_B")
    if not found or array.ndim != _PAIR:
        return array
    rank = array.shape[1] if weights.transposed else array.shape[0]
    factor = weights.scaling.factor(layer, rank)
    return array if factor == 1 else conversion.convert(array, "float64") * factor


def _fitted(name: str, array: Array, value: ValueFacts, *, transposed: bool) -> Array:
    """Return a matrix [n, m] in the orientation and type that the graph wants: [m, n] if it is `transposed`."""
    turned = np.ascontiguousarray(array.T if transposed else array)
    shape, dtype = value.tensor.shape, value.tensor.dtype
    if shape is not None and not (len(shape) == turned.ndim and all(map(dimensions_agree, turned.shape, shape))):
        raise OrtdeployError(
            f"{name} is {format_shape(turned.shape)} the way that a graph multiplies it, and {value.name} takes "
            f"{format_shape(shape)}"
        )
    if dtype is None or dtype == turned.dtype.name:
        return turned
    try:
        return conversion.convert(turned, dtype)
    except ValueError as error:
        raise OrtdeployError(f"{name} does not fit {value.name}: {error}") from error
