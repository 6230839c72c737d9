"""Text lines, WAV, TensorProto, raw tensors, and compressed files: what they hold, and what is wrong with them."""

import bz2
import gzip
import json
import lzma
import wave
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import DeclaredInput, InputFacts
from ortdeploy.results.rows import Block
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.types import ROWS, TensorType

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read(folder: Path, kind: str, names: Sequence[str], wanted: Wanted, start: int = 0) -> list[Block]:
    paths = [str(folder / name) for name in names]
    with SOURCES[kind].open_source(paths, str(folder), wanted) as source:
        return list(source.blocks(start, repeat(2)))


def probe(
    folder: Path, names: Sequence[str], declared: str | None = None, row_type: TensorType | None = None
) -> InputFacts:
    return probe_input(
        DeclaredInput(folder=str(folder), patterns=tuple(names), format=declared, row_type=row_type), frozenset()
    )


def test_text_has_a_row_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("eins\r\n\nzw\u00f6lf\n".encode() + b"\xff\nno end")
    assert probe(tmp_path, ["a.txt"]).columns == {"text": TensorType("string", (ROWS,))}
    wanted = Wanted(dtypes={"text": "string"}, keys=("row",))
    blocks = read(tmp_path, "text", ["a.txt"], wanted)
    assert [str(value) for block in blocks for value in block.columns["text"]] == ["eins", "", "zw\u00f6lf", "no end"]
    assert [(row.row, row.code, row.source) for block in blocks for row in block.failed] == [(3, "not-utf8", "a.txt:4")]
    assert [row for block in read(tmp_path, "text", ["a.txt"], wanted, start=2) for row in block.rows] == [2, 4]


@pytest.mark.parametrize("content", ["eins\nzwei\n".encode("utf-16"), b"eins\n" + b"\0" * 512])
def test_text_with_nul_bytes_is_none(tmp_path: Path, content: bytes) -> None:
    """In UTF-16, all lines but the first are UTF-8 with NUL bytes; and a file may end in them after a power failure."""
    (tmp_path / "a.txt").write_bytes(content)
    blocks = read(tmp_path, "text", ["a.txt"], Wanted(dtypes={"text": "string"}))
    good = [str(value) for block in blocks for value in block.columns["text"]]
    assert good == (["eins"] if content.startswith(b"e") else [])
    assert "NUL bytes" in [row.message for block in blocks for row in block.failed][-1]


