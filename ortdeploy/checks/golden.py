"""Reads and writes golden inputs and outputs, and compares results with them. `files/golden_sets` has the layouts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.files.golden_sets import INPUTS, OUTPUTS
from ortdeploy.files.names import is_file
from ortdeploy.files.numpy_archives import read_npz, write_npz
from ortdeploy.files.onnx_data import KINDS
from ortdeploy.files.opening import read_whole
from ortdeploy.files.walk import held_file, held_folder
from ortdeploy.plan.steps import GoldenValue

_ADDED = 2  # numpy's mark of a type that another package adds


class GoldenSet(Struct, frozen=True, kw_only=True):
    """What a model is fed, and what it must answer, by name; a sequence is a list."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


@contextmanager
def in_folder(folder: Path, roots: Sequence[str]) -> Iterator[Path]:
    """Yield a path to a folder of golden data that stays this folder. Raises OrtdeployError if it leaves the roots."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(held_folder(folder, roots))
        except OSError as error:
            raise OrtdeployError(f"{folder.name} cannot be opened: {error.strerror}") from error
        yield held


def read_set(
    folder: Path, inputs: Sequence[GoldenValue], outputs: Sequence[GoldenValue], roots: Sequence[str]
) -> GoldenSet:
    """Read one data set. Raises OrtdeployError if a file of it cannot be read, or leads out of the roots."""
    with in_folder(folder, roots) as held:
        if is_file(held / INPUTS):
            answers = _read_npz(folder / OUTPUTS, roots) if is_file(held / OUTPUTS) else {}
            return GoldenSet(inputs=_read_npz(folder / INPUTS, roots), outputs=answers)
        files, answered = (sorted(held.glob(f"{one}_*.pb"), key=_number) for one in ("input", "output"))
    required = [value for value in inputs if not value.optional]
    names = required if len(files) <= len(required) else inputs
    inside, given = ([folder / path.name for path in paths] for paths in (files, answered))
    return GoldenSet(
        inputs={value.name: _read_pb(path, value, roots) for path, value in zip(inside, names, strict=False)},
        outputs={value.name: _read_pb(path, value, roots) for path, value in zip(given, outputs, strict=False)},
    )


def write_outputs(
    folder: Path, outputs: Mapping[str, Any], values: Sequence[GoldenValue], roots: Sequence[str]
) -> None:
    """Write what a model answers beside its inputs, in their layout. Raises OrtdeployError."""
    try:
        with in_folder(folder, roots) as held:
            if is_file(held / INPUTS):
                arrays = {name: _storable(name, value) for name, value in outputs.items()}
                with open_whole(held / OUTPUTS) as file:
                    write_npz(file, arrays)
                return
            for index, value in enumerate(values):
                with open_whole(held / f"output_{index}.pb") as file:
                    file.write(_pb(value, outputs[value.name]))
    except OSError as error:
        raise OrtdeployError(f"the outputs cannot be written: {error.strerror}") from error


def _storable(name: str, value: Any) -> npt.NDArray[Any]:
    """Return an output as a .npz can hold it. Raises OrtdeployError."""
    kind = {type(None): "absent", list: "a sequence", dict: "a map"}.get(type(value))
    if kind is None:
        array = np.asarray(value)
        stored = array.astype(str) if array.dtype == object else array
        is_kept = stored is array or (stored == array).all()  # text loses zeros at its end
        if is_kept and array.dtype.isbuiltin != _ADDED:
            return stored
        kind = "text that ends in U+0000" if array.dtype == object else f"{array.dtype}"
    raise OrtdeployError(
        f"output {name} is {kind}, which {OUTPUTS} cannot hold. Give the inputs as input_0.pb, input_1.pb, …; then the "
        "outputs are written like these"
    )


def _pb(value: GoldenValue, content: Any) -> bytes:
    _, _, write = KINDS[value.kind]
    return bytes(write(content, value.name).SerializeToString())


def _number(path: Path) -> int:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


def _read_npz(path: Path, roots: Sequence[str]) -> dict[str, Any]:
    try:
        with held_file(path, roots) as held:
            return {name: _feedable(array) for name, array in read_npz(held, path.name).items()}
    except OSError as error:
        raise OrtdeployError(f"{path.name} cannot be read: {error.strerror}") from error


def _read_pb(path: Path, value: GoldenValue, roots: Sequence[str]) -> Any:
    """Read a value of the kind that the graph has there."""
    if value.kind not in KINDS:
        raise OrtdeployError(f"{path.name} belongs to {value.name}, and {value.kind} values cannot be compared")
    kind, read, _ = KINDS[value.kind]
    try:
        with held_file(path, roots) as held:
            return _feedable(read(kind.FromString(read_whole(held))))
    except OSError as error:
        raise OrtdeployError(f"{path.name} cannot be read: {error.strerror}") from error
    except Exception as error:
        if is_a_bug(error):
            raise
        raise OrtdeployError(f"{path.name} is not a {value.kind} of onnx: {reason_of(error)}") from error


def _feedable(value: Any) -> Any:
    """Give text the element type that ONNX Runtime takes, also in sequences and maps."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, list):
        return [_feedable(item) for item in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def difference(value: Any, expected: Any, rtol: float, atol: float) -> tuple[float | None, str | None]:
    """Return the largest absolute difference of numbers, and what is wrong with a value, if anything is."""
    if expected is None or value is None:
        return None, None if value is expected else "it is absent, or should be"
    if isinstance(expected, dict):
        if not isinstance(value, dict) or value.keys() != expected.keys():
            return None, f"it is not a map of {len(expected)} keys"
        value, expected = [value[key] for key in expected], list(expected.values())
    if isinstance(expected, list):
        return _sequence_difference(value, expected, rtol, atol)
    have, want = np.asarray(value), np.asarray(expected)
    if have.shape != want.shape or have.dtype != want.dtype:
        return None, f"it is {have.dtype} {list(have.shape)} instead of {want.dtype} {list(want.shape)}"
    if want.dtype.isbuiltin == _ADDED:  # a floating type of ml_dtypes, which numpy does not know as one
        have, want = have.astype(np.float32), want.astype(np.float32)
    if not np.issubdtype(want.dtype, np.inexact):
        wrong = int(np.count_nonzero(have != want))
        return None, f"{wrong} of {want.size} values differ" if wrong else None
    return _number_difference(have, want, rtol, atol)


def _number_difference(have: Any, want: Any, rtol: float, atol: float) -> tuple[float | None, str | None]:
    finite = np.isfinite(want)
    if not np.array_equal(have[~finite], want[~finite], equal_nan=True):
        return None, "infinities or NaN are in other places"
    wide = np.complex128 if np.issubdtype(want.dtype, np.complexfloating) else np.float64
    apart = np.abs(have[finite].astype(wide) - want[finite].astype(wide))
    largest = float(apart.max(initial=0))
    wrong = int(np.count_nonzero(~(apart <= atol + rtol * np.abs(want[finite].astype(wide)))))
    return largest, f"{wrong} of {want.size} values differ by up to {largest:.3g}" if wrong else None


def _sequence_difference(value: Any, expected: list[Any], rtol: float, atol: float) -> tuple[float | None, str | None]:
    if not isinstance(value, list) or len(value) != len(expected):
        return None, f"it is not a sequence of {len(expected)}"
    found = [difference(*pair, rtol, atol) for pair in zip(value, expected, strict=True)]
    largest = max((apart for apart, _ in found if apart is not None), default=None)
    return largest, next((message for _, message in found if message), None)
