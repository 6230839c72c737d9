"""Commands that are printed can be copied into a shell."""

import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.shell import command


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_shell_gets_the_words_of_a_command(words: list[str]) -> None:
    assert shlex.split(command(*words, windows=False)) == words


@pytest.mark.parametrize(
    ("word", "typed"),
    [
        (r"C:\models\m.yaml", r"C:\models\m.yaml"),
        ("--job", "--job"),
        (r"C:\my models\m.yaml", r'"C:\my models\m.yaml"'),
        ("a&b(1).yaml", '"a&b(1).yaml"'),
        ("@reads", '"@reads"'),
        ('say "a"', r'"say \"a\""'),
        ("my folder\\", '"my folder\\\\"'),
        ("", '""'),
    ],
)
def test_on_windows_words_are_quoted_as_both_shells_there_take_them(word: str, typed: str) -> None:
    assert command("ortdeploy", "try", word, windows=True) == f"ortdeploy try {typed}"


@pytest.mark.skipif(sys.platform == "win32", reason="other quotes there")
def test_a_shell_of_this_machine_is_the_default() -> None:
    assert command("ortdeploy", "try", "my model.yaml") == "ortdeploy try 'my model.yaml'"
