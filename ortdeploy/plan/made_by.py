"""What made a part: what results depend on in a deployment, and the layout of what it writes."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.plan.steps import Plan, RunJob


class MadeBy(Struct, frozen=True, kw_only=True):
    """A deployment that makes parts: its name and profile, what its results depend on, and how its rows look.

    The layout is None of a deployment that ran before layouts were noted.
    """

    name: str
    profile: str | None
    identity: Mapping[str, str]
    layout: Mapping[str, Any] | None

    @property
    def digest(self) -> str:
        """What parts are told apart by; neither the name nor the profile changes what is in them."""
        return made_by_digest(self.identity, self.layout)


def made_by_digest(identity: Mapping[str, str], layout: Mapping[str, Any] | None) -> str:
    """Return the digest of what results depend on and how their rows look."""
    text = json.dumps([dict(identity), layout], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def made_by(plan: Plan, step: RunJob) -> MadeBy:
    """Return what makes the parts of a job."""
    output = step.output
    layout = output_layout(
        output.format,
        step.input.key,
        output.columns,
        output.dtypes,
        output.row_shapes,
        images=output.files,
        explode=output.explode,
        stacked={one.name: one.columns for one in step.inputs if one.stacked},
        types=output.types,
    )
    return MadeBy(name=plan.deployment, profile=plan.profile, identity=step.identity, layout=layout)


def output_layout(
    kind: str,
    key: Sequence[str],
    columns: Sequence[str],
    dtypes: Sequence[str | None],
    row_shapes: Sequence[tuple[int | None, ...] | None],
    *,
    images: Collection[str],
    explode: Sequence[str],
    stacked: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
) -> dict[str, Any]:
    """Return the format and the columns of an output, as JSON has them, and the columns `stacked` in inputs.

    `types` are those that the manifest gives to carried columns.
    """
    results = {
        name: [None, None] if name in images else [dtype, None if shape is None else list(shape)]
        for name, dtype, shape in zip(columns, dtypes, row_shapes, strict=True)
    }
    lines = {"explode": list(explode)} if explode else {}
    orders = {name: list(fed) for name, fed in stacked.items() if len(fed) > 1}
    order = {"stacked": orders} if orders else {}
    told = {"types": dict(types)} if types else {}
    return {"format": kind, "columns": {**dict.fromkeys(key), **results}, **lines, **order, **told}


def layout_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say in which format or columns two layouts differ; None if rows of both may stand in one output."""
    if before["format"] != now["format"]:
        return f"the format was {before['format']} and is {now['format']}"
    if before.get("explode") != now.get("explode"):
        return "explode names other columns"
    if before.get("types") != now.get("types"):
        return "types: are other ones"
    old, new = before["columns"], now["columns"]
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            return f'there is no column "{name}" any more'
        if name not in old:
            return f'the column "{name}" is new'
        if old[name] != new[name]:
            return f'the column "{name}" was {_shown(old[name])} and is {_shown(new[name])}'
    return None if list(old) == list(new) else "the columns stand in another order"


def _shown(column: Sequence[Any] | None) -> str:
    """`float32 [10]`; a column of the input is a key."""
    if column is None:
        return "a key"
    dtype, shape = column
    sizes = "" if shape is None else f" [{', '.join('?' if size is None else str(size) for size in shape)}]"
    return f"{dtype or 'of any type'}{sizes}"
