"""Files that are damaged anywhere: they are read, refused in words, or rows of them fail; never a traceback."""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from pyarrow import feather, parquet
from support.effort import effort
from support.models import Shape, save_model, scale_model

from ortdeploy.cli.main import main
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import decoding, is_a_bug

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
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=effort(20, 250),
    deadline=None,
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


def test_what_numpy_would_leave_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """numpy reads the first of two arrays in a .npy, and the last of two members of one name."""
    scale_model(tmp_path / "m.onnx")
    one = io.BytesIO()
    np.save(one, ROWS)
    said = " ".join(refuse(capsys, tmp_path / "a.npy", one.getvalue() * 2).split())
    assert "bytes after its array, which would be ignored" in said
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", one.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", one.getvalue())
    assert "it holds x twice" in " ".join(refuse(capsys, tmp_path / "a.npz", archive.getvalue()).split())


def wav(*, width: int = 16, chunk: int = 4) -> bytes:
    """A recording whose header says of a sample, or of a chunk before the samples, what it likes."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, width)
    odd = b"LIST" + struct.pack("<I", chunk) + b"abcd"
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + odd + b"data" + struct.pack("<I", 4) + bytes(4)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("raw", [wav(width=112), wav(chunk=2**31), wav(chunk=2**32 - 1), wav()[:30], b"RIFF"])
def test_what_wave_and_numpy_trip_over_is_said(
    files: dict[Path, bytes], capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    said = refuse(capsys, next(iter(files)).parent / "a.wav", raw)
    assert "error[unreadable-input]" in said
    assert "a.wav" in said


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_names_of_an_arrow_schema_that_are_not_text_are_said(
    files: dict[Path, bytes], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Names are also in the footer of the file format: there, a column of the batches is not in the schema."""
    table = pa.table({"array": ROWS[:, 0], "other": ROWS[:, 1]})
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    whole = sink.getvalue().to_pybytes()
    raw = whole.replace(b"array", b"\xff\xferay").replace(b"other", b"oth\xffr")
    said = refuse(capsys, next(iter(files)).parent / "a.arrow", raw)
    assert "a.arrow" in said
    cut = whole.rindex(b"array") if kind == "file" else whole.index(b"array")
    assert "error" in refuse(capsys, next(iter(files)).parent / "a.arrow", whole[:cut] + b"brray" + whole[cut + 5 :])


def test_a_model_whose_names_are_not_text_is_refused(
    files: dict[Path, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = next(iter(files)).parent
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[1, 1])
    kind: tuple[int, Shape] = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    weights = {"w": np.ones((3, 3, 3, 3), np.float32)}
    path = save_model(folder / "odd.onnx", [node], {"x": kind}, {"y": kind}, weights)
    path.write_bytes(path.read_bytes().replace(b"strides", b"strid\xffs"))
    (folder / "odd.yaml").write_text("version: 1\nmodels: {m: {path: odd.onnx, providers: [CPU]}}\n")
    assert main(["plan", str(folder / "odd.yaml")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "error[unreadable-model]" in said
    assert "is not UTF-8 text" in said


class _Decoder:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("odd"), KeyError("x"), TypeError("no type"), struct.error("cut"), MemoryError(), ValueError()],
)
def test_whatever_content_causes_is_one_error_with_the_files_name(error: Exception) -> None:
    with pytest.raises(OrtdeployError, match=r"a\.bin cannot be read as a thing: "), decoding("a.bin", "a thing"):
        raise error


@pytest.mark.parametrize(
    "kind", [NameError, AttributeError, AssertionError, KeyError, IndexError, TypeError, ZeroDivisionError]
)
def test_a_mistake_of_a_decoder_is_damage_and_of_ours_is_a_bug(kind: type[Exception]) -> None:
    with pytest.raises(OrtdeployError), decoding("a.bin", "a thing"):
        _Decoder(kind("x")).read()
    here = compile("raise kind('x')", str(Path(is_a_bug.__code__.co_filename).with_name("ours.py")), "exec")
    with pytest.raises(kind), decoding("a.bin", "a thing"):
        exec(here, {"kind": kind})  # noqa: S102  a line that stands in a file of ortdeploy
