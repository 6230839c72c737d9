"""`ortdeploy init MODEL.onnx`: a manifest with the model's contract, its digest and a job over sample rows.

The sample lies beside the manifest, so that what is written validates, plans and applies as it stands.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

from ortdeploy.cli.commands.shared import named_model
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError, has_errors
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.names import is_there
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.tensors.types import FLOATING, WIDER, Shape, TensorType, format_shape
from ortdeploy.views import text

_SAMPLE_ROWS = 4
_BATCH = 32
_IMAGE_SIDE = 224
_IMAGE_RANK = 4
_LARGEST_SAMPLE = 64 * 1024 * 1024  # elements of one input


def run(arguments: argparse.Namespace) -> int:
    """Write manifest and sample, and say what in them needs attention."""
    model = Path(arguments.model)
    facts = named_model(arguments.model)
    manifest = Path(arguments.output) if arguments.output else _default_place(model)
    sample = manifest.with_name(f"{manifest.stem}-sample.npz")
    for path in (manifest, sample):
        if is_there(path):
            raise OrtdeployError(f"{path} is there already and is not overwritten; choose another name with -o")
    batch = _batch(facts)
    contract = _render(model, manifest, sample, facts, batch)
    try:
        manifest.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(sample) as file:
            np.savez(file, allow_pickle=False, **_sample_rows(facts, batch))
        with open_whole(manifest) as file:
            file.write(contract.encode())
    except OSError as error:
        raise OrtdeployError(f"{error.filename or manifest} cannot be written: {error.strerror}") from error
    sys.stdout.write(f"Wrote {manifest} and {sample}.\nNext: ortdeploy plan {manifest}\n")
    found = plan_manifests([str(manifest)], LoadOptions(), state_dir=None).diagnostics
    sys.stdout.write(text.render_diagnostics(found, color=False))
    return EXIT_REJECTED if has_errors(found) else EXIT_OK


def _default_place(model: Path) -> Path:
    """Return a place from which the model lies inside the tree: here, or else beside the model."""
    here = Path.cwd()
    folder = Path() if model.resolve().is_relative_to(here) else model.parent
    return folder / f"{model.stem}.yaml"


def _batch(facts: ModelFacts) -> int | None:
    """Return the batch size: 32 for a free first dimension, 1 for a fixed 1, None when rows have no dimension."""
    shapes = [value.tensor.shape for value in facts.inputs if not value.optional]
    outputs = [value.tensor.shape for value in facts.outputs if value.kind == "tensor"]
    firsts = {shape[0] if isinstance(shape[0], int) else "free" for shape in shapes if shape}
    if len(firsts) != 1 or not all(shapes):
        return None
    first = firsts.pop()
    if any(shape == () or (shape and not _holds_rows(shape[0], first)) for shape in outputs):
        return None
    return _BATCH if first == "free" else 1 if first == 1 else None


def _holds_rows(size: int | str | None, first: int | str) -> bool:
    """Tell whether an output's first dimension may be that of the inputs' rows: as free, or fixed to the same."""
    return size == first if isinstance(first, int) else not isinstance(size, int)


def _sample_rows(facts: ModelFacts, batch: int | None) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {value.name: _sample(value.tensor, batch, random) for value in facts.inputs if not value.optional}


def _sample(tensor: TensorType, batch: int | None, random: np.random.Generator) -> np.ndarray:
    """Make rows: random numbers between 0 and 1 for floating types, zeros or empty text for others."""
    shape = tensor.shape or ()
    row = [_size(size, axis, shape) for axis, size in enumerate(shape)]
    sizes = (_SAMPLE_ROWS, *(row[1:] if batch else row))
    if tensor.dtype == "string":
        return np.full(sizes, "", dtype=str)
    if math.prod(sizes) > _LARGEST_SAMPLE:
        shown = format_shape(sizes)
        raise OrtdeployError(f"sample rows of {shown} would be too large to make; write the manifest by hand")
    dtype = WIDER.get(tensor.dtype, tensor.dtype) if tensor.dtype else "float32"
    return random.random(sizes).astype(dtype) if dtype in FLOATING else np.zeros(sizes, dtype=dtype)


def _size(size: int | str | None, axis: int, shape: Shape) -> int:
    """Choose a size for a free dimension: 224 for the height and width of what looks like an image, else 1."""
    if isinstance(size, int):
        return size
    return _IMAGE_SIDE if len(shape) == _IMAGE_RANK and axis >= 2 else 1  # noqa: PLR2004  after rows and channels


def _render(model: Path, manifest: Path, sample: Path, facts: ModelFacts, batch: int | None) -> str:
    folder = manifest.absolute().parent
    try:
        path = model.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError as error:
        raise OrtdeployError(
            f"{model} must lie below the manifest's folder {folder}; choose another place with -o"
        ) from error
    name = scalar(model.stem)
    outputs = [value for value in facts.outputs if value.kind == "tensor" and value.tensor.dtype]
    written = [
        value for value in facts.outputs if value in outputs or (value.kind != "tensor" and _in_rows(value, batch))
    ]
    key = "" if any(value.name == "row" for value in written) else "      key: [row]\n"
    columns = "" if len(written) == len(facts.outputs) else f"      columns: {flow([v.name for v in written])}\n"
    casts = {v.name: [{"cast": v.tensor.dtype}] for v in facts.inputs if v.tensor.dtype in WIDER and not v.optional}
    prepare = f"    prepare: {flow(casts)}\n" if casts else ""
    return (
        f"# Made by ortdeploy init. For completion in an editor: ortdeploy schema > deployment.schema.json\n"
        f"version: 1\n\n"
        f"models:\n  {name}:\n    path: {scalar(path)}\n    sha256: {scalar(facts.sha256)}\n"
        f"    providers: [CPU]\n"
        f"    inputs:\n{_tensors(facts.inputs)}"
        f"    outputs:\n{_tensors(outputs)}\n"
        f"jobs:\n  run:\n    model: {name}\n"
        f"    input:\n"
        f"      path: {scalar(sample.name)}  # {_SAMPLE_ROWS} sample rows made by init; name your own files here\n{key}"
        f"{prepare}    batch: {{size: {batch or 'none'}}}\n"
        f"    output:\n      path: {scalar(f'outbox/{manifest.stem}')}\n      format: jsonl\n{columns}"
    )


def _in_rows(value: ValueFacts, batch: int | None) -> bool:
    """Tell whether JSON lines can hold a sequence or map: one for each row."""
    return value.kind != "sparse" and (batch is None or value.element == "map")


def _tensors(values: tuple[ValueFacts, ...] | list[ValueFacts]) -> str:
    return "".join(f"      {scalar(value.name)}: {_tensor(value.tensor)}\n" for value in values)


def _tensor(tensor: TensorType) -> str:
    known: dict[str, object] = {"dtype": tensor.dtype} if tensor.dtype else {}
    if tensor.shape is not None:
        known["shape"] = list(tensor.shape)
    if tensor.layout is not None:
        known["layout"] = tensor.layout
    return flow(known)
