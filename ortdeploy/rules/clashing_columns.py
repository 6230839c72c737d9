"""What it catches: a key with the name of a result that is written, and in CSV a column with the name of an element of
a vector.

Why: one would silently take the place of the other, or a part would have two columns of one name, which no reader can
tell apart.

Example:

    input: {path: data.npy, key: [y]}     # the model's output is y

How to fix: leave the key out, rename the column in the data, or list the other results under output: {columns: …}.
Formats other than CSV hold a vector in one column.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="clashing-columns", summary="Two columns of an output have one name")

Shape = tuple[int | None, ...]
_IS_PLACE = re.compile(r"0|[1-9][0-9]*")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        name = job.spec.name
        for index, key in enumerate(job.spec.input.key):
            if key in job.columns and key not in job.spec.output.columns:
                detail = (
                    f'Job "{name}" also writes a result "{key}", which would take the place of this key. Leave the key '
                    "out, or list the other results under output: {columns: …}."
                )
                yield Finding(at=(*job.spec.input.at, "key", index), detail=detail, job=name)
        if job.spec.output.format == "csv":
            for element, vector in _clashes(job):
                detail = (
                    f'A vector is written as one column an element, and an element of "{vector}" has the name of '
                    f'"{element}". Write another format, or one of them.'
                )
                yield Finding(at=(*job.spec.output.at, "path"), detail=detail, job=name)


def _clashes(job: "ResolvedJob") -> Iterator[tuple[str, str]]:
    """Yield pairs of columns: the second has an element that is called like the first, or like one of its elements."""
    shapes: dict[str, Shape | None] = {
        **dict.fromkeys(job.key, ()),
        **{name: job.row_shape(name) for name in job.columns},
    }
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    for vector, sizes in known.items():
        for name, shape in known.items():
            if name.startswith(f"{vector}.") and _is_element(name[len(vector) + 1 :].split("."), shape, sizes):
                yield name, vector


def _is_element(places: list[str], shape: Shape, sizes: Shape) -> bool:
    """Return whether places, and perhaps some of a shape, lead to elements of a vector with these sizes."""
    if len(places) + len(shape) != len(sizes) or any(_IS_PLACE.fullmatch(place) is None for place in places):
        return False
    return all(size is None or int(place) < size for place, size in zip(places, sizes, strict=False))
