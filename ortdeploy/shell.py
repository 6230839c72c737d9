"""Commands as text that can be copied into a shell: names with blanks or signs of the shell are quoted."""

import os
import re
import shlex

_PLAIN = re.compile(r"[\w+:./\\-][\w@%+=:,./\\-]*")
"""Words that mean themselves in PowerShell and in the command prompt."""


def command(*words: str, windows: bool = os.name == "nt") -> str:
    """Return the words of a command as a shell takes them, on Windows as both PowerShell and the command prompt do."""
    return " ".join(map(_quoted, words)) if windows else shlex.join(words)


def pip_install(package: str) -> str:
    """Return the command that installs a package, perhaps with an extra, in quotes that every shell takes."""
    return f'pip install "{package}"'


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    rest = len(word) - len(word.rstrip("\\"))  # a backslash before the last quote would take it into the word
    return '"' + word.replace('"', '\\"') + "\\" * rest + '"'
