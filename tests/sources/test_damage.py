"""Files that are damaged anywhere: they are read, refused in words, or rows of them fail; never a traceback."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from pyarrow import feather, parquet
from support.models import scale_model

from ortdeploy.cli.main import main

ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
TABLE = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 4)})
LINES = "".join(json.dumps({"x": row.tolist()}) + "\n" for row in ROWS).encode()

WRITE: dict[str, Callable[[Path], object]] = {
    "a.npy": lambda path: np.save(path, ROWS),
    "a.npz": lambda path: np.savez(path, x=ROWS),
    "packed.npz": lambda path: np.savez_compressed(path, x=ROWS),
    "a.parquet": lambda path: parquet.write_table(TABLE, path),
    "a.arrow": lambda path: feather.write_feather(TABLE, path),
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES, mtime=0)),
    "a.pb": lambda path: path.write_bytes(numpy_helper.from_array(ROWS, "x").SerializeToString()),
}

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {name}}}
    output: {{path: out}}
    errors: {{max_failed: 100%}}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, bytes]:
    folder = tmp_path_factory.mktemp("files")
    scale_model(folder / "m.onnx")
    for name, write in WRITE.items():
        write(folder / name)
    return {folder / name: (folder / name).read_bytes() for name in WRITE}


def refuse(capsys: pytest.CaptureFixture[str], path: Path, raw: bytes) -> str:
    """Plan a job on a damaged file, and return what is said of it."""
    path.write_bytes(raw)
    (path.parent / "m.yaml").write_text(MANIFEST.format(name=path.name))
    code = main(["plan", str(path.parent / "m.yaml")])
    said = capsys.readouterr()
    assert code in {0, 1}, said.out + said.err
    return said.out if code else ""


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=250, deadline=None
)
@given(name=st.sampled_from(sorted(WRITE)), data=st.data())
def test_a_damaged_file_is_told_in_words(
    files: dict[Path, bytes], capsys: pytest.CaptureFixture[str], name: str, data: st.DataObject
) -> None:
    path, raw = next((path, raw) for path, raw in files.items() if path.name == name)
    begin = data.draw(st.integers(0, len(raw) - 1))
    gone = data.draw(st.sampled_from([0, 1, 4, 100]))
    refuse(capsys, path, raw[:begin] + data.draw(st.binary(max_size=8)) + raw[begin + gone :])


@pytest.mark.parametrize(
    ("name", "after", "new", "words"),
    [
        ("a.npy", b"'shape': ", b"(40, 4((((", "cannot be read as .npy"),
        ("packed.npz", b"x.npy", b"\xff" * 60, "cannot be read as .npz"),
        ("a.npz", b"PK\x03\x04", b"\x00" * 30, "cannot be read as .npz"),
        ("a.npy", b"\x93NUM", b"PI", "is not a .npy file"),
    ],
)
def test_what_numpy_and_zipfile_trip_over_is_said(
    files: dict[Path, bytes], capsys: pytest.CaptureFixture[str], name: str, after: bytes, new: bytes, words: str
) -> None:
    path, raw = next((path, raw) for path, raw in files.items() if path.name == name)
    begin = raw.index(after) + len(after)
    said = " ".join(refuse(capsys, path, raw[:begin] + new + raw[begin + len(new) :]).split())
    assert "error[unreadable-input]" in said
    assert words in said
