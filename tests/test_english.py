"""Docstrings, messages and documents are in plain English: phrases that were rewritten once stay out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

UNPLAIN = re.compile(
    r"\b(?:so many|so long|as far as|tell whether|take note|the way round|leave \S+ away"
    r"|(?:for|of|to|by|from) who)\b"
    r"|\bnone where\b",
    re.IGNORECASE,
)
"""Phrases for which plain English has others: how many, how long, until; if, whether; whoever, the caller."""


CONTINUED = re.compile(r"""["']\s*\n\s*[a-z]{0,2}["']""")
"""Where a text goes on in the next line of a module."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, or a document."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    if not UNPLAIN.search(CONTINUED.sub("", text)):
        return  # all modules as trees take a second
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("pattern", ["ortdeploy/**/*.py", "docs/**/*.md", "*.md"])
def test_phrases_that_were_rewritten_stay_out(pattern: str) -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line + text.count(chr(10), 0, match.start())}: {match[0]}"
        for path in sorted(REPOSITORY.glob(pattern))
        if path.name != "CHANGELOG.md"
        for line, text in texts(path)
        for match in UNPLAIN.finditer(text)
    ]
    assert found == []
