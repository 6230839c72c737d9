"""The schema's keys of every step are the contract's: names, types, bounds, choices, defaults, what is required."""

import json
from typing import Any

import pytest
from conftest import REPOSITORY

from ortdeploy.manifest.pipelines import FILES
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.schemas import schema_text
from ortdeploy.tensors.contracts import OPTIONAL, Attribute, Contract
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE

DEFINITIONS = json.loads(schema_text("deployment"))["$defs"]
WORDS = {"title", "description", "examples"}
WIRE, NAME = DEFINITIONS["wire"], DEFINITIONS["name"]


def meant(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema demands, with references followed and without words."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            found |= meant(DEFINITIONS[value.rpartition("/")[2]])
        elif key == "properties":
            found[key] = {name: meant(one) for name, one in value.items()}
        elif key == "items":
            found[key] = meant(value)
        elif key == "anyOf":
            found[key] = [meant(one) for one in value]
        elif key == "required":
            found[key] = sorted(value)
        elif key not in WORDS:
            found[key] = value
    return found


def of_attribute(attribute: Attribute) -> dict[str, Any]:
    """Return the schema of a setting, by its contract."""
    bounds = {"minimum": attribute.least, "exclusiveMinimum": attribute.above, "maximum": attribute.most}
    numbers = {key: value for key, value in bounds.items() if value is not None}
    default = {} if attribute.default is None else {"default": attribute.default}
    if attribute.path:
        return {**meant(DEFINITIONS["path"]), "x-path": attribute.path, **default}
    if attribute.choices:
        return {"enum": list(attribute.choices), **default}
    match attribute.type:
        case "STRING":
            return {"type": "string", "minLength": attribute.least, "maxLength": attribute.most, **default}
        case "INT":
            return {"type": "integer", **numbers, **default}
        case "FLOAT":
            return {"type": "number", **numbers, **default}
        case "FLOATS":
            number = {"type": "number", **numbers}
            return {"anyOf": [number, {"type": "array", "minItems": 1, "items": number}], **default}
        case "INTS":
            count = {"minItems": attribute.length or 1} | ({"maxItems": attribute.length} if attribute.length else {})
            number = {"type": "integer", **numbers}
            array = {"type": "array", "items": number, **count}
            return {**({"anyOf": [number, array]} if attribute.scalar else array), **default}
    raise AssertionError(attribute.type)


def of_attributes(contract: Contract) -> tuple[dict[str, Any], set[str]]:
    """Return the properties that are settings, and those that are required; a dot leads into a mapping."""
    properties: dict[str, Any] = {}
    required = set()
    for one in contract.attributes:
        first, _, rest = one.name.partition(".")
        required |= {first} if one.required else set()
        if not rest:
            properties[first] = of_attribute(one)
            continue
        nested = nesting(properties, first)
        nested["properties"][rest] = of_attribute(one)
        if one.required:
            nested["required"] = sorted([*nested.get("required", []), rest])
    return properties, required


def nesting(properties: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the mapping of a setting; one that may also be a list has both forms, and the mapping is not empty."""
    nested: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    written: dict[str, Any] = properties.setdefault(name, nested)
    if "anyOf" in written:
        if written["anyOf"][-1]["type"] != "object":
            written["anyOf"].append(nested | {"minProperties": 1})
        mapping: dict[str, Any] = written["anyOf"][-1]
        return mapping
    if written.get("type") == "array":
        properties[name] = {"anyOf": [written, nested | {"minProperties": 1}]}
        return nesting(properties, name)
    return written


def of_step(properties: dict[str, Any], required: set[str]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": sorted(required), "properties": properties}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_written_as_its_contract_says(name: str) -> None:
    branches = {one["if"]["properties"]["do"]["const"]: one["then"] for one in DEFINITIONS["doStep"]["allOf"]}
    contract = OPERATIONS[name].contract
    assert contract.name == name
    properties, required = of_attributes(contract)
    wires = {one.name: meant(WIRE) for one in contract.inputs}
    inputs = {one.name for one in contract.inputs if one.option != OPTIONAL}
    assert meant(branches[name]["properties"]["in"]) == of_step({**wires, **properties}, required | inputs)


@pytest.mark.parametrize("name", PREPARE)
def test_a_prepare_step_is_written_as_its_contract_says(name: str) -> None:
    written = next(one for one in DEFINITIONS.values() if one.get("title") == name and name in one.get("required", ()))
    contract = PREPARE[name].contract
    assert contract.name == name
    assert [one.name for one in contract.inputs] == ["x"]
    properties, required = of_attributes(contract)
    properties = properties if name in properties else {name: {"const": True}, **properties}
    assert meant(written) == of_step(properties, required | {name})


@pytest.mark.parametrize("name", POSTPROCESS)
def test_a_postprocess_step_is_written_as_its_contract_says(name: str) -> None:
    contract = POSTPROCESS[name].contract
    assert contract.name == name
    assert [one.name for one in contract.inputs] == ["x"]
    properties, required = of_attributes(contract)
    names = {str(one.named_by) for one in contract.outputs}
    required |= {name} | {str(one.named_by) for one in contract.outputs if one.option != OPTIONAL}
    columns = dict.fromkeys([name, *names], meant(NAME))
    assert meant(DEFINITIONS[name]) == of_step({**columns, **properties}, required)


def test_the_files_of_operations_are_those_that_the_manifest_resolves() -> None:
    named = {
        name: {one.name for one in operation.contract.attributes if one.path} for name, operation in OPERATIONS.items()
    }
    assert {name: set(files) for name, files in FILES.items()} == {
        name: files for name, files in named.items() if files
    }


def page(name: str) -> str:
    return (REPOSITORY / f"docs/reference/{name}.md").read_text(encoding="utf-8")


def test_the_reference_names_every_step_with_its_inputs_and_settings() -> None:
    text = page("operations")
    for name, operation in OPERATIONS.items():
        row = next(line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line)
        if name in PREPARE or name in POSTPROCESS:
            continue
        words = {one.name for one in operation.contract.inputs} | {one.name for one in operation.contract.attributes}
        assert all(f"`{word}" in row for word in words), (name, words)
        defaults = {one.name: one.default for one in operation.contract.attributes if one.default not in {None, 0, 1}}
        assert all(str(value) in row for value in defaults.values()), (name, defaults)
    text = page("prepare") + page("postprocess")
    for name, step in {**PREPARE, **POSTPROCESS}.items():
        row = next(line for line in text.splitlines() if line.startswith("|") and f"{{{name}:" in line)
        assert all(one.name.rpartition(".")[2] in row for one in step.contract.attributes), name
