"""What is told without jsonschema is what jsonschema tells: of the examples, of rules' cases, and of what mars them."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.diagnostics import Span
from ortdeploy.manifest import quick_check, schema_check
from ortdeploy.manifest.document import Document, parse_document
from ortdeploy.manifest.document import Path as Place
from ortdeploy.schemas import load_schema, schema_names

_ROOT = Path(__file__).parents[2]
_FILES = sorted([*(_ROOT / "deployments").glob("*.yaml"), *(_ROOT / "tests/rules/cases").glob("*/*.yaml")])
_SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 70_000) | st.floats(-2, 2) | st.sampled_from(["", "CPU", "x.json", "1"])
)
_VALUES = st.recursive(
    _SCALARS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def _document(data: Any) -> Document:
    return Document(path="m.yaml", data=data, spans={(): Span(path="m.yaml", line=1, column=1)}, keys={}, words={})


def _judge(schema: str, data: Any, patch: pytest.MonkeyPatch) -> bool:
    """Return whether jsonschema finds nothing wrong."""

    def tells_nothing(*_: object) -> bool:
        raise quick_check.UnsupportedSchemaError

    with patch.context() as patched:
        patched.setattr(schema_check, "fits", tells_nothing)
        return not schema_check.check_document(_document(data), schema)


@cache
def _corpus() -> list[Any]:
    documents = (parse_document(file.read_bytes(), str(file))[0] for file in _FILES)
    return [one.data for one in documents if one is not None]


def _places(data: Any, at: Place = ()) -> Iterator[Place]:
    yield at
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(value, (*at, key))


def _keywords(schema: Any) -> Iterator[Any]:
    """Yield every schema inside one."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in {"$defs", "properties", "patternProperties"}:
                for inner in value.values():
                    yield from _keywords(inner)
            elif key in {"allOf", "anyOf", "prefixItems"}:
                for inner in value:
                    yield from _keywords(inner)
            elif key in {"additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "then"}:
                yield from _keywords(value)


@pytest.mark.quick("4")
@pytest.mark.parametrize("every", [1, 4])
def test_right_documents_need_no_jsonschema(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    assert len(_corpus()) > 100
    some = _corpus()[::every]
    found = [(quick_check.fits("deployment", one), _judge("deployment", one, monkeypatch)) for one in some]
    assert all(told == judged for told, judged in found)
    assert any(told for told, _ in found)


@pytest.mark.parametrize("name", schema_names())
def test_every_keyword_of_the_schemas_is_known(name: str) -> None:
    for schema in _keywords(load_schema(name)):
        for keyword in schema:
            quick_check.check_of(keyword)


@settings(max_examples=effort(10, 100), deadline=None)
@given(data=st.data())
def test_marred_documents_are_told_as_by_jsonschema(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(_corpus()), label="document"))
    for _ in range(data.draw(st.integers(1, 2))):
        _mar(document, data)
    with pytest.MonkeyPatch.context() as patch:
        judged = _judge("deployment", document, patch)
    with suppress(quick_check.UnsupportedSchemaError):
        assert quick_check.fits("deployment", document) == judged


def _mar(document: Any, data: st.DataObject) -> None:
    """Replace a value of a document, take it away, add a key, or put what stands elsewhere in its place."""
    places = [one for one in _places(document) if one]
    if not places:
        return
    *before, last = data.draw(st.sampled_from(places), label="place")
    around = document
    for key in before:
        around = around[key]
    match data.draw(st.sampled_from(["replace", "drop", "add", "copy"])):
        case "drop":
            del around[last]
        case "add" if isinstance(around, dict):
            around[data.draw(st.sampled_from(["model", "path", "size", "x", "x-y", "providers", "batch"]))] = data.draw(
                _VALUES
            )
        case "copy":
            other = document
            for key in data.draw(st.sampled_from(places)):
                other = other[key]
            around[last] = copy.deepcopy(other)
        case _:
            around[last] = data.draw(_VALUES)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [1]}, True),
        ({"const": 1}, 1.0),
        ({"const": [True]}, [1]),
        ({"type": "integer"}, 64.0),
        ({"uniqueItems": True}, [1, True]),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1.0}]),
        ({"minimum": 1}, float("nan")),
        ({"items": False, "prefixItems": [True]}, [1, 2]),
        ({"if": {"type": "string"}, "else": False}, 1),
        ({"not": {"contains": {"const": "x"}}}, []),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ({"propertyNames": {"pattern": "^a"}}, {"b": 1}),
    ],
    ids=json.dumps,
)
def test_small_print_is_jsonschemas(schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def tells_nothing(*_: object) -> bool:
        raise quick_check.UnsupportedSchemaError

    told = quick_check.fits_schema(schema, value)
    monkeypatch.setattr(schema_check, "fits_schema", tells_nothing)
    assert schema_check.make_condition(schema)(value) == told


def test_what_is_not_known_is_not_told() -> None:
    with pytest.raises(quick_check.UnsupportedSchemaError):
        quick_check.fits_schema({"oneOf": [True]}, 1)
    with pytest.raises(quick_check.UnsupportedSchemaError):
        quick_check.fits_schema({"type": "object"}, {1, 2})
