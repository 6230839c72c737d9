"""Tables of modules give each when it is asked for, and each has the names of its protocol."""

import subprocess
import sys
from collections.abc import Collection

import pytest
from conftest import REPOSITORY

from ortdeploy.cli.command_line.arguments import COMMANDS
from ortdeploy.modules import Modules
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import Operation
from ortdeploy.reports.catalogue import REPORTS, ReportModule
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.protocol import SinkModule
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.protocol import SourceModule
from ortdeploy.starters.catalogue import FAMILIES
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import Transform

PACKAGE = REPOSITORY / "ortdeploy"

LOOKED_THROUGH = """
import sys
from ortdeploy.sources.catalogue import SOURCES
assert "csv" in SOURCES and "xlsx" not in SOURCES and len(list(SOURCES)) == len(SOURCES)
assert "ortdeploy.sources.csv" not in sys.modules
SOURCES["csv"]
assert "ortdeploy.sources.csv" in sys.modules and "ortdeploy.sources.jsonl" not in sys.modules
"""

MODULES = [
    *((SourceModule, module) for module in SOURCES.values()),
    *((SinkModule, module) for module in SINKS.values()),
    *((ReportModule, module) for module in REPORTS.values()),
    *((Transform, held.module) for table in (PREPARE, POSTPROCESS) for held in table.values()),
    *((Operation, held.module) for held in OPERATIONS.values()),
]


@pytest.mark.parametrize(("protocol", "module"), MODULES, ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_a_module_has_the_names_of_its_protocol(protocol: type, module: object) -> None:
    names = {*vars(protocol), *vars(protocol).get("__annotations__", {})}
    assert [name for name in names if not name.startswith("_") and not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("folder", "sign", "table"),
    [
        ("sources", "def open_source(", SOURCES),
        ("sinks", "def open_sink(", SINKS),
        ("transforms", "CONTRACT =", {*PREPARE, *POSTPROCESS}),
        ("operations", "CONTRACT =", OPERATIONS),
        ("reports", "FILE =", REPORTS),
        ("starters", "def recognise(", {str(getattr(one, "__name__")).rpartition(".")[2] for one in FAMILIES}),  # noqa: B009  a module's
        ("cli/commands", "def run(", COMMANDS),
    ],
)
def test_every_module_of_its_kind_is_in_the_table(folder: str, sign: str, table: Collection[str]) -> None:
    modules = [path for path in (PACKAGE / folder).glob("*.py") if path.stem not in {"catalogue", "protocol"}]
    found = {path.stem for path in modules if f"\n{sign}" in path.read_text(encoding="utf-8")}
    assert found
    assert found - set(table) == set()


def test_every_command_has_its_module() -> None:
    assert [name for name in COMMANDS if not (PACKAGE / f"cli/commands/{name}.py").is_file()] == []


def test_only_what_is_asked_for_is_imported() -> None:
    subprocess.run([sys.executable, "-c", LOOKED_THROUGH], check=True)


def test_a_name_that_is_not_there_is_none_of_the_table() -> None:
    table = Modules("ortdeploy.sinks", ("csv",), str)
    assert "arrow" not in table
    with pytest.raises(KeyError):
        table["arrow"]
    assert table["csv"] is table["csv"]
