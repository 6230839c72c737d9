"""An input that holds something else than its suffix or `format:` says is refused by plan: what it is, what to write."""

import bz2
import gzip
import io
import lzma
import sqlite3
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from PIL import Image
from pyarrow import feather, orc, parquet
from support.effort import effort
from support.models import save_model

from ortdeploy.facts.data import DeclaredInput, InputFacts
from ortdeploy.files.content import mistaken, recognise
from ortdeploy.sources.catalogue import FILE_IS_ROW, SOURCES
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.tensors.types import TensorType

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
TABLE = pa.table({"x": [1.5, 2.5]})
PACKAGES = frozenset({"pyarrow", "PIL", "av"})


def recording(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(200))


def array(path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, ROWS)
    path.write_bytes(buffer.getvalue())


def archive(path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=ROWS)
    path.write_bytes(buffer.getvalue())


def picture(path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8)).save(path, kind)


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()


WRITE: dict[str, Callable[[Path], object]] = {
    "csv": lambda path: path.write_text("x,y\n1,2\n"),
    "jsonl": lambda path: path.write_text('{"x": 1}\n'),
    "text": lambda path: path.write_text("grün ist die Farbe\n" * 40),
    "npy": array,
    "npz": archive,
    "parquet": lambda path: parquet.write_table(TABLE, path),
    "arrow": lambda path: feather.write_feather(TABLE, str(path), compression="uncompressed"),
    "wav": recording,
    "png": lambda path: picture(path, "PNG"),
    "jpeg": lambda path: picture(path, "JPEG"),
    "gif": lambda path: picture(path, "GIF"),
    "bmp": lambda path: picture(path, "BMP"),
    "tiff": lambda path: picture(path, "TIFF"),
    "webp": lambda path: picture(path, "WEBP"),
    "pb": lambda path: path.write_bytes(numpy_helper.from_array(ROWS).SerializeToString()),
    "gz": lambda path: path.write_bytes(gzip.compress(b'{"x": 1}\n')),
    "bz2": lambda path: path.write_bytes(bz2.compress(b'{"x": 1}\n')),
    "xz": lambda path: path.write_bytes(lzma.compress(b'{"x": 1}\n')),
    "orc": lambda path: orc.write_table(TABLE, path),
    "database": database,
    "utf-16": lambda path: path.write_text("x,y\n1,2\n", encoding="utf-16"),
    "pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"),
    "page": lambda path: path.write_text("<!DOCTYPE html>\n<html><body>Not found</body></html>"),
}

IS = {
    "npy": "a .npy array",
    "npz": "an .npz archive",
    "parquet": "a Parquet table",
    "arrow": "an Arrow table",
    "wav": "a WAV recording",
    "png": "a PNG image",
    "jpeg": "a JPEG image",
    "gif": "a GIF image",
    "bmp": "a BMP image",
    "tiff": "a TIFF image",
    "webp": "a WebP image",
    "gz": "gzip-compressed",
    "bz2": "bzip2-compressed",
    "xz": "xz-compressed",
    "orc": "an ORC table",
    "database": "an SQLite database",
    "pointer": "a Git-LFS pointer",
}
"""What is what it is in the place of any format."""

READ_BY = {"png": "image", "jpeg": "image", "gif": "image", "bmp": "image", "tiff": "image", "webp": "image"}

TEXT_REMEDY = "Write format: csv, jsonl or text."

TABLES = [name for name in SOURCES if name not in {*FILE_IS_ROW, "bytes", "raw"}]


def probe(folder: Path, name: str, declared: str | None = None, row_type: TensorType | None = None) -> InputFacts:
    return probe_input(
        DeclaredInput(folder=str(folder), patterns=(name,), format=declared, row_type=row_type), PACKAGES
    )


@pytest.mark.parametrize("content", IS)
def test_content_of_another_format_is_named_with_what_to_write(tmp_path: Path, content: str) -> None:
    reads = READ_BY.get(content, content)
    WRITE[content](tmp_path / "original")
    for form in TABLES:
        for declared, name in ((None, f"a{SOURCES[form].SUFFIXES[0]}"), (form, "a.anything")):
            (tmp_path / name).write_bytes((tmp_path / "original").read_bytes())
            problem = probe(tmp_path, name, declared).problem
            if form == reads:
                assert problem is None
                continue
            assert problem is not None
            said = f"format: {form} is written" if declared else f"by its suffix its format is {form}"
            assert problem.detail.startswith(f"{name} is {IS[content]}, and {said}. ")
            assert (f"Write format: {reads}." in problem.detail) == (reads in SOURCES)


