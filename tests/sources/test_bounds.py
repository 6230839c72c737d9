"""What the plan reads of an input is bounded by the job's memory limit, however much a small file claims or holds.

Each case is planned in a process of its own, which says how much it took at most: a fork of a small Python that has
loaded what every plan needs, and nothing of the tests.
"""

import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from onnx import TensorProto, helper
from pyarrow import parquet
from support.models import Shape, save_model

MIB = 1024 * 1024
LIMIT = 300 * MIB
HUGE = 320 * MIB
"""What the files hold, and what a reader without bounds would take, at least."""

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {name}, columns: {{x: {column}}}}}
    output: {{path: out}}
    limits: {{memory: 300MiB}}
"""

PLANNER = """
import json, os, sys
import ortdeploy.graph.model, ortdeploy.planning.workflow, ortdeploy.runtime.probe, onnxruntime
from ortdeploy.cli.main import main
from ortdeploy.process.memory import peak_memory
for folder in map(str.strip, sys.stdin):
    child = os.fork()
    if not child:
        os.chdir(folder)
        sys.stdout = sys.stderr = open("said.txt", "w", encoding="utf-8")
        code = main(["plan", "m.yaml"])
        sys.stdout.flush()
        with open("ended.json", "w") as file:
            json.dump({"code": code, "peak": peak_memory()}, file)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def zeros(count: int) -> bytes:
    """Gzip of so many zeros, in members of a MiB."""
    return gzip.compress(b"0" * MIB) * (count // MIB)


def npz(path: Path, *, shape: tuple[int, ...] = (HUGE // 16, 4), fortran: bool = False) -> None:
    """An archive of zeros, all from one compressed piece; in Fortran order its rows do not lie one after the other.

    Its checksum is wrong, which only a reader that has read all of it finds.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": fortran, "shape": shape})
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    first, again = (packer.compress(one) + packer.flush(zlib.Z_FULL_FLUSH) for one in (header.getvalue(), bytes(MIB)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", first + again * (HUGE // MIB) + packer.flush())
        (entry,) = archive.filelist
        entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, len(header.getvalue()) + HUGE


def png(path: Path, width: int, height: int) -> None:
    """A picture of one colour, written in pieces."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    line = bytes(1 + 3 * width)
    first, again = (packer.compress(line) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + again * (height - 1)  # without an end, which no reader comes to
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def arrow(path: Path) -> None:
    """A compressed record batch, which is decompressed whole."""
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(HUGE // 4, np.float32)), 4)})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_batch(table.to_batches()[0])


def pages(path: Path) -> None:
    """A column that is one page, which is decompressed whole."""
    table = pa.table({"x": pa.array(np.zeros(67_108_864, np.float32))})
    table = pa.table(dict.fromkeys(("x", "y"), table["x"]))
    parquet.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=False,
        data_page_size=2**31 - 1,
        write_batch_size=2**30,
        max_rows_per_page=2**30,
        row_group_size=2**26,
    )


def dictionary(path: Path) -> None:
    """A text of a megabyte that many rows have."""
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), pa.array(["0" * (MIB - 100)]))
    parquet.write_table(pa.table({"x": values}), path)


def wav(path: Path) -> None:
    """A header that claims 4 GiB of samples."""
    size = 2**32 - 100
    form = struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size)
    path.write_bytes(b"RIFF" + struct.pack("<I", size) + body + bytes(1000))


def claims(path: Path) -> None:
    """A header that claims terabytes."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 4)})


def long_header(path: Path) -> None:
    """A header of 480 MiB in a file with a hole."""
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", HUGE))
        file.truncate(HUGE + 100)


FLOAT, UINT8, TEXT = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.STRING
Write = Callable[[Path], object]

CASES: dict[str, tuple[str, int, Shape, Write, tuple[str, ...]]] = {
    "rows.npz": ("x", FLOAT, [4], npz, ()),
    "fortran.npz": ("x", FLOAT, [4], lambda path: npz(path, fortran=True), ("unusable-rows", "held whole, takes 320 MiB of memory")),
    "one.npz": ("x", FLOAT, ["n"], lambda path: npz(path, shape=(1, HUGE // 4)), ("one.npz", "300 MiB")),
    "line.jsonl.gz": ("x", FLOAT, [4], lambda path: path.write_bytes(zeros(HUGE)), ("line.jsonl.gz:1", "300 MiB")),
    "line.txt.gz": ("text", TEXT, [], lambda path: path.write_bytes(zeros(HUGE)), ("line.txt.gz:1", "300 MiB")),
    "header.csv.gz": ("x", FLOAT, [], lambda path: path.write_bytes(zeros(HUGE)), ("header.csv.gz:1", "300 MiB")),
    "cell.csv.gz": (
        "x", FLOAT, [], lambda path: path.write_bytes(gzip.compress(b"x\n") + zeros(HUGE)), ("cell.csv.gz:2", "300 MiB"),
    ),
    "bomb.png": ("pixels", UINT8, ["h", "w", 3], lambda path: png(path, 11_000, 11_000), ("11,000 x 11,000", "300 MiB")),
    "bomb.arrow": ("x", FLOAT, [4], arrow, ("unusable-rows", "the largest record batch")),
    "pages.parquet": ("x", FLOAT, [], pages, ("unusable-rows", "the largest pages")),
    "text.parquet": ("x", TEXT, [], dictionary, ()),
    "claim.wav": ("samples", FLOAT, ["n"], wav, ("claim.wav",)),
    "claim.npy": ("array", FLOAT, [4], claims, ("cannot be read as .npy",)),
    "header.npy": ("array", FLOAT, [4], long_header, ("cannot be read as .npy",)),
}  # fmt: skip


Planner = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    """Plan what is in a folder; return its exit code, and its peak of memory in bytes."""
    with started() as process:

        def plan(folder: Path) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", "it is planned, however that ends"
            ended: dict[str, Any] = json.loads((folder / "ended.json").read_text())
            return ended

        yield plan


@contextmanager
def started() -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-W", "ignore", "-c", PLANNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        yield process


@pytest.mark.process
@pytest.mark.quick(
    *("fortran.npz", "cell.csv.gz", "bomb.png", "text.parquet", "claim.wav"),
)
@pytest.mark.parametrize("name", CASES)
def test_a_plan_takes_no_more_than_the_limit(planner: Planner, tmp_path: Path, name: str) -> None:
    column, kind, shape, write, words = CASES[name]
    types = (kind, ["batch", *shape])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": types}, {"y": types})
    write(tmp_path / name)
    assert (tmp_path / name).stat().st_blocks * 512 < 32 * MIB
    (tmp_path / "m.yaml").write_text(MANIFEST.format(name=name, column=column))
    ended = planner(tmp_path)
    text = " ".join((tmp_path / "said.txt").read_text(encoding="utf-8").split())
    assert ended["peak"] < LIMIT, f"{ended['peak'] // MIB} MiB: {text}"
    assert ended["code"] in {0, 1}, text
    assert all(word in text for word in words), text
