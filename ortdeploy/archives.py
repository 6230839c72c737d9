"""Reads NumPy's files. numpy and zipfile raise whatever a broken one makes them trip over; here it is one error."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortdeploy.diagnostics import OrtdeployError

_MAGIC = b"\x93NUMPY"


def read_npz(path: Path | str, shown: str | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a .npz by name. Raises OrtdeployError that names the file, as `shown` if that is given."""
    name = shown or str(path)
    try:
        with Path(path).open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            found = {key: archive[key] for key in archive.files} if isinstance(archive, np.lib.npyio.NpzFile) else None
    except OSError as error:
        raise OrtdeployError(f"{name} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise OrtdeployError(f"{name} cannot be read as .npz: {error}") from error
    if found is None:
        raise OrtdeployError(f"{name} is not a .npz archive")
    return found


def map_npy(path: Path | str, shown: str | None = None) -> npt.NDArray[Any]:
    """Map the array of a .npy. Raises OrtdeployError that names the file, as `shown` if that is given."""
    name = shown or str(path)
    try:
        with Path(path).open("rb") as file:
            magic = file.read(len(_MAGIC))
        array = np.load(path, mmap_mode="r", allow_pickle=False) if magic == _MAGIC else None
    except OSError as error:
        raise OrtdeployError(f"{name} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise OrtdeployError(f"{name} cannot be read as .npy: {error}") from error
    if array is None:
        raise OrtdeployError(f"{name} is not a .npy file")
    return np.asanyarray(array)
