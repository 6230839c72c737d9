"""Bytes of files as rows: models that read a file's ends, and pictures that are decoded in the graph."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli, read_rows
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image
from support.models import save_model

from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.transforms.catalogue import PREPARE

FILES = {
    "plain.txt": b"  some text of a file\n" * 40,
    "short.txt": b"\n\n hello world, it is short \t\n",
    "blank.txt": b" \n\t" * 3000,
    "code.py": b"import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n" * 300,
    "page.html": b"<!doctype html>\n<html><body><p>One</p></body></html>\n" * 9,
    "data.json": json.dumps({"rows": [{"id": number, "name": "x"} for number in range(3000)]}).encode(),
    "noise.bin": np.random.default_rng(3).integers(0, 256, 9000, np.uint8).tobytes(),
    "packed.gz": b"\x1f\x8b\x08\x00" + bytes(range(256)) * 20,
    "edge.bin": b" " * 4096 + b"x" * 4096,
    "fits.bin": b"a" * 4096,
}
Kind = tuple[int, list[int | str | None]]
ENDS = """\
version: 1
models:
  join: {path: join.onnx}
  kind: {path: kind.onnx}
pipelines:
  identify:
    steps:
      - {run: join, in: {start: $start, end: $end}, out: {bytes: bytes}}
      - {run: kind, in: {bytes: $bytes}, out: {target_label: scores}}
    outputs: {scores: $scores}
jobs:
  run:
    pipeline: identify
    input: {path: inbox, format: bytes, columns: {start: data, end: data}, key: [path, size]}
    prepare:
      start: [{head: 4096}, {strip: start}, {head: 1024}, {cast: int32}, {pad: 1024, value: 256}]
      end: [{tail: 4096}, {strip: end}, {tail: 1024}, {cast: int32}, {pad: 1024, value: 256, side: start}]
    output: {path: out}
    batch: {size: 1}
"""


def joining(path: Path) -> None:
    half: Kind = (TensorProto.INT32, ["batch", 1024])
    node = helper.make_node("Concat", ["start", "end"], ["bytes"], axis=1)
    save_model(path, [node], {"start": half, "end": half}, {"bytes": (TensorProto.INT32, ["batch", 2048])})


def echo(path: Path) -> None:
    """A model that gives back what it is fed."""
    kind: Kind = (TensorProto.INT32, ["batch", 2048])
    save_model(
        path, [helper.make_node("Identity", ["bytes"], ["target_label"])], {"bytes": kind}, {"target_label": kind}
    )


def identify(folder: Path, cli: Cli, files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    joining(folder / "join.onnx")
    (folder / "inbox").mkdir()
    for name, content in files.items():
        (folder / "inbox" / name).write_bytes(content)
    (folder / "m.yaml").write_text(ENDS)
    done = cli("apply", folder / "m.yaml", "-q")
    assert done.code == 0, done.err
    return {Path(row["path"]).name: row for row in read_rows(folder / "out")}


def features(content: bytes) -> list[int]:
    """What the model reads of a file, by Python's own functions on bytes."""
    start, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return [*start, *[256] * (1024 - len(start)), *[256] * (1024 - len(end)), *end]


def test_ends_of_files_reach_the_model_as_pythons_functions_cut_them(cli: Cli, tmp_path: Path) -> None:
    echo(tmp_path / "kind.onnx")
    rows = identify(tmp_path, cli, {**FILES, "empty": b""})
    assert {name: row["scores"] for name, row in rows.items()} == {
        name: features(content) for name, content in {**FILES, "empty": b""}.items()
    }
    assert {name: row["size"] for name, row in rows.items()} == {n: len(c) for n, c in {**FILES, "empty": b""}.items()}


def test_magikas_model_says_of_every_file_what_magika_says(cli: Cli, tmp_path: Path) -> None:
    magika = pytest.importorskip("magika")
    (model,) = Path(magika.__file__).parent.glob("models/*/model.onnx")
    (tmp_path / "kind.onnx").write_bytes(model.read_bytes())
    reference = magika.Magika()
    files = FILES | {path.name: path.read_bytes() for path in Path(__file__).parent.glob("*.py")}
    rows = identify(tmp_path, cli, files)
    labels = json.loads(model.with_name("config.min.json").read_text())["target_labels_space"]
    seen = 0
    for name in files:
        says = reference.identify_path(tmp_path / "inbox" / name).prediction
        if says.dl.label == "undefined":  # too little but white space: magika asks no model
            continue
        scores = rows[name]["scores"]
        assert labels[int(np.argmax(scores))] == says.dl.label
        assert max(scores) == pytest.approx(says.score, rel=1e-6)
        seen += 1
    assert seen > len(FILES)


def apply(options: dict[str, Any], row: np.ndarray) -> list[int]:
    tensor = TensorType(row.dtype.name, (ROWS, None))
    (made,) = PREPARE[next(iter(options))].build(options, tensor)(row[None])
    assert made.dtype == row.dtype
    return [int(value) for value in made[0]]


@given(content=st.binary(max_size=60) | st.text(" \n\tab\x0b", max_size=30).map(str.encode), size=st.integers(1, 70))
def test_steps_on_bytes_do_what_python_does(content: bytes, size: int) -> None:
    row = np.frombuffer(content, np.uint8)
    assert bytes(apply({"head": size}, row)) == content[:size]
    assert bytes(apply({"tail": size}, row)) == content[-size:]
    assert bytes(apply({"strip": "both"}, row)) == content.strip()
    assert bytes(apply({"strip": "start"}, row)) == content.lstrip()
    assert bytes(apply({"strip": "end"}, row)) == content.rstrip()
    assert bytes(apply({"strip": "both", "of": [0, 97]}, row)) == content.strip(b"\x00a")
    assert bytes(apply({"pad": size, "value": 7}, row)) == content.ljust(size, b"\x07")
    assert bytes(apply({"pad": size, "side": "start"}, row)) == content.rjust(size, b"\x00")


