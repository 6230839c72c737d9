"""Writes adapter files with onnxruntime's own writer, and reads them back before they get their name."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import whole_path
from ortdeploy.runtime.library import ort
from ortdeploy.runtime.ort_values import from_array, to_array
from ortdeploy.tensors.columns import Array


def write_adapter(path: Path, arrays: Mapping[str, Array], *, adapter_version: int, model_version: int) -> None:
    """Write parameters into an adapter file that appears whole or not at all. Raises OrtdeployError."""
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    values = {name: from_array(array) for name, array in kept.items()}  # set_parameters keeps neither of them alive
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(adapter_version)
    adapter.set_model_version(model_version)
    adapter.set_parameters(values)
    try:
        with whole_path(path) as temporary:
            adapter.export_adapter(str(temporary))
            _compare(temporary, kept)
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be written: {error.strerror}") from error
    except RuntimeError as error:
        raise OrtdeployError(f"{path} cannot be written: {error}") from error


def _compare(path: Path, arrays: Mapping[str, Array]) -> None:
    """Raise OrtdeployError if the file does not hold what it was given."""
    read = ort.AdapterFormat.read_adapter(str(path)).get_parameters()
    for name, array in arrays.items():
        if name not in read or to_array(read[name]).tobytes() != array.tobytes():
            raise OrtdeployError(f"{path.name} does not hold {name} as it was given")
