"""Commands that are printed can be copied into a shell."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ortdeploy
from ortdeploy.shell import command, pip_install


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


def test_what_installs_a_package_is_in_quotes_that_every_shell_takes() -> None:
    """The command prompt of Windows takes no single quotes, and zsh no bare brackets."""
    assert pip_install("ortdeploy[ray]") == 'pip install "ortdeploy[ray]"'
    package = Path(ortdeploy.__file__).parent
    bare = re.compile(r"pip install ('|\w+\[)")
    assert [path.name for path in package.rglob("*.py") if bare.search(path.read_text(encoding="utf-8"))] == []
