"""Models of series that the user has as tables: a row is a window of the lines that the graph takes at once.

Its input is [rows, lines, columns] or [rows, columns, lines], with as many columns as the table has columns of numbers
beside the time, or [rows, lines] for one. A column that is called after time orders the lines, and columns of text say
whose lines they are. What such columns are called is all that tells them.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.sources.catalogue import TABLES
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Data, Starter, Subject, fixed_rows
from ortdeploy.starters.provenance import Page
from ortdeploy.tensors.types import FLOATING

FAMILY = "a model of series"
_TIME = re.compile(r"(?:^|_)(?:time|date|datetime|timestamp|ts|when)\Z", re.IGNORECASE)
_OF_ONE, _OF_SEVERAL = 2, 3
_BATCH = 32


class _Columns(Struct, frozen=True, kw_only=True):
    """The columns of a table: those that are fed, the one that orders lines, and those that say whose they are."""

    fed: list[str]
    time: str | None
    whose: list[str]


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from windows of lines to what the model gives."""
    value, data = subject.only_input, subject.data
    if value is None or data is None or data.format not in TABLES or value.tensor.dtype not in FLOATING:
        return
    columns = _columns(data, value)
    axis = _axis_of_lines(value, len(columns.fed))
    if axis is not None and value.name not in data.columns and columns.fed:
        yield _starter(subject, value, columns, axis)


def _columns(data: Data, value: ValueFacts) -> _Columns:
    names = [name for name, tensor in data.columns.items() if not (tensor.shape or ())[1:]]
    time = next((name for name in names if _TIME.search(name)), None)
    texts = [name for name in names if name in data.texts or data.columns[name].dtype == "string"]
    beside = {time, *texts}
    return _Columns(
        fed=[name for name in names if name not in beside and name != value.name],
        time=time,
        whose=[name for name in texts if name != time],
    )


def _axis_of_lines(value: ValueFacts, columns: int) -> int | None:
    """Return which axis of the input counts lines; None if it has none for this number of columns."""
    shape = value.tensor.shape or ()
    if len(shape) == _OF_SEVERAL and columns in shape[1:]:
        return 1 if shape[2] == columns else 2
    several = len(shape) == _OF_ONE and isinstance(shape[1], int) and shape[1] > 1
    return 1 if several and columns == 1 else None


def _starter(subject: Subject, value: ValueFacts, columns: _Columns, axis: int) -> Starter:
    fed = columns.fed[0] if len(columns.fed) == 1 else columns.fed
    order = columns.time and provenance.convention("order", scalar(columns.time), "by its name, the time of a line")
    whose = provenance.convention("by", flow(columns.whose), "columns of text say whose lines they are")
    times = [f"first_{columns.time}", f"last_{columns.time}"] if columns.time else []
    key = ["path", *columns.whose, "first_line", "last_line", *times]
    lines = _lines(subject, value, axis)
    window = ", ".join(
        [
            f"rows: {lines}",
            f"hop: {provenance.choice('hop', lines.text)}",
            *([f"by: {whose}"] if columns.whose else []),
            *([f"order: {order}"] if order else []),
        ]
    )
    steps = _steps(value, len(columns.fed), axis)
    prepare = f"    prepare: {{{scalar(value.name)}: [{provenance.graph('prepare', steps)}]}}\n" if steps else ""
    text = (
        yaml_text.head("A model of series: it takes windows of the lines of a table, which follow each other by hop.")
        + yaml_text.models(subject)
        + yaml_text.model_job(subject)
        + yaml_text.input_section(
            subject,
            "",
            f"columns: {provenance.convention('columns', flow({value.name: fed}), 'in the order of the file')}",
            f"key: {flow(key)}",
            f"window: {{{window}}}",
        )
        + prepare
        + yaml_text.batch(fixed_rows(value), _BATCH)
        + yaml_text.output(subject)
    )
    return Starter(family=FAMILY, page=Page(marked=text))


def _lines(subject: Subject, value: ValueFacts, axis: int) -> provenance.Given:
    size = (value.tensor.shape or ())[axis]
    if isinstance(size, int):
        return provenance.graph("rows", size)
    ran = subject.ran.fed.get(value.name, (1,) * (axis + 1))[axis]
    return provenance.made_up("rows", ran, "the graph takes any number of lines", "how many it was trained on")


def _steps(value: ValueFacts, columns: int, axis: int) -> str:
    """Return the step from [lines] or [columns, lines] to what a row of the input is; empty if it is that."""
    if len(value.tensor.shape or ()) == _OF_ONE:
        return ""
    if columns == 1:
        return f"{{expand: {1 if axis == 1 else 0}}}"
    return "{op: Transpose, in: {data: $x}, attributes: {perm: [0, 2, 1]}}" if axis == 1 else ""
