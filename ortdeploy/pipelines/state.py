"""The state that a row of a recurrent pipeline passes on to the next, and its form in the ledger."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import WIDER


class State(Struct, frozen=True, kw_only=True):
    """What a row passes on to the next row, by name; `key` is the reset key of the rows that it belongs to."""

    values: Mapping[str, Array]
    key: tuple[str, ...] = ()


def pack_state(state: State) -> str:
    """Return a state as text, for the ledger: an .npz archive in base64.

    Its entries name element types, of which numpy's files lose those that numpy does not have, such as bfloat16.
    """
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"{array.dtype.name}:{name}": array for name, array in state.values.items()}
    np.savez(file, **arrays, key=np.array(state.key, dtype=str))
    return base64.b64encode(file.getvalue()).decode("ascii")


def unpack_state(text: str) -> State:
    """Return the state from text that `pack_state` made. Raises ValueError for any other text."""
    try:
        with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
            entries = [(*entry.partition(":"), arrays[entry]) for entry in arrays.files if entry != "key"]
            values = {
                name: array.view(numpy_dtype(kind)) if kind in WIDER else array for kind, _, name, array in entries
            }
            return State(values=values, key=tuple(str(one) for one in arrays["key"]))
    except Exception as error:  # zipfile and numpy raise exceptions of many types over damaged content
        raise ValueError(f"no state of a row: {error}") from error
