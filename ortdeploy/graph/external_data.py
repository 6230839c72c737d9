"""Checks the constants of a graph: where their bytes are, and whether they are as many as the shapes need.

ONNX Runtime says "External initializer: … are out of bounds" for a cut external file, and less for a cut model.
"""

import os
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError

from ortdeploy.files.names import is_file
from ortdeploy.graph.skeleton import constant_size
from ortdeploy.graph.walk import inner_tensors, tensors
from ortdeploy.graph.without_weights import load_without_weights


class TensorProblemError(Exception):
    """A constant whose bytes are in a forbidden place, or fewer than it claims."""


def external_files(folder: Path, model: onnx.ModelProto) -> dict[str, Path]:
    """Return the external files of a model in a folder by location.

    Raises TensorProblemError, also for bytes that are missing.
    """
    files: dict[str, Path] = {}
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            location = entries.get("location", "")
            if location not in files:
                files[location] = file_beside(folder, location, "external data")
            _check_range(tensor, entries, files[location])
        else:
            _check_raw(tensor)
    return files


def external_places(model: Path) -> list[Path]:
    """Return where a model says that its external data is, also if nothing is there; nothing if it cannot be read."""
    found = _loaded(model)
    entries = (entry for one in tensors(found) for entry in one.external_data if entry.key == "location")
    return [model.parent / place for place in dict.fromkeys(entry.value for entry in entries)]


def has_inner_data(model: Path) -> bool:
    """Return whether external data is of more than initializers of the graph; False if the model cannot be read.

    For tensors inside of nodes, ONNX Runtime refuses a file that has two names, or that is a link.
    """
    return any(one.data_location == onnx.TensorProto.EXTERNAL for one in inner_tensors(_loaded(model)))


def _loaded(model: Path) -> onnx.ModelProto:
    try:
        return load_without_weights(model)
    except (OSError, ValueError, DecodeError):
        return onnx.ModelProto()  # not there, or no model, which planning says


def file_beside(folder: Path, location: str, what: str) -> Path:
    """Return a file that belongs to a model and lies in a folder. Raises TensorProblemError if it does not."""
    folder = Path(os.path.realpath(folder))  # unlike Path.resolve, no exception for a link to itself
    file = Path(os.path.realpath(folder / PurePosixPath(location)))
    if not file.is_relative_to(folder):
        raise TensorProblemError(f"its {what} {location} lies outside the model's folder. Put it beside the model.")
    if not is_file(file):
        raise TensorProblemError(
            f"its {what} {location} is missing. Copy it beside the model; for one by URL, write external_data:."
        )
    return file


def _check_range(tensor: onnx.TensorProto, entries: dict[str, str], file: Path) -> None:
    """Compare offset and length with the file, and with what the shape needs."""
    try:
        offset, length = int(entries.get("offset", 0)), int(entries["length"]) if "length" in entries else None
    except ValueError:
        raise TensorProblemError(
            f"the external data of {tensor.name} has an offset or length that is no number."
        ) from None
    needed = constant_size(tensor)
    if offset < 0 or (length is not None and needed is not None and length != needed):
        raise TensorProblemError(
            f"the external data of {tensor.name} says {length} bytes at {offset}, and its shape needs {needed}. "
            "Export the model again."
        )
    size, end = file.stat().st_size, offset + (length or needed or 0)
    if end > size:
        raise TensorProblemError(
            f"the external data of {tensor.name} ends at byte {end:,} of {entries.get('location')}, which has "
            f"{size:,}. It is cut off, or of another model; copy it again."
        )


def _check_raw(tensor: onnx.TensorProto) -> None:
    needed = constant_size(tensor)
    if tensor.HasField("raw_data") and needed is not None and len(tensor.raw_data) != needed:
        raise TensorProblemError(
            f"the constant {tensor.name} has {len(tensor.raw_data):,} bytes and its shape needs {needed:,}. "
            "The file is damaged; copy or export it again."
        )
