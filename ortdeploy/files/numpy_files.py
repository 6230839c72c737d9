"""Reads NumPy's files. numpy and zipfile raise whatever a broken one makes them trip over; here it is one error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortdeploy.diagnostics import OrtdeployError

_MAGIC = b"\x93NUMPY"


@contextmanager
def _read(name: str, kind: str) -> Iterator[None]:
    """Make one error of all that reading raises."""
    try:
        yield
    except OrtdeployError:
        raise
    except OSError as error:
        raise OrtdeployError(f"{name} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise OrtdeployError(f"{name} cannot be read as {kind}: {error}") from error


def read_npz(path: Path | str, shown: str | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a .npz by name. Raises OrtdeployError that names the file, as `shown` if that is given."""
    name = shown or str(path)
    with _read(name, ".npz"), Path(path).open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise OrtdeployError(f"{name} is not a .npz archive")
        return {key: archive[key] for key in archive.files}


def map_npy(path: Path | str, shown: str | None = None) -> npt.NDArray[Any]:
    """Map the array of a .npy. Raises OrtdeployError that names the file, as `shown` if that is given."""
    name = shown or str(path)
    with _read(name, ".npy"):
        with Path(path).open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise OrtdeployError(f"{name} is not a .npy file")
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
