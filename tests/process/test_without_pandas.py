"""pyarrow does without pandas in this program's own processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra tables")
_is_old = int(pyarrow.__version__.split(".")[0]) < 18

ARRAYS = "import pyarrow as pa; pa.array([1.0]); pa.scalar(['a'])"
SPARE = "from ortdeploy.process.without_pandas import spare_pandas; spare_pandas()"
SPARED = f"{SPARE}; {ARRAYS}"
FOUND = "import importlib.util; assert importlib.util.find_spec('pandas'); assert importlib.util.find_spec('pyarrow')"


PANDAS = """\
print('imported')
try:  # as the real one does, before it has a version
    import pyarrow
except ImportError:
    pass
__version__ = '0'
"""
"""A version that is too old for pyarrow to go on with."""


@pytest.mark.parametrize(
    ("script", "times"),
    [
        (ARRAYS, 1),  # what pyarrow does by itself; if it does no longer, the module can go
        (SPARED, 0),
        (f"{SPARED}; {FOUND}; import pandas", 1),
        (f"import pandas; {SPARED}", 1),
        (f"{SPARE}; import pandas; {ARRAYS}", 1),
    ],
    ids=["not spared", "spared", "imported by others", "imported before", "imported first"],
)
@pytest.mark.skipif(_is_old, reason="native code of pyarrow up to 17 looks for pandas again")
def test_pyarrow_alone_imports_no_pandas(script: str, times: int, tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text(PANDAS)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.split() == ["imported"] * times
