"""Columns of answers, by the JSON Schema that they fit."""

import json
from typing import Any

import pytest

from ortdeploy.tensors.answers import AnswerError, columns_of, read_answer

pytestmark = pytest.mark.unit

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "part": {"enum": ["pump", "valve"]},
        "note": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "urgent": {"type": "boolean"},
        "tags": {"type": "array"},
        "either": {"type": ["string", "null"]},
        "perhaps": {"type": "integer"},
    },
    "required": ["part", "note", "count", "share", "urgent", "tags", "either"],
}
ANSWER: dict[str, Any] = {
    "part": "pump", "note": "ä", "count": 3, "share": 1, "urgent": True, "tags": ["a", "ä"], "either": None,
}  # fmt: skip


def test_each_property_is_a_column_of_its_type() -> None:
    assert columns_of(SCHEMA) == {
        "part": "string", "note": "string", "count": "int64", "share": "float64", "urgent": "bool", "tags": "string",
        "either": "string", "perhaps": "string",
    }  # fmt: skip
    assert read_answer(json.dumps(ANSWER), SCHEMA) == {
        **ANSWER, "tags": '["a", "ä"]', "either": "null", "perhaps": "null",
    }  # fmt: skip


@pytest.mark.parametrize("schema", [None, {"type": "array"}, {"properties": []}, {"$ref": "#/x"}])
def test_a_schema_of_no_object_has_no_columns(schema: Any) -> None:
    assert columns_of(schema) == {}


@pytest.mark.parametrize("odd", [{}, {"required": 5}, {"properties": {"a": True}, "required": ["a"]}])
def test_an_odd_schema_gives_texts(odd: dict[str, Any]) -> None:
    assert set(columns_of({"properties": {"a": {"type": {}}}, "required": ["a"], **odd}).values()) == {"string"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": 1.5}, "no int64"),
        ({"count": True}, "no int64"),
        ({"count": 2**63}, "no int64"),
        ({"share": float("inf")}, "no float64"),
        ({"share": 10**400}, "no float64"),
        ({"share": "1"}, "no float64"),
        ({"note": None}, "no string"),
        ({"urgent": 1}, "no bool"),
    ],
)
def test_a_value_of_another_type_is_no_answer(change: dict[str, Any], why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        read_answer(json.dumps({**ANSWER, **change}), SCHEMA)


@pytest.mark.parametrize("text", ['{"part": "pu', "[]", "", "[" * 100_000])
def test_a_text_that_is_no_object_is_no_answer(text: str) -> None:
    with pytest.raises(AnswerError):
        read_answer(text, SCHEMA)