@pytest.mark.parametrize("content", ["csv", "text"])
@pytest.mark.parametrize("form", ["npy", "npz", "parquet", "arrow", "pb"])
def test_text_is_no_binary_format(tmp_path: Path, content: str, form: str) -> None:
    WRITE[content](tmp_path / f"a.{form}")
    problem = probe(tmp_path, f"a.{form}").problem
    assert problem is not None
    assert problem.detail == f"a.{form} is text, and by its suffix its format is {form}. {TEXT_REMEDY}"


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("jsonl", "a.csv", "a.csv is JSON text, and by its suffix its format is csv. Write format: jsonl."),
        ("page", "a.csv", "a.csv is a web page, and by its suffix its format is csv. Download the file itself."),
        ("page", "a.jsonl", "a.jsonl is a web page"),
        ("utf-16", "a.csv", "a.csv is text in UTF-16, and by its suffix its format is csv. Save it as UTF-8."),
        ("gz", "a.jsonl", "a.jsonl is gzip-compressed, and by its suffix its format is jsonl. Give it the suffix .gz."),
        (
            "jsonl",
            "a.jsonl.gz",
            "a.jsonl.gz is JSON text, and its suffix .gz says otherwise. Name it by what it holds.",
        ),
        ("csv", "a.csv.xz", "a.csv.xz is not compressed, and its suffix .xz says otherwise."),
        ("gz", "a.csv.bz2", "a.csv.bz2 is gzip-compressed, and its suffix .bz2 says otherwise."),
        ("gz", "a.csv.gz", "a.csv.gz is JSON text, and by its suffix its format is csv. Write format: jsonl."),
        ("gz", "a.parquet", "a.parquet is gzip-compressed, and by its suffix its format is parquet. Unpack it."),
    ],
)
def test_texts_and_what_is_compressed(tmp_path: Path, content: str, name: str, words: str) -> None:
    WRITE[content](tmp_path / name)
    problem = probe(tmp_path, name).problem
    assert problem is not None
    assert problem.detail.startswith(words)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("jpeg", "a.png"),
        ("jsonl", "a.txt"),
        ("page", "a.txt"),
        ("csv", "a.txt"),
        ("gz", "a.jsonl.gz"),
        ("bz2", "a.jsonl.bz2"),
        ("pb", "a.pb"),
        *((form, f"a.{form}") for form in ("csv", "jsonl", "npy", "npz", "parquet", "arrow")),
    ],
)
def test_what_a_format_reads_passes(tmp_path: Path, content: str, name: str) -> None:
    WRITE[content](tmp_path / name)
    assert probe(tmp_path, name).problem is None


def test_raw_numbers_may_begin_with_any_bytes_but_not_as_another_file_does(tmp_path: Path) -> None:
    four = TensorType("uint8", (4,))
    for name, raw in {"a.raw": b"\x1f\x8b\x08\x00", "b.raw": b"\xff\xd8\xff\xe0", "c.raw": b'{"a"'}.items():
        (tmp_path / name).write_bytes(raw)
        assert probe(tmp_path, name, row_type=four).problem is None
    array(tmp_path / "d.raw")
    problem = probe(tmp_path, "d.raw", row_type=four).problem
    assert problem is not None
    assert problem.detail == "d.raw is a .npy array, and by its suffix its format is raw. Write format: npy."
    assert probe(tmp_path, "d.raw", "raw", row_type=four).problem is None


@pytest.mark.parametrize("first", ["ID3", "ORC", "PAR1", "GGUF", "GIF8", "OggS", "fLaC"])
def test_a_column_may_be_called_as_other_files_begin(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.csv").write_text(f"{first},x\n1,2\n")
    assert list(probe(tmp_path, "a.csv").columns) == [first, "x"]


def test_a_file_that_is_another_among_many_is_found(tmp_path: Path) -> None:
    for name in "abc":
        WRITE["jsonl"](tmp_path / f"{name}.jsonl")
    WRITE["npy"](tmp_path / "b.jsonl")
    problem = probe(tmp_path, "*.jsonl").problem
    assert problem is not None
    assert problem.detail.startswith("b.jsonl is a .npy array")


@pytest.mark.parametrize(("form", "content"), [("image", "parquet"), ("wav", "png"), ("image", "text")])
def test_where_each_file_is_a_row_that_row_says_what_it_is(cli: Cli, tmp_path: Path, form: str, content: str) -> None:
    kind, sizes, column = (2, ["n", "h", "w", "c"], "pixels") if form == "image" else (1, ["n", "t"], "samples")
    save_model(
        tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, sizes)}, {"y": (kind, sizes)}
    )
    suffix = SOURCES[form].SUFFIXES[0]
    WRITE["bmp" if form == "image" else "wav"](tmp_path / f"0{suffix}")
    WRITE[content](tmp_path / f"1{suffix}")
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n    batch: {size: 1}\n"
        f'    input: {{path: "*{suffix}", columns: {{x: {column}}}}}\n    output: {{path: out, format: jsonl}}\n'
    )
    said = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    detail = next(one["detail"] for one in said if one["rule"] == "unusable-rows")
    right = "Replace the file. If the whole input is like this, write format: "
    assert f"it is {IS.get(content, 'text')}. {right}" in detail, "the other files are right, and so is the format"
    assert str(tmp_path) not in detail


def test_plan_refuses_such_an_input_with_one_diagnostic(cli: Cli, deployment: Path) -> None:
    WRITE["png"](deployment / "data.csv")
    manifest = deployment / "m.yaml"
    manifest.write_text(manifest.read_text().replace("data.npy", "data.csv"))
    result = cli("plan", manifest, "--format", "json")
    (found,) = result.json["diagnostics"]
    assert (result.code, found["rule"]) == (1, "unreadable-input")
    assert found["detail"] == "data.csv is a PNG image, and by its suffix its format is csv. Write format: image."


@settings(max_examples=effort(50, 1000), deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_are_something_or_nothing(raw: bytes) -> None:
    recognise(raw)
    for form in SOURCES:
        content = mistaken(form, raw)
        assert content is None or form not in content.formats


@settings(max_examples=effort(50, 1000), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["float32", "int64", "uint8"]))
def test_numbers_are_mistaken_for_nothing(seed: int, dtype: str) -> None:
    raw = np.random.default_rng(seed).integers(0, 255, 600, np.uint8).view(dtype if 600 % 8 == 0 else "uint8")
    assert mistaken("raw", raw.tobytes()) is None


def test_an_archive_is_told_by_its_first_name() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=ROWS)
    found = recognise(buffer.getvalue())
    assert found is not None
    assert found.what == "an .npz archive"
