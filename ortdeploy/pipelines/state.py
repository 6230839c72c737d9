"""What a row of a recurrent pipeline hands on to the next, and how the ledger keeps it."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortdeploy.records import record
from ortdeploy.tensors.columns import Array


@record
class State:
    """What a row hands on to the next, and what the rows belong to."""

    values: Mapping[str, Array]
    key: tuple[str, ...] = ()


def pack_state(state: State) -> str:
    """Return a state as text, for the ledger."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"value:{name}": array for name, array in state.values.items()}
    np.savez(file, **arrays, key=np.array(state.key, dtype=str))
    return base64.b64encode(file.getvalue()).decode("ascii")


def unpack_state(text: str) -> State:
    """Return the state of a text that `pack_state` has made. Raises ValueError for another text."""
    try:
        with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
            values = {name.removeprefix("value:"): arrays[name] for name in arrays.files if name != "key"}
            return State(values=values, key=tuple(str(one) for one in arrays["key"]))
    except Exception as error:  # whatever zipfile and numpy trip over
        raise ValueError(f"no state of a row: {error}") from error
