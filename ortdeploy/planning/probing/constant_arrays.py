"""Reads the arrays that steps take from files as constants; the plan holds their values."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortdeploy.facts.data import ConstantArray
from ortdeploy.files.decoding import decoding
from ortdeploy.files.numpy_archives import read_npz
from ortdeploy.files.numpy_files import map_npy
from ortdeploy.files.opening import regular_path
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ELEMENT_TYPES

_MOST = 2**20


def read_arrays(path: Path, shown: str) -> Mapping[str, ConstantArray]:
    """Return the arrays of a .npz by name, or the one of a .npy by an empty name. Raises OrtdeployError."""
    if path.suffix == ".npz":
        return {name: _constant(array) for name, array in read_npz(path, shown).items()}
    mapped = map_npy(path, shown)
    if mapped.size > _MOST:
        return {"": _constant(mapped)}  # whose values are not touched
    with decoding(shown, ".npy"):
        return {"": _constant(np.load(regular_path(path), allow_pickle=False))}


def _constant(array: Array) -> ConstantArray:
    """Return an array of any rank as a constant, or why it can be none."""
    dtype = "string" if array.dtype.kind == "U" else array.dtype.name
    if array.size > _MOST:
        problem = f"holds {array.size:,} values, and a constant has {_MOST:,} at most; put it into a model"
    elif dtype not in ELEMENT_TYPES:
        problem = f"holds {dtype}, which is no element type of a tensor"
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        problem = "holds NaN or infinities, which a plan cannot write"
    else:
        return ConstantArray(dtype=dtype, content=array.tolist())
    return ConstantArray(dtype=dtype, problem=problem)
