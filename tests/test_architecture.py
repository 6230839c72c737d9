"""docs/architecture.md shows the house that the import contracts hold."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
PACKAGE = REPOSITORY / "ortdeploy"


def contract(name: str) -> Any:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = [one for one in contracts if one["name"] == name]
    return found


def layers() -> list[set[str]]:
    """The layers of the contract, from the top, each with its modules."""
    found = contract("Imports go only downwards")
    assert found["exhaustive"]
    return [set(re.split(r" [:|] ", layer)) for layer in found["layers"]]


def rooms() -> set[str]:
    return {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


def test_there_are_at_most_nine_layers_and_every_room_is_in_one() -> None:
    named = [name for layer in layers() for name in layer]
    assert len(layers()) <= 9
    assert len(named) == len(set(named))
    assert rooms() <= set(named)


def test_no_module_and_no_folder_is_too_large_to_be_known() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in modules}
    assert {str(path.relative_to(PACKAGE)): many for path, many in lines.items() if many > 500} == {}
    folders = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in modules)
    assert {folder for folder, many in folders.items() if many > 50} == {"rules"}


@pytest.mark.parametrize("folder", ["ortdeploy", "tests", "benchmarks", "deployments"])
def test_no_module_imports_a_private_name_of_another(folder: str) -> None:
    assert [found for path in sorted((REPOSITORY / folder).rglob("*.py")) for found in private_imports(path)] == []


@pytest.mark.parametrize("folder", ["ortdeploy", "tests", "benchmarks", "deployments"])
def test_no_database_is_left_open(folder: str) -> None:
    """`with` ends a transaction of a connection and does not close it, which Python 3.13 tells when it is collected."""
    left = re.compile(r"with [^\n]*(?<!closing\()sqlite3\.connect\([^\n]* as ")
    modules = sorted((REPOSITORY / folder).rglob("*.py"))
    assert [path.name for path in modules if left.search(path.read_text(encoding="utf-8"))] == []


IMPORT = re.compile(r"from ortdeploy\S* import(?:[^(\n]*\n|.*?\n\s*\))", re.DOTALL)
"""An import up to its end, or beyond it."""


def private_imports(path: Path) -> list[str]:
    """The private names that a module imports, each with its place; most modules need not be parsed for it."""
    text = path.read_text("utf-8")
    if not any(re.search(r"\b_\w", found) for found in IMPORT.findall(text)):
        return []
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.module}.{one.name}"
        for node in imports
        for one in node.names
        if (node.module or "").startswith("ortdeploy") and one.name.startswith("_")
    ]


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12.0 to 3.12.3 take `?1` for a name, and warn of values that come in a sequence."""
    numbered = re.compile(r"\?\d")
    modules = sorted((REPOSITORY / "ortdeploy").rglob("*.py"))
    assert [path.name for path in modules if numbered.search(path.read_text(encoding="utf-8"))] == []


def test_the_picture_shows_the_layers() -> None:
    (picture,) = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    drawn = [set(re.findall(r"^        (\w+)", group, re.MULTILINE)) for group in picture.split("subgraph")[1:]]
    named = [layer - {"__main__"} for layer in layers()]
    assert [group - {"leaves"} for group in drawn] == [*named[:-1], named[-1] & rooms()]
    (leaves,) = re.findall(r'leaves\["(.+?)"\]', picture)
    assert set(leaves.split(", ")) == layers()[-1] - rooms()


def test_the_page_names_the_rooms_that_run_a_plan() -> None:
    (sentence,) = re.findall(r"Rooms that run a plan: (.+?)\.", PAGE, re.DOTALL)
    named = re.findall(r"`(\w+)`", sentence)
    assert [f"ortdeploy.{name}" for name in named] == contract("Doing never reads manifests")["source_modules"]


def test_every_room_has_tests_of_its_own() -> None:
    assert rooms() <= {path.parent.name for path in (REPOSITORY / "tests").rglob("test_*.py")}


def test_every_room_has_a_sentence() -> None:
    described = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    assert set(described) == rooms()
    assert len(described) == len(set(described))


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", PAGE))
    assert named
    for name in named - {"schemas/providers/"}:
        path = PACKAGE / name
        assert path.is_dir() or path.is_file() or path.with_suffix(".py").is_file(), name


def test_the_glossary_is_sorted_and_says_each_word_once() -> None:
    text = (REPOSITORY / "docs/glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert words == sorted(set(words))


def test_every_file_that_contributing_names_is_there() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text) if "<" not in name}
    assert len(named) > 20
    for name in named:
        assert (REPOSITORY / name).exists() or (PACKAGE / name).exists(), name


def test_a_test_that_uses_nothing_is_a_unit_test(request: pytest.FixtureRequest) -> None:
    """A fixture that all tests have must name nothing that marks them as about processes."""
    assert request.node.get_closest_marker("unit")