def save_wav(path: Path, samples: np.ndarray, width: int) -> None:
    """Samples from -1 to 1, [frames, channels]."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(8000)
        whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i8")
        data = (whole + 128).astype(np.uint8) if width == 1 else whole.view(np.uint8).reshape(-1, 8)[:, :width]
        file.writeframes(np.ascontiguousarray(data).tobytes())


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_is_read_at_every_width(tmp_path: Path, width: int, channels: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (100, channels))
    save_wav(tmp_path / "a.wav", samples, width)
    save_wav(tmp_path / "b.wav", samples[:7], width)
    (tmp_path / "c.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:-5])
    (tmp_path / "d.wav").write_bytes(b"RIFF")
    facts = probe(tmp_path, ["*.wav"])
    assert facts.rows == 4
    assert facts.columns["samples"].shape == ((ROWS, None) if channels == 1 else (ROWS, channels, None))
    first, second = read(
        tmp_path, "wav", ["a.wav", "b.wav", "c.wav", "d.wav"], Wanted(dtypes={"samples": None, "rate": None})
    )
    found = np.asarray(first.columns["samples"][0])
    assert found.dtype == np.float32
    expected = samples[:, 0] if channels == 1 else samples.T
    assert np.abs(found - expected).max() < 3 / 2 ** (8 * width - 1) + 1e-6
    assert first.columns["samples"][1].shape[-1] == 7
    assert np.asarray(first.columns["rate"]).tolist() == [8000, 8000]
    assert [row.code for row in second.failed] == ["not-a-wav", "not-a-wav"]


def test_tensor_protos_hold_rows(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float16).reshape(4, 3)
    for name, part in (("a.pb", rows[:3]), ("b.pb", rows[3:])):
        (tmp_path / name).write_bytes(numpy_helper.from_array(part).SerializeToString())
    facts = probe(tmp_path, ["*.pb"])
    assert (facts.rows, facts.columns) == (4, {"array": TensorType("float16", (ROWS, 3))})
    blocks = read(tmp_path, "pb", ["a.pb", "b.pb"], Wanted(dtypes={"array": None}))
    assert np.concatenate([np.asarray(block.columns["array"]) for block in blocks]).tolist() == rows.tolist()
    (tmp_path / "c.pb").write_bytes(b"\xff" * 9)
    problem = probe(tmp_path, ["c.pb"]).problem
    assert problem is not None
    assert "cannot be read as a TensorProto" in problem.detail


def test_raw_tensors_are_what_the_manifest_says(tmp_path: Path) -> None:
    rows = np.arange(12, dtype="<f4").reshape(4, 3)
    (tmp_path / "a.raw").write_bytes(rows[:3].tobytes())
    (tmp_path / "b.raw").write_bytes(rows[3:].tobytes())
    row_type = TensorType("float32", (3,))
    facts = probe(tmp_path, ["*.raw"], row_type=row_type)
    assert (facts.rows, facts.columns) == (4, {"array": TensorType("float32", (ROWS, 3))})
    blocks = read(tmp_path, "raw", ["a.raw", "b.raw"], Wanted(dtypes={"array": None}, row_type=row_type))
    assert np.concatenate([np.asarray(block.columns["array"]) for block in blocks]).tolist() == rows.tolist()


@pytest.mark.parametrize("kind", ["raw", "npy", "npz"])
def test_bytes_that_are_no_booleans_are_refused(tmp_path: Path, kind: str) -> None:
    """Kernels compare bytes: of a mask of 0 and 255, where Where took the wrong branch, nothing was true."""
    mask, name = np.array([[0, 1], [1, 255]], np.uint8).view(bool), f"a.{kind}"
    row_type = TensorType("bool", (2,))
    wanted = Wanted(dtypes={"array": None}, row_type=row_type if kind == "raw" else None)
    save: dict[str, Callable[[Path, np.ndarray], object]] = {
        "raw": lambda path, rows: path.write_bytes(rows.tobytes()),
        "npy": np.save,
        "npz": lambda path, rows: np.savez(path, array=rows),
    }
    save[kind](tmp_path / name, mask[:1])
    (block,) = read(tmp_path, kind, [name], wanted)
    assert np.asarray(block.columns["array"]).tolist() == [[False, True]]
    save[kind](tmp_path / name, mask)
    with pytest.raises(OrtdeployError, match=rf"array of {name} has a byte of 255, and booleans are 0 or 1"):
        read(tmp_path, kind, [name], wanted)


@pytest.mark.parametrize(
    ("names", "row_type", "text"),
    [
        (["a.raw"], None, "Add dtype: and shape:"),
        (["a.raw"], TensorType("float32", (5,)), "36 bytes, which are not whole rows of 20 bytes"),
        (["a.npy"], TensorType("float32", (3,)), "dtype: and shape: are for raw tensors"),
        (["a.npy.gz"], None, "is compressed, which only csv, jsonl, text files may be"),
    ],
)
def test_what_does_not_go_with_a_format_is_said(
    tmp_path: Path, names: list[str], row_type: TensorType | None, text: str
) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(36))
    np.save(tmp_path / "a.npy", np.zeros((3, 3), np.float32))
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes()))
    problem = probe(tmp_path, names, row_type=row_type).problem
    assert problem is not None
    assert text in problem.detail


CONTENT = {
    "csv": b"x,name\n1,a\n2,b\n3,c\n",
    "jsonl": b"".join(json.dumps({"x": x, "name": n}).encode() + b"\n" for x, n in [(1, "a"), (2, "b"), (3, "c")]),
    "txt": b"1\n2\n3\n",
}


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("suffix", CONTENT)
def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path, suffix: str, packed: str) -> None:
    plain, name = tmp_path / f"a.{suffix}", f"b.{suffix}.{packed}"
    plain.write_bytes(CONTENT[suffix])
    (tmp_path / name).write_bytes(PACKERS[packed](CONTENT[suffix]))
    facts = probe(tmp_path, [name])
    assert facts.columns == probe(tmp_path, [plain.name]).columns
    kind = facts.format or ""
    wanted = Wanted(dtypes=dict.fromkeys(facts.columns, "string") if kind != "jsonl" else {"name": "string"})
    texts = [
        [
            [str(value) for value in block.columns[column]]
            for block in read(tmp_path, kind, [one], wanted)
            for column in wanted.dtypes
        ]
        for one in (plain.name, name)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "not compressed"])
def test_a_damaged_compressed_file_is_an_error_that_names_it(tmp_path: Path, packed: str, damage: str) -> None:
    content = PACKERS[packed](b"1\n" * 5000)
    (tmp_path / f"a.txt.{packed}").write_bytes(content[:-9] if damage == "cut" else b"plain text\n")
    with pytest.raises(OrtdeployError, match=rf"a\.txt\.{packed} cannot be"):
        read(tmp_path, "text", [f"a.txt.{packed}"], Wanted(dtypes={"text": "string"}))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.tsv", 'Write format: csv, delimiter: "\\t".'),
        ("a.json", "write format: jsonl"),
        ("a.xlsx", "Save the sheet as CSV"),
        ("a.odd", "Add format: to the input. Known: "),
    ],
)
def test_a_suffix_of_no_format_is_told_with_what_to_do(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_text("x\n1\n")
    problem = probe(tmp_path, [name]).problem
    assert problem is not None
    assert advice in problem.detail
