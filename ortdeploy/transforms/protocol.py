"""What a prepare or postprocess step is.

A step is a module with a contract, one function and no state. Arrays carry the rows in their first dimension, so a
step on a whole batch is one numpy call. `options` is the step as written in the manifest, already checked by the
schema.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import Contract, ContractError
from ortdeploy.tensors.types import InapplicableError, TensorType

Options = Mapping[str, Any]
Apply = Callable[[Array], tuple[Array, ...]]
"""Rows in, rows out; as many arrays as `infer` returned types."""


class Transform(Protocol):
    """The names that a step's module has."""

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  a module constant
        """What the step takes, gives and is set with; its one input is called x."""

    def build(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that does it, for tensors of this type; every setting is there."""


@dataclass(frozen=True, slots=True)
class HeldTransform:
    """A step whose contract is kept: before a run by `infer`, and by the function that `build` returns."""

    module: Transform

    @property
    def contract(self) -> Contract:
        """What the step takes, gives and is set with."""
        return self.module.CONTRACT

    def infer(self, options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
        """Return what comes out, as far as it can be known. Raises InapplicableError."""
        try:
            return self.contract.infer(options, {"x": tensor})
        except ContractError as error:
            raise InapplicableError(str(error)) from error

    def build(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that does it; it raises ValueError for rows that do not keep the contract."""
        apply = self.bare(options, tensor)
        check = ContractCheck(self.contract, options, {"x": tensor})

        def held(array: Array) -> tuple[Array, ...]:
            check({"x": array})
            return apply(array)

        return held

    def bare(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that does it and checks nothing."""
        return self.module.build(self.contract.filled(options), tensor)


def image_axes(tensor: TensorType) -> tuple[int, int, int]:
    """Return the axes of height, width and channels; without a declared layout, rows are taken as NHWC."""
    if tensor.shape is not None and len(tensor.shape) != 4:  # noqa: PLR2004  rows, channels, height, width
        raise InapplicableError(f"it works on images of rank 4 and gets {tensor}")
    return (2, 3, 1) if tensor.layout == "NCHW" else (1, 2, 3)


def as_floating(array: Array) -> Array:
    """Integers and booleans become float32, the type that models compute in; floating types stay."""
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float32)
