"""A model of no known family: rows of its input types, made up so that it really takes them, or the user's arrays."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.models import ValueFacts
from ortdeploy.graph.row_axes import input_axes
from ortdeploy.manifest.write import flow
from ortdeploy.runtime.trial_run import SyntheticTensor, synthetic_array
from ortdeploy.sources.catalogue import TABLES
from ortdeploy.starters import provenance, samples, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.open_sizes import ROWS, synthetic_tensor
from ortdeploy.starters.provenance import Page
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import WIDER, format_shape

FAMILY = "a model"
_BATCH = 32
_IMAGE_SIDE, _IMAGE_RANK = 224, 4
_RANK = 2
_OF_FILES = {
    "audio": "samples",
    "bytes": "data",
    "image": "pixels",
    "text": "text",
    "video": "pixels",
    "wav": "samples",
}
"""The column that is the content of a file, or a line, by format."""

_KINDS = {
    "audio": "recordings",
    "bytes": "files",
    "image": "pictures",
    "text": "lines of text",
    "video": "videos",
    "wav": "recordings",
    **dict.fromkeys(TABLES, "a table"),
}
"""What rows of a format are, for people."""

_LARGEST = 64 * 1024 * 1024  # elements of one input


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest with rows of a batch together, then one row a run, then whole runs as rows."""
    for rows in () if subject.is_folder else _ways(subject):
        yield _starter(subject, rows)


def _ways(subject: Subject) -> Iterator[int | None]:
    """Yield the batch sizes that may fit: of several rows, of one, and None if a row has no axis of its own."""
    fixed = _fixed_rows(subject)
    if fixed is not None:
        batch = fixed or _BATCH
        yield batch
        if not fixed:
            yield 1
    yield None


def _fixed_rows(subject: Subject) -> int | None:
    """Return the number of rows that the graph fixes, 0 for any number, and None if inputs do not agree on one."""
    sizes = set()
    axes = input_axes(subject.inputs, ())
    for value in subject.inputs:
        axis, shape = axes[value.name], value.tensor.shape
        if axis is not None and shape is not None and axis < len(shape):
            sizes.add(shape[axis] if isinstance(shape[axis], int) else 0)
    return int(sizes.pop() or 0) if len(sizes) == 1 else None


def _starter(subject: Subject, batch: int | None) -> Starter:
    prepare = _prepared(subject)
    sample = f"{subject.stem}-sample.npz"
    text = (
        yaml_text.head()
        + yaml_text.models(subject)
        + yaml_text.model_job(subject)
        + yaml_text.input_section(
            subject,
            sample,
            *_key(subject, batch),
            *_values(subject, batch),
            note=f"{_sample_rows(batch)} sample rows made by init",
        )
        + (f"    prepare: {provenance.graph('prepare', flow(prepare))}\n" if prepare else "")
        + _batch(subject, batch)
        + yaml_text.output(subject, *_kept(subject, batch))
    )
    return Starter(
        family=FAMILY,
        page=Page(marked=text),
        files={} if subject.data is not None else {sample: samples.archive(_arrays(subject, batch))},
        if_refused=_if_refused(subject),
        misfit=_misfit(subject),
    )


def _batch(subject: Subject, batch: int | None) -> str:
    if batch is None:
        return f"    batch: {{size: {provenance.graph('batch', 'none')}}}\n"
    return yaml_text.batch(batch if _fixed_rows(subject) else None, batch)


def _if_refused(subject: Subject) -> str | None:
    """Say what was not found out, if the model did not run on any synthetic input."""
    if subject.ran.refusal is None:
        return None
    return (
        f"The model takes {_taken(subject)}, but no values that were made up. ONNX Runtime: {subject.ran.refusal}. "
        "Name rows of your own with --from"
    )


def _misfit(subject: Subject) -> str | None:
    """Say what rows of the user's are, and what the model takes."""
    if subject.data is None:
        return None
    kind = _KINDS.get(subject.data.format, "arrays")
    return (
        f"{subject.data.path} holds {kind}, and the model takes {_taken(subject)}. "
        "Name the columns that feed it under columns:, and steps that convert them under prepare:. Or name other rows "
        "with --from"
    )


def _taken(subject: Subject) -> str:
    return ", ".join(f"{one.name} {one.tensor.dtype} {format_shape(one.tensor.shape or ())}" for one in subject.inputs)


def _prepared(subject: Subject) -> Mapping[str, object]:
    """Return the steps of inputs: rows of the user's made flat, and element types that NumPy does not have."""
    made = {one.name: [*_flattened(one, subject), *_cast(one)] for one in subject.inputs}
    return {name: steps for name, steps in made.items() if steps}


