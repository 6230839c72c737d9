"""Tables of modules give each when it is asked for, and each has the names of its protocol."""

import subprocess
import sys

import pytest

from ortdeploy.modules import Modules
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import Operation
from ortdeploy.running.reports.catalogue import REPORTS, ReportModule
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.protocol import SinkModule
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.protocol import SourceModule
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import Transform

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


def test_only_what_is_asked_for_is_imported() -> None:
    subprocess.run([sys.executable, "-c", LOOKED_THROUGH], check=True)


def test_a_name_that_is_not_there_is_none_of_the_table() -> None:
    table = Modules("ortdeploy.sinks", ("csv",), str)
    assert "arrow" not in table
    with pytest.raises(KeyError):
        table["arrow"]
    assert table["csv"] is table["csv"]