@given(st.binary(max_size=40), st.integers(1, 30), st.integers(0, 30))
def test_the_ends_of_a_file_are_enough_for_steps_that_take_its_ends(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, head: int, tail: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "ends.bin"
    path.write_bytes(content)
    with open_input(
        "bytes", [str(path)], str(path.parent), Wanted(dtypes={"data": "uint8"}, ends=(head, tail))
    ) as source:
        (block,) = source.blocks(0, iter([1]))
    read = bytes(np.asarray(block.columns["data"][0]))
    assert len(read) == min(head + tail, len(content))
    assert read[:head] == content[:head]
    assert not tail or read[-tail:] == content[-tail:]


def test_of_a_large_file_only_the_ends_are_read(cli: Cli, tmp_path: Path) -> None:
    echo(tmp_path / "kind.onnx")
    (tmp_path / "inbox").mkdir()
    with (tmp_path / "inbox/large.bin").open("wb") as file:
        file.truncate(1 << 40)  # more than there is memory
    joining(tmp_path / "join.onnx")
    (tmp_path / "m.yaml").write_text(ENDS)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (row,) = read_rows(tmp_path / "out")
    assert (row["size"], row["scores"]) == (1 << 40, [0] * 2048)


ONE = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: "{path}", {how}}}
    prepare: {{x: [{prepare}]}}
    batch: {{size: {batch}}}
    output: {{path: out, format: {format}}}
    errors: {{max_failed: {errors}}}
"""


def deploy(folder: Path, **said: Any) -> Path:
    defaults = {
        "path": "*.bin", "how": "format: bytes, columns: {x: data}", "prepare": "", "batch": 1, "format": "jsonl", "errors": 0
    }  # fmt: skip
    kind: Kind = (TensorProto.UINT8, ["batch", "n"] if said.get("batch") != "none" else ["n"])
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(folder / "m.onnx", [node], {"x": kind}, {"y": kind})
    (folder / "m.yaml").write_text(ONE.format(**(defaults | said)))
    return folder / "m.yaml"


def details(said: Any) -> dict[str, str]:
    return {one["rule"]: one["detail"] for one in said.json["diagnostics"] if one["severity"] == "error"}


@pytest.mark.parametrize(
    ("said", "rule", "words"),
    [
        ({"how": "format: bytes"}, "missing-column", "Nothing feeds input"),
        ({"how": "format: bytes, columns: {x: dat}"}, "missing-column", 'Did you mean "data"?'),
        ({"path": "*.odd", "how": "columns: {x: data}"}, "unreadable-input", "Add format: to the input"),
        (
            {"prepare": "{pad: 9, value: 256}"},
            "inapplicable-step",
            "256 does not fit uint8, which holds whole numbers from 0 to 255",
        ),
        ({"prepare": "{pad: [4, 4]}"}, "inapplicable-step", "a length, such as pad: 1024"),
        ({"prepare": "{pad: [4, 4], side: end}"}, "inapplicable-step", "side is for rows of values"),
        ({"prepare": "{strip: left}"}, "value-not-allowed", "start"),
        ({"prepare": "{head: 0}"}, "value-not-allowed", "at least 1"),
    ],
)
def test_what_cannot_work_is_said_by_the_plan(
    cli: Cli, tmp_path: Path, said: dict[str, str], rule: str, words: str
) -> None:
    for name in ("a.bin", "a.odd"):
        (tmp_path / name).write_bytes(b"abc")
    found = details(cli("plan", deploy(tmp_path, **said), "--format", "json"))
    assert len(found) == 1
    assert words in next(iter(found.values())), found
    assert rule in found


def test_a_file_that_is_gone_or_too_large_fails_as_a_row(tmp_path: Path) -> None:
    with (tmp_path / "b.bin").open("wb") as file:
        file.truncate(1 << 43)
    files = [str(tmp_path / name) for name in ("a.bin", "b.bin")]
    with open_input("bytes", files, str(tmp_path), Wanted(dtypes={"data": "uint8"})) as source:
        (block,) = source.blocks(0, iter([2]))
    assert [(row.source, row.code) for row in block.failed] == [("a.bin", "vanished-file"), ("b.bin", "too-large")]


def test_a_picture_is_decoded_in_the_graph(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions")
    picture = np.random.default_rng(5).integers(0, 256, (6, 9, 3), np.uint8)
    for number in range(3):
        buffer = io.BytesIO()
        Image.fromarray(np.roll(picture, number, 0)).save(buffer, "PNG")
        (tmp_path / f"{number}.png").write_bytes(buffer.getvalue())
    node = helper.make_node("DecodeImage", ["x"], ["y"], domain="com.microsoft.extensions", color_space="rgb")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, ["height", "width", 3])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft.extensions", 1)]
    path = deploy(tmp_path, path="*.png", batch="none")
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(tmp_path / "m.onnx"))
    done = cli("apply", path, "-q")
    assert done.code == 0, done.err + done.out
    for number, row in enumerate(read_rows(tmp_path / "out")):
        np.testing.assert_array_equal(row["y"], np.roll(picture, number, 0))


def test_packed_files_are_taken_as_they_are(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\x00 not read as text")
    path = deploy(tmp_path, path="*.gz", batch="none")
    assert cli("apply", path, "-q").code == 0
    (row,) = read_rows(tmp_path / "out")
    assert bytes(row["y"]) == b"\x1f\x8b\x08\x00 not read as text"
