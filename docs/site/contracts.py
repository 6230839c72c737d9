"""The page of the site that says what steps take and give, made from their contracts."""

from collections.abc import Iterable, Iterator

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.presets.component_contracts import COMPONENTS
from ortdeploy.tensors.contracts import OPTIONAL, Attribute, Contract, FormalParameter
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.views.steps import bounds, element_types, meaning_of, shapes

_HEAD = """\
# What steps take and give

These are the contracts of all steps; `ortdeploy explain STEP` prints one. `ortdeploy plan` checks every value against
them before anything runs. A run checks every array against them before a step sees it. A row that does not fit fails,
and the message says what was expected and what came.

An axis with a name has the same size in all inputs of one step: the `n` of boxes is the `n` of their scores. `…` stands
for any number of axes. Images are [rows, height, width, channels] (NHWC) until a `layout` step makes them NCHW. If a
unit is named here, and an earlier step has given the value a unit, the two must agree. A model does not tell units.
"""


def render() -> str:
    """Return the page."""
    return "\n".join(
        [
            _HEAD,
            *_part("Operations of pipelines", (one.contract for one in OPERATIONS.values())),
            *_part("Prepare steps", (one.contract for one in PREPARE.values())),
            *_part("Postprocess steps", (one.contract for one in POSTPROCESS.values())),
            *_part("Components of text-to-image", COMPONENTS.values()),
        ]
    )


def _part(title: str, contracts: Iterable[Contract]) -> Iterator[str]:
    yield f"## {title}\n"
    for contract in contracts:
        alone = "" if contract.row_wise else " A row's result depends on the rows of its batch."
        yield f"### {contract.name}\n\n{contract.meaning}.{alone}\n"
        yield "| | Element types | Shape | |\n| --- | --- | --- | --- |"
        yield from (_parameter("takes", one, contract) for one in contract.inputs)
        yield from (_parameter("gives", one, contract) for one in contract.outputs)
        yield from ("", *_attributes(contract.attributes), *_sizes(contract))


def _parameter(verb: str, one: FormalParameter, contract: Contract) -> str:
    given = ["if it is given"] if one.option == OPTIONAL else []
    said = [f"`{one.named_by}`", *given] if one.named_by else given
    named = f" ({', '.join(said)})" if said else ""
    types = element_types(verb, one, contract)
    return f"| {verb} `{one.name}`{named} | {types} | {shapes(one)} | {meaning_of(one)} |"


def _attributes(attributes: tuple[Attribute, ...]) -> Iterator[str]:
    if attributes:
        yield "| Setting | | Default |\n| --- | --- | --- |"
        for one in attributes:
            default = "required" if one.required else "none" if one.default is None else f"`{one.default}`"
            yield f"| `{one.name}` | {one.meaning}{bounds(one)} | {default} |"
        yield ""


def _sizes(contract: Contract) -> Iterator[str]:
    said = [
        f"`{one.name}` is " + (" or ".join(map(str, one.sizes)) if one.sizes else f"at least {one.least}")
        for one in contract.sizes
    ]
    if said:
        yield f"{', '.join(said)}.\n"
