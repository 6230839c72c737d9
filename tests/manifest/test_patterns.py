"""Patterns end where texts end: a newline behind a name is part of it, for Python's `$` as for JSON Schema's."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.manifest.quick_check import fits_schema
from ortdeploy.manifest.schema_check import _validator_class
from ortdeploy.schemas import matches, schema_folder

PATTERNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\$)", re.DOTALL)
SOURCES = [
    one
    for one in sorted((REPOSITORY / "ortdeploy").rglob("*.py"))
    if "$" in (text := one.read_text()) and "re." in text
]
TAKES_PATTERNS = {
    f"re.{name}" for name in ("match", "search", "fullmatch", "compile", "sub", "subn", "split", "findall", "finditer")
}


def texts_of(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the pieces of text of which a pattern is made, through names of the module."""
    if isinstance(node, ast.Name) and node.id in constants:
        yield from texts_of(constants[node.id], {})
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def patterns_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each pattern that a module hands to `re`."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: one.value
        for one in tree.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.func) in TAKES_PATTERNS:
            yield from ((call.lineno, text) for text in texts_of(call.args[0], constants))


def test_no_pattern_of_the_code_ends_before_a_last_newline() -> None:
    found = [(path, line, text) for path in SOURCES for line, text in patterns_in(path)]
    assert len(found) > 20
    loose = [(path.name, line, text) for path, line, text in found if any(one[1] for one in PATTERNS.finditer(text))]
    assert loose == []


def patterns_of(schema: Any) -> Iterator[str]:
    """Yield the patterns of a schema, for texts and for keys."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from schema.get("patternProperties", {}) if isinstance(schema.get("patternProperties"), dict) else ()
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns_of(one)


OF_SCHEMAS = sorted(
    {one for path in schema_folder().rglob("*.json") for one in patterns_of(json.loads(path.read_text()))}
)
WHOLE = [one for one in OF_SCHEMAS if one.startswith("^") and one.endswith("$") and not one.endswith("\\$")]


def test_most_patterns_are_of_whole_texts() -> None:
    assert len(WHOLE) > 50


@pytest.mark.quick(*range(0, len(WHOLE), 8))
@pytest.mark.parametrize("pattern", WHOLE)
def test_a_newline_behind_what_matches_counts(pattern: str) -> None:
    """What stands between `^` and `$` says whether a newline may be there; checked by `fullmatch` alone."""

    @settings(max_examples=effort(2, 50), suppress_health_check=list(HealthCheck))
    @given(st.from_regex(re.compile(pattern[1:-1]), fullmatch=True), st.sampled_from(["\n", "\r", "\u2028", ""]))
    def check(text: str, end: str) -> None:
        wanted = re.fullmatch(pattern[1:-1], text + end) is not None
        assert matches(pattern, text + end) == wanted
        for schema, value in (
            ({"pattern": pattern}, text + end),
            ({"patternProperties": {pattern: True}, "additionalProperties": False}, {text + end: 1}),
            ({"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}, {text + end: 1}),
        ):
            assert fits_schema(schema, value) == wanted
            assert _validator_class()(schema).is_valid(value) == wanted

    check()


def test_an_escape_and_a_sign_in_a_set_stay_what_they_are() -> None:
    assert matches(r"^\$a$", "$a")
    assert not matches(r"^\$a$", "$a\n")
    assert matches("^[$]$", "$")
    assert matches("^(a|$)", "")
    assert not matches("^(a|$)", "\n")
