"""What plain scalars mean, and that what is written reads back the same."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.scalars import resolve_plain
from ortdeploy.manifest.write import flow


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("12", 12), ("-3", -3), ("+4", 4),
        ("0", 0), ("0x1f", 31), ("1.5", 1.5), (".5", 0.5), ("2.", 2.0), ("1e3", 1000.0), ("1e-3", 0.001), ("-1.5E+2", -150.0),
        ("tRue", "tRue"), ("v1.2.3", "v1.2.3"), ("1.2.3", "1.2.3"), ("y", "y"), ("n", "n"), ("e5", "e5"), ("-", "-"),
    ],
)  # fmt: skip
def test_known_answers(text: str, value: object) -> None:
    scalar = resolve_plain(text)
    assert scalar.value == value
    assert type(scalar.value) is type(value)
    assert scalar.problem is None


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**15), 10**15))
def test_numbers_read_back_as_themselves(number: float) -> None:
    scalar = resolve_plain(json.dumps(number))
    assert isinstance(scalar.value, int | float)
    assert math.isclose(scalar.value, number, rel_tol=0, abs_tol=0)


PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Co", "Zl", "Zp"]), max_size=12)


@given(
    st.recursive(
        PRINTABLE | st.integers(-999, 999) | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_is_written_reads_back(value: object) -> None:
    document, problems = parse_document(f"v: {flow(value)}\n".encode(), "m.yaml")
    assert not problems
    assert document is not None
    assert document.data["v"] == value
