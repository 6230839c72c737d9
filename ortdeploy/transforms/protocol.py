"""What a prepare or postprocess step is.

A step is a module with a contract, one function and no state. If it takes more memory for a while than its result, a
second function called `scratch` says how much. Arrays are [rows, …], so a step needs one numpy call for
a whole batch. `options` is the step as the manifest has it, already checked against the schema.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import Contract, ContractError, Types
from ortdeploy.tensors.conversion import convert, is_whole, whole_limits
from ortdeploy.tensors.types import FLOATING, InapplicableError, TensorType

Options = Mapping[str, Any]
Apply = Callable[[Array], tuple[Array, ...]]
"""Takes an array [rows, …] and returns one array [rows, …] for each type that `infer` returned."""


class Transform(Protocol):
    """The names that a step's module has."""

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  a module constant
        """The inputs, outputs and settings of the step; its single input is called x."""

    def build(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function for arrays [rows, …] of this type. `options` has all settings, defaults too."""


class HeldTransform(Struct, frozen=True):
    """A step with checks of its contract: `infer` checks types before a run, and the built function checks arrays."""

    module: Transform

    @property
    def contract(self) -> Contract:
        """The inputs, outputs and settings of the step."""
        return self.module.CONTRACT

    def infer(self, options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
        """Return the types of the results; unknown sizes stay open. Raises InapplicableError."""
        return inferred(self.contract, options, {"x": tensor})

    def build(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that computes the results; it raises ValueError for rows that break the contract."""
        apply = self.bare(options, tensor)
        check = ContractCheck(self.contract, options, {"x": tensor})

        def held(array: Array) -> tuple[Array, ...]:
            check({"x": array})
            return apply(array)

        return held

    def scratch(self, options: Options) -> Callable[[Array], int] | None:
        """Return what says of a row […] how many bytes the step takes for a while, beside it and its result."""
        of_step: Callable[[Options, Array], int] | None = getattr(self.module, "scratch", None)
        return None if of_step is None else partial(of_step, self.contract.filled(options))

    def bare(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that computes the results, without checks of the contract."""
        return self.module.build(self.contract.filled(options), tensor)


def inferred(contract: Contract, options: Options, types: Types) -> tuple[TensorType, ...]:
    """Return the types of what a contract gives; unknown sizes stay open. Raises InapplicableError."""
    try:
        return contract.infer(options, types)
    except ContractError as error:
        raise InapplicableError(str(error)) from error


def image_axes(tensor: TensorType) -> tuple[int, int, int]:
    """Return the axes of height, width and channels; images without a declared layout are NHWC."""
    if tensor.shape is not None and len(tensor.shape) != 4:  # noqa: PLR2004  rows, channels, height, width
        raise InapplicableError(f"it works on images of rank 4 and gets {tensor}")
    return (2, 3, 1) if tensor.layout == "NCHW" else (1, 2, 3)


_OF_FEW_BITS = 2
"""Bytes of a number up to which float32 holds all whole ones."""


def result_type(array: Array) -> str:
    """Return the floating element type of what a step computes of an array […]: its own, or float32 for others."""
    return array.dtype.name if array.dtype.name in FLOATING else "float32"


def computing_type(array: Array) -> "np.dtype[Any]":
    """Return the type in which a step computes on an array […]: float32, or float64 for what float32 does not keep.

    A sum of float16 ends at 65,504, and loses what it adds from 2,048 on; differences of long whole numbers stay what
    they were. numpy converts piece by piece on the way, if it is told the type; a converted copy of large pictures
    takes longer to make than the step itself.
    """
    is_long = array.dtype.kind in "iu" and array.dtype.itemsize > _OF_FEW_BITS
    return np.dtype(np.float64 if is_long or array.dtype == np.float64 else np.float32)


def computable(array: Array) -> Array:
    """Return an array […] in the type in which sums, norms and exponentials are computed."""
    return convert(array, computing_type(array).name)


def rounded(made: Array, like: Array) -> Array:
    """Return computed numbers […] in the element type of what they were computed of, whole ones within its limits."""
    name = like.dtype.name
    if not is_whole(name):
        return convert(np.rint(made) if name == "bool" else made, name)
    least, most = whole_limits(name)
    upper = made.dtype.type(most)
    if int(upper) > most:  # the type has no number between
        upper = np.nextafter(upper, made.dtype.type(0))
    return convert(np.rint(made).clip(least, upper), name)
