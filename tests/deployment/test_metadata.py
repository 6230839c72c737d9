"""What steps read of a model's metadata: names of classes however they are written, and none of another class."""

import pytest

from ortdeploy.deployment.metadata import parsed_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a', 'b']", ["a", "b"]),
        ("{1: 'b', 0: 'a'}", ["a", "b"]),
        ('{"0": "a", "1": "b"}', ["a", "b"]),
        ("a\nb\r\nc\u2028\n", ["a", "b", "c\u2028"]),
        ("a", []),
        ("{1: 'a', 2: 'b'}", []),
        ("{0: 'a', 2: 'b', 3: 'c'}", []),
    ],
)
def test_names_are_those_of_their_numbers(text: str, names: list[str]) -> None:
    """Of numbers from 1 on, or with a gap, each name would be that of the class before."""
    assert parsed_names(text) == names
