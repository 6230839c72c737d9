"""What differs between two documents: every difference is told, at its place, and none where there is none."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.files.urls import MASK
from ortdeploy.planning.differences import NOTHING, Value, find_differences
from ortdeploy.providers.secrets import masked_document

_SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, math.nan, "", "a", "b", "1"])
_NAMES = st.sampled_from(["name", "provider", "a", "b", "a.b"])
DOCUMENTS = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=12
)


def lines(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    return [(one.path, one.old, one.new) for one in find_differences(Value.plain(old), Value.plain(new))]


@given(DOCUMENTS, DOCUMENTS)
def test_a_difference_is_told_exactly_where_there_is_one(old: Any, new: Any) -> None:
    same = json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    assert (lines(old, new) == []) is same
    assert lines(new, new) == []


@given(DOCUMENTS, DOCUMENTS)
def test_the_other_way_round_the_same_places_are_told(old: Any, new: Any) -> None:
    def shown(found: list[tuple[str, Any, Any]], first: int, second: int) -> list[str]:
        return sorted(f"{one[0]}: {one[first]} {one[second]}" for one in found)

    assert shown(lines(old, new), 1, 2) == shown(lines(new, old), 2, 1)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 1}, {"a": 1.0}, [("a", 1, 1.0)]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": None}, {}, [("a", None, NOTHING)]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [("a.c", 2, 3)]),
        ({}, {"a": {"b": {"c": 1}}}, [("a.b.c", NOTHING, 1)]),
        ({"a": 8}, {"a": {"size": 8}}, [("a", 8, {"size": 8})]),
        ({"a": {}}, {"a": {"b": 1}}, [("a.b", NOTHING, 1)]),
        ({"a": {}}, {}, [("a", {}, NOTHING)]),
        ({"x.y": 1}, {"x.y": 2}, [('["x.y"]', 1, 2)]),
        ({"a": [0.5, 0.5]}, {"a": [0.4, 0.5]}, [("a", [0.5, 0.5], [0.4, 0.5])]),
        ({"a": list(range(20))}, {"a": [*range(19), 7]}, [("a[19]", 19, 7)]),
        ({"a": [{"resize": 1}]}, {"a": [{"resize": 2}]}, [("a[0].resize", 1, 2)]),
        ([{"name": "x", "v": 1}], [{"name": "y", "v": 2}, {"name": "x", "v": 1}], [("[y].name", NOTHING, "y"), ("[y].v", NOTHING, 2)]),
        ([{"name": "x"}, {"name": "y"}], [{"name": "y"}, {"name": "x"}], [(" (order)", ["x", "y"], ["y", "x"])]),
        ([{"name": "x"}, {"name": "x"}], [{"name": "x"}], [("[1].name", "x", NOTHING)]),
        ({"i": [["a.png", 3]]}, {"i": [["b.png", 3], ["a.png", 4]]}, [("i[b.png]", NOTHING, ["b.png", 3]), ("i[a.png]", ["a.png", 3], ["a.png", 4])]),
    ],
)  # fmt: skip
def test_where_it_is_told(old: Any, new: Any, found: list[tuple[str, Any, Any]]) -> None:
    assert lines(old, new) == found


def test_a_secret_that_changed_is_told_and_not_shown() -> None:
    def document(key: str, password: Any) -> Value:
        data = {
            "models": {"m": {"run": {"config": {"azure.auth_key": key}}}},
            "chain": [{"provider": "Mine", "options": {"password": password, "tokenizer": "plain"}}],
            "url": f"https://me:{key}@host/x",
            "options": {"sets": [f"models.m.password={key}"]},
        }
        return Value(data, masked_document(data))

    found = list(find_differences(document("k1", [{"name": "s1"}]), document("k2", [{"name": "s2"}])))
    assert [one.path for one in found] == [
        'models.m.run.config["azure.auth_key"]', "chain[Mine].options.password", "url", "options.sets",
    ]  # fmt: skip
    assert (found[0].old, found[0].new) == (MASK, MASK)
    said = json.dumps([(one.path, one.old, one.new) for one in found])
    assert not any(secret in said for secret in ("k1", "k2", "s1", "s2"))
    assert "plain" not in said