def _flattened(value: ValueFacts, subject: Subject) -> Iterator[Mapping[str, object]]:
    """Yield the step for rows of the user's with more axes than the one that the model takes, and as many values."""
    columns = list(subject.data.columns.values()) if subject.data and value is subject.only_input else []
    given = columns[0].shape if len(columns) == 1 else None
    wanted = (value.tensor.shape or ())[1:]
    if given is None or len(given) <= _RANK or len(wanted) != 1 or not isinstance(wanted[0], int):
        return
    sizes = [size for size in given[1:] if isinstance(size, int)]
    if len(sizes) == len(given) - 1 and math.prod(sizes) == wanted[0]:
        yield {"flatten": True}


def _cast(value: ValueFacts) -> Iterator[Mapping[str, object]]:
    if value.tensor.dtype in WIDER:
        yield {"cast": value.tensor.dtype}


def _by_row(subject: Subject, batch: int | None) -> list[ValueFacts]:
    """Return the inputs that rows carry: without an axis for rows, all of them."""
    return [one for one in subject.inputs if batch is None or one.tensor.shape != ()]


def _values(subject: Subject, batch: int | None) -> Iterator[str]:
    """Yield the key with the values of inputs that no row carries, one a line: nothing tells what belongs there."""
    carried = _by_row(subject, batch)
    rest = [one for one in subject.inputs if one not in carried]
    if rest:
        yield "values:"
    for one in rest:
        yield f"  {yaml_text.value_of(one, synthetic_tensor(one, subject.ran.values.get(one.name)))}"


def _key(subject: Subject, batch: int | None) -> Iterator[str]:
    """Yield the key, and which column feeds which input if the user's files name other columns."""
    if "row" not in {one.name for one in _written(subject, batch)}:
        yield "key: [row]"
    data = subject.data
    inputs = _by_row(subject, batch)
    if data is None or all(one.name in data.columns for one in inputs):
        return
    if len(inputs) == 1 and data.format in _OF_FILES:
        yield f"columns: {provenance.data('columns', flow({inputs[0].name: _OF_FILES[data.format]}))}"
        return
    names = list(data.columns)
    width = (inputs[0].tensor.shape or (None,))[-1] if inputs else None
    if len(inputs) == 1 and len(names) > 1 and width in {len(names), None}:
        of = "in the order of the file"
        yield f"columns: {provenance.convention('columns', flow({inputs[0].name: names}), of)}"
    elif len(inputs) == len(names) > 1:
        pairs = dict(zip([one.name for one in inputs], names, strict=True))
        why = "inputs and columns are paired in their order"
        yield f"columns: {provenance.made_up('columns', flow(pairs), why, 'which column each input means')}"


def _written(subject: Subject, batch: int | None) -> list[ValueFacts]:
    """Return the outputs that JSON lines can hold."""
    return [
        one
        for one in subject.facts.outputs
        if (one.kind == "tensor" and one.tensor.dtype)
        or (one.kind in {"sequence", "map"} and (batch is None or one.element == "map"))
    ]


def _kept(subject: Subject, batch: int | None) -> Iterator[str]:
    written = _written(subject, batch)
    if len(written) < len(subject.facts.outputs):
        yield f"columns: {flow([one.name for one in written])}"


def _sample_rows(batch: int | None) -> int:
    """Return a number of rows that fills whole batches, if the graph fixes them."""
    return ROWS if batch in {None, 1, _BATCH} else batch * -(-ROWS // batch)


def _arrays(subject: Subject, batch: int | None) -> dict[str, Array]:
    return {one.name: _rows_of(one, subject, batch) for one in _by_row(subject, batch)}


def _rows_of(value: ValueFacts, subject: Subject, batch: int | None) -> Array:
    """Return sample rows of one input, rows first: of the sizes that the model took, or else of likely ones."""
    one = synthetic_tensor(value, subject.ran.values.get(value.name))
    shape = list(subject.ran.fed.get(value.name) or _likely(value, one))
    if batch is not None:
        axis = input_axes(subject.inputs, ())[value.name] or 0
        del shape[axis]
    sizes = (_sample_rows(batch), *shape)
    if math.prod(sizes) > _LARGEST:
        raise OrtdeployError(
            f"sample rows of {format_shape(sizes)} would be too large to make; write the manifest by hand"
        )
    dtype = WIDER.get(one.dtype, one.dtype)
    known = SyntheticTensor(name=one.name, dtype=dtype, shape=(), limits=one.limits, value=one.value)
    return np.asarray(synthetic_array(known, sizes))


def _likely(value: ValueFacts, one: SyntheticTensor) -> tuple[int, ...]:
    """Return sizes for a model that was not run: 224 for the height and width of what looks like an image, else 1."""
    side = _IMAGE_SIDE if len(value.tensor.shape or ()) == _IMAGE_RANK else 1
    keys = dict(one.open_sizes())
    return one.sized({key: side if axis > 1 else 1 for axis, key in keys.items()})
