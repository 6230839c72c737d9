"""Models of scikit-learn, LightGBM, XGBoost and CatBoost: operators of ai.onnx.ml, fed from the columns of a table."""

from collections.abc import Iterator, Sequence

import numpy as np

from ortdeploy.deployment.metadata import parsed_names
from ortdeploy.facts.models import ValueFacts
from ortdeploy.files.csv_text import written_rows
from ortdeploy.manifest.write import flow
from ortdeploy.sources.catalogue import TABLES
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.provenance import Page
from ortdeploy.tensors.types import FLOATING

FAMILY = "a table's model (operators of ai.onnx.ml)"
_DOMAIN = "ai.onnx.ml"
_ROWS, _BATCH = 4, 1024
_RANK = 2
_NAMED = ("feature_names", "feature_names_in")
"""Keys of metadata with the columns that a model was trained on, in their order."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that reads a table, if each input takes columns of it."""
    of_tables = any(node.domain == _DOMAIN for node in subject.facts.nodes)
    shapes = [one.tensor.shape or () for one in subject.inputs]
    if not of_tables or not shapes or any(len(shape) != _RANK for shape in shapes):
        return
    if subject.data is None:
        yield _starter(subject)
    elif subject.data.format in TABLES:
        yield _starter(subject)
        if all(value.tensor.dtype in FLOATING for value in subject.inputs):
            nan = provenance.convention("missing: nan", "nan", "cells are empty; the model must know what NaN is")
            yield _starter(subject, f"missing: {nan}")


def _starter(subject: Subject, *further: str) -> Starter:
    names = _column_names(subject)
    rows = next((size for size in ((one.tensor.shape or (None,))[0] for one in subject.inputs) if size), None)
    fixed = rows if isinstance(rows, int) else None
    sample = f"{subject.stem}-sample.csv"
    text = (
        yaml_text.head("A model of a table: its operators are those of ai.onnx.ml.", _of_columns(subject))
        + yaml_text.models(subject)
        + yaml_text.model_job(subject)
        + yaml_text.input_section(subject, sample, f"columns: {_columns(subject, names)}", *further, "key: [row]")
        + yaml_text.batch(fixed, _BATCH)
        + yaml_text.output(subject, *_kept(subject))
    )
    number = fixed * -(-_ROWS // fixed) if fixed else _ROWS
    files = {} if subject.data else {sample: _table(subject.inputs, names, number).encode()}
    return Starter(family=FAMILY, page=Page(marked=text), files=files)


def _kept(subject: Subject) -> Iterator[str]:
    """Yield the key that leaves out what JSON lines cannot hold by row: a sequence that is not one of maps."""
    outputs = subject.facts.outputs
    kept = [one.name for one in outputs if one.kind == "tensor" or one.element == "map"]
    if len(kept) < len(outputs):
        yield f"columns: {flow(kept)}"


def _width(value: ValueFacts, subject: Subject) -> int:
    """Return how many columns an input takes: as its shape says, or as the model took them."""
    size = (value.tensor.shape or (None, None))[1]
    return size if isinstance(size, int) else subject.ran.fed.get(value.name, (1, 1))[1]


def _column_names(subject: Subject) -> dict[str, list[str]]:
    """Return what columns are called, by input: as the metadata say, an input of one column is, else f and a number."""
    only, told = subject.only_input, _told(subject)
    if only is not None and told is not None:
        return {only.name: told[1]}
    names, number = {}, 0
    for value in subject.inputs:
        width = _width(value, subject)
        names[value.name] = [value.name] if width == 1 else [f"f{number + place}" for place in range(width)]
        number += 0 if width == 1 else width
    return names


def _told(subject: Subject) -> tuple[str, list[str]] | None:
    """Return the key of the metadata that names all columns of the one input, and these names; None if none does."""
    for key in _NAMED if subject.only_input is not None else ():
        names = [str(name) for name in parsed_names(subject.facts.metadata.get(key, ""))]
        if len(names) == _width(subject.inputs[0], subject) == len({*names}):
            return key, names
    return None


def _of_columns(subject: Subject) -> str:
    """Return what tells the columns, for a comment."""
    told = _told(subject)
    if told is not None:
        return f"Names and order of columns are those of {told[0]} in its metadata."
    return "Names and order of columns are not in it; what it was trained on had them."


def _columns(subject: Subject, names: dict[str, list[str]]) -> str:
    """Return which columns feed which input, with what tells it."""
    told = _told(subject)
    missing = [name for name in told[1] if name not in subject.data.columns] if told and subject.data else []
    if told is not None and not missing:
        return str(provenance.metadata("columns", flow(names)))
    if subject.data is None:
        only = subject.only_input
        if only is not None and len(names[only.name]) > 1:
            return f"{provenance.graph('columns', flow({only.name: ['f*']}))}  # all that begin with f, in their order"
        return str(provenance.graph("columns", flow(names)))
    wanted = sum(map(len, names.values()))
    there = _fitting(subject, wanted)
    if all(name in there for group in names.values() for name in group):
        return str(provenance.graph("columns", flow(names)))
    left = iter(there)
    guess = {name: [column for _, column in zip(group, left, strict=False)] for name, group in names.items()}
    write = "those that it was trained on, in that order"
    if told is not None:
        them = f"{len(missing)} columns, such as {missing[0]}," if missing[1:] else missing[0]
        because = f"{told[0]} in the model names {them} that {subject.data.path} does not have"
        return str(provenance.made_up("columns", flow(guess), because, write))
    if len(there) == wanted:
        left_out = ", those that are numbers" if len(there) < len(subject.data.columns) else ""
        return str(provenance.convention("columns", flow(guess), f"in the order of the file{left_out}"))
    taken = "1 column" if wanted == 1 else f"{wanted} columns"
    of_numbers = " of numbers" if len(there) < len(subject.data.columns) else ""
    rest = f"left out: {', '.join(left)}" if len(there) > wanted else ", ".join(there)
    because = f"the model takes {taken} and {subject.data.path} has {len(there)}{of_numbers}; {rest}"
    return str(provenance.made_up("columns", flow(guess), because, write))


def _fitting(subject: Subject, wanted: int) -> list[str]:
    """Return the columns of the user's files: only those of numbers, if the model takes these and they suffice."""
    data = subject.data
    there = list(data.columns) if data else []
    numbers = [name for name in there if data and name not in data.texts]
    return numbers if len(numbers) >= wanted and all(one.tensor.dtype != "string" for one in subject.inputs) else there


def _table(values: Sequence[ValueFacts], names: dict[str, list[str]], rows: int) -> str:
    """Return a CSV file: random numbers between 0 and 1 for floating columns, zeros or a letter for others."""
    random = np.random.default_rng(0)
    header = [name for group in names.values() for name in group]
    cells = [[_cell(value, random) for value in values for _ in names[value.name]] for _ in range(rows)]
    return written_rows([header, *cells])


def _cell(value: ValueFacts, random: np.random.Generator) -> str:
    if value.tensor.dtype == "string":
        return "a"
    return f"{random.random():.4f}" if value.tensor.dtype in FLOATING else "0"
