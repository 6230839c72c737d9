"""Every input format: what probing tells, that batches hold every row in order, and that bad rows fail alone."""

import json
import os
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from PIL import Image
from support.effort import effort

from ortdeploy.facts.data import ArrivalPolicy, DeclaredInput, FileState, InputFacts, KnownFile
from ortdeploy.facts.problems import Package
from ortdeploy.results.rows import Block
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.files import file_states, list_files, states_digest
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.types import ROWS, TensorType


def read(
    folder: Path, kind: str, files: Sequence[str], wanted: Wanted, *, start: int = 0, size: int = 3
) -> list[Block]:
    paths = [str(folder / name) for name in files]
    with SOURCES[kind].open_source(paths, str(folder), wanted) as source:
        return list(source.blocks(start, repeat(size)))


def probe(folder: Path, *patterns: str, declared: str | None = None) -> InputFacts:
    return probe_input(DeclaredInput(folder=str(folder), patterns=tuple(patterns), format=declared), frozenset({"PIL"}))


def column(batches: Sequence[Block], name: str) -> list[Any]:
    return [
        value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for batch in batches
        for value in batch.columns[name]
    ]


def failures(batches: Sequence[Block]) -> list[tuple[int, str, str]]:
    return [(row.row, row.source, row.code) for batch in batches for row in batch.failed]


def problem(facts: InputFacts) -> str:
    assert facts.problem is not None
    return facts.problem.detail


# files


def test_folders_globs_and_lists_name_files_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.npy", "a.npy", "sub/c.npy", ".hidden.npy", "odd[1].npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def names(*patterns: str) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in list_files(str(tmp_path), patterns)]

    assert names("*.npy") == ["a.npy", "b.npy", "odd[1].npy"]
    assert names(".") == ["a.npy", "b.npy", "odd[1].npy"]
    assert names("**/*.npy") == ["a.npy", "b.npy", "odd[1].npy", "sub/c.npy"]
    assert names("odd[1].npy") == ["odd[1].npy"]
    assert names("b.npy", "*.npy") == ["b.npy", "a.npy", "odd[1].npy"]
    assert names("nothing.npy") == []


def test_the_digest_changes_with_name_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    before = states_digest(file_states([str(path)], str(tmp_path)))
    assert states_digest(file_states([str(path)], str(tmp_path))) == before
    path.write_bytes(b"four")
    assert states_digest(file_states([str(path)], str(tmp_path))) != before


def test_a_link_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    np.save(outside / "secret.npy", np.zeros((2, 2)))
    (inside / "data.npy").symlink_to(outside / "secret.npy")
    assert "leads out" in problem(probe(inside, "data.npy"))
    linked = DeclaredInput(folder=str(inside), patterns=("data.npy",), roots=(str(outside),))
    assert probe_input(linked, frozenset()).problem is None


@pytest.mark.parametrize("stable_for", [0.0, 0.000001])
@pytest.mark.parametrize("target", ["b.jsonl", "gone.jsonl", None])
@pytest.mark.parametrize("pattern", ["*.jsonl", ".", "**/*.jsonl", "b.jsonl"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_name_without_a_file_is_not_passed_over(
    tmp_path: Path, pattern: str, target: str | None, stable_for: float
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n', encoding="utf-8")
    if target is None:
        os.mkfifo(tmp_path / "b.jsonl")
    else:
        (tmp_path / "b.jsonl").symlink_to(target)
    arrivals = ArrivalPolicy(stable_for=stable_for)
    declared = DeclaredInput(folder=str(tmp_path), patterns=(pattern,), arrivals=arrivals)
    problem = probe_input(declared, frozenset()).problem
    assert problem is not None
    assert problem.kind == "unreadable"
    wrong = "is a pipe, a socket or a device" if target is None else f"cannot be read: it is a link to {target}: "
    assert f"{tmp_path / 'b.jsonl'} {wrong}" in problem.detail
    if target is not None:
        known = [KnownFile(state=FileState("b.jsonl", 1, 1), done=True)]
        found = probe_input(declared, frozenset(), known=known)
        assert found.problem is None or found.problem.kind == "unmatched"
        assert [one.path for one in found.present] == (["a.jsonl"] if pattern != "b.jsonl" else [])


def test_what_the_format_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.dat").write_text("x\n1\n")
    assert probe(tmp_path, "a.csv").format == "csv"
    assert "suffix" in problem(probe(tmp_path, "b.dat"))
    assert probe(tmp_path, "b.dat", declared="csv").columns == {"x": TensorType(None, (ROWS,))}
    (tmp_path / "c.jsonl").write_text("{}\n")
    assert "mixes formats" in problem(probe(tmp_path, "a.csv", "c.jsonl"))
    (tmp_path / "more").mkdir()
    for name in ("more/a.csv", "more/b.csv", "more/notes.txt"):
        (tmp_path / name).write_text("x\n1\n")
    assert 'A job reads one; write path: "more/*.csv".' in problem(probe(tmp_path, "more"))
    (tmp_path / "more/d.dat").write_text("1")
    assert 'Or write path: "more/*.csv".' in problem(probe(tmp_path, "more"))
    assert "No file matches" in problem(probe(tmp_path, "*.nothing"))


def test_a_folder_without_files_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir()
    assert problem(probe(tmp_path, "outbox")).startswith("outbox is a folder without files directly in it. Paths")
    (tmp_path / "outbox/read").mkdir()
    assert "Write outbox/**/* for those of the folders in it" in problem(probe(tmp_path, "outbox/"))


# npy, npz


def test_npy_rows_run_across_files(tmp_path: Path) -> None:
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    np.save(tmp_path / "a.npy", rows[:4])
    np.save(tmp_path / "b.npy", rows[4:])
    facts = probe(tmp_path, "*.npy")
    assert (facts.rows, facts.columns) == (7, {"array": TensorType("float32", (ROWS, 2))})
    batches = read(tmp_path, "npy", ["a.npy", "b.npy"], Wanted(dtypes={"array": "float32"}, keys=("path", "row")))
    assert [(batch.start, batch.count) for batch in batches] == [(0, 3), (3, 3), (6, 1)]
    assert column(batches, "array") == rows.tolist()
    assert column(batches, "path") == ["a.npy"] * 4 + ["b.npy"] * 3
    assert column(batches, "row") == list(range(7))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(20, 40), deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), size=st.integers(1, 7), data=st.data())
def test_any_split_into_files_and_batches_gives_every_row_once(
    tmp_path: Path, lengths: list[int], size: int, data: st.DataObject
) -> None:
    total = sum(lengths)
    start = data.draw(st.integers(0, total))
    values = np.arange(total)
    names = []
    for number, length in enumerate(lengths):
        begin = sum(lengths[:number])
        names.append(f"{number}.npy")
        np.save(tmp_path / names[-1], values[begin : begin + length])
    batches = read(tmp_path, "npy", names, Wanted(dtypes={"array": "int64"}, keys=("row",)), start=start, size=size)
    assert column(batches, "array") == values[start:].tolist() == column(batches, "row")
    assert all(batch.count == size for batch in batches[:-1])


def test_big_endian_arrays_are_read_as_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1.5], [2.5]], dtype=">f4"))
    assert probe(tmp_path, "a.npy").columns["array"].dtype == "float32"
    (batch,) = read(tmp_path, "npy", ["a.npy"], Wanted(dtypes={"array": "float32"}))
    assert column([batch], "array") == [[1.5], [2.5]]
    assert np.asarray(batch.columns["array"]).dtype.isnative


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00", b"\x93NUMPY" + b"\xff" * 40])
def test_a_broken_npy_is_a_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert "a.npy" in problem(probe(tmp_path, "a.npy"))


def test_a_truncated_npy_is_a_problem(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100, 4)))
    raw = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(raw[:-1])
    assert "cannot be read as .npy" in problem(probe(tmp_path, "a.npy"))


def test_pickles_scalars_and_odd_types_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "scalar.npy", np.array(3.0))
    np.save(tmp_path / "complex.npy", np.array([1j]))
    assert "cannot be read" in problem(probe(tmp_path, "pickle.npy"))
    assert "single value" in problem(probe(tmp_path, "scalar.npy"))
    assert "complex128" in problem(probe(tmp_path, "complex.npy"))


def test_files_that_disagree_are_a_problem(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), np.float32))
    (why,) = probe(tmp_path, "*.npy").differing.values()
    assert "float32 [rows, 4] in" in why


def test_npz_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2), name=np.array(["p", "q", "r"]))
    np.savez(tmp_path / "b.npz", x=np.arange(2).reshape(1, 2), name=np.array(["s"]))
    facts = probe(tmp_path, "*.npz")
    assert facts.rows == 4
    assert facts.columns == {"x": TensorType("int64", (ROWS, 2)), "name": TensorType("string", (ROWS,))}
    batches = read(tmp_path, "npz", ["a.npz", "b.npz"], Wanted(dtypes={"x": "int64"}, keys=("name",)))
    assert column(batches, "name") == ["p", "q", "r", "s"]
    assert column(batches, "x") == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_broken_npz_archives_are_problems(tmp_path: Path) -> None:
    np.savez(tmp_path / "uneven.npz", x=np.zeros(3), y=np.zeros(4))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nothing")
    np.savez(tmp_path / "empty.npz")
    assert "x 3, y 4" in problem(probe(tmp_path, "uneven.npz"))
    assert "cannot be read as .npz" in problem(probe(tmp_path, "broken.npz"))
    assert "it is empty" in problem(probe(tmp_path, "empty.npz"))


# csv, jsonl


def test_csv_cells_are_read_as_the_input_wants_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'id,n,f,s,b\r\nk1,1,1.5,"a,\nb",true\r\nk2, 2 ,-2e3,,0\r\n', encoding="utf-8-sig", newline=""
    )
    wanted = Wanted(dtypes={"n": "int64", "f": "float32", "s": "string", "b": "bool"}, keys=("id", "path", "row"))
    batches = read(tmp_path, "csv", ["a.csv"], wanted)
    assert column(batches, "n") == [1, 2]
    assert column(batches, "f") == [1.5, -2000.0]
    assert column(batches, "s") == ["a,\nb", ""]
    assert column(batches, "b") == [True, False]
    assert column(batches, "id") == ["k1", "k2"]
    assert column(batches, "row") == [0, 1]
    assert not failures(batches)


def test_bad_csv_lines_fail_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n,s\n1,a\n,b\nx,c\n4\n5,d,e\n300,f\n7,g\n1.5,h\n8,\xff\n9,i\n")
    batches = read(tmp_path, "csv", ["a.csv"], Wanted(dtypes={"n": "uint8"}, keys=("s",)), size=4)
    assert column(batches, "n") == [1, 7, 9]
    assert column(batches, "s") == ["a", "g", "i"]
    assert failures(batches) == [
        (1, "a.csv:3", "empty-value"), (2, "a.csv:4", "not-a-number"), (3, "a.csv:5", "cell-count"), (4, "a.csv:6", "cell-count"),
        (5, "a.csv:7", "not-a-number"), (7, "a.csv:9", "not-a-number"), (8, "a.csv:10", "not-utf8"),
    ]  # fmt: skip
    assert sum(batch.count for batch in batches) == 10


def test_csv_headers_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("x,x\n1,2\n")
    (tmp_path / "c.csv").write_bytes(b"x\xff\xfe\n")
    (tmp_path / "d.csv").write_text("x\n1\n")
    (tmp_path / "e.csv").write_text("y\n1\n")
    assert "is empty" in problem(probe(tmp_path, "a.csv"))
    assert "twice" in problem(probe(tmp_path, "b.csv"))
    assert "not UTF-8" in problem(probe(tmp_path, "c.csv"))
    assert 'e.csv has no column "x", which is text in' in problem(probe(tmp_path, "[de].csv"))


def test_jsonl_values_and_nested_lists(tmp_path: Path) -> None:
    lines = [{"x": [1, 2.5], "k": "a"}, {"x": [3, 4], "k": "b"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert probe(tmp_path, "a.jsonl").columns == {"x": TensorType(None, (ROWS, 2)), "k": TensorType(None, (ROWS,))}
    batches = read(tmp_path, "jsonl", ["a.jsonl"], Wanted(dtypes={"x": "float32"}, keys=("k",)))
    assert column(batches, "x") == [[1.0, 2.5], [3.0, 4.0]]
    assert column(batches, "k") == ["a", "b"]


def test_sizes_in_which_lists_of_json_lines_differ_are_open(tmp_path: Path) -> None:
    lines = [
        {"x": [], "same": [[1], [2]], "late": None, "rag": [[1], [2, 3]], "odd": [1, 2]},
        {"x": [1, 2], "same": [[3], [4]], "late": [1, 2], "rag": [[1], [2]], "odd": "oops", "more": 1},
        {"x": [1], "same": [[5], [6]], "late": [3, 4], "odd": [3, 4]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*map(json.dumps, lines), "no JSON"]))
    assert {name: one.shape for name, one in probe(tmp_path, "a.jsonl").columns.items()} == {
        "x": (ROWS, None), "same": (ROWS, 2, 1), "late": (ROWS, 2), "rag": None, "odd": (ROWS, 2), "more": (ROWS,),
    }  # fmt: skip


def test_bad_json_lines_fail_alone(tmp_path: Path) -> None:
    lines = [
        '{"x": 1}',
        "{",
        '{"y": 1}',
        '{"x": null}',
        '{"x": "a"}',
        "[1]",
        '{"x": 1.5}',
        '{"x": 2}',
        '{"x": [1, null]}',
        '{"x": 1, "x": 2}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    batches = read(tmp_path, "jsonl", ["a.jsonl"], Wanted(dtypes={"x": "int64"}), size=100)
    codes = {row: code for row, _, code in failures(batches)}
    assert codes == {
        1: "not-json", 2: "missing-value", 3: "empty-value", 4: "not-a-number", 5: "not-json", 6: "not-a-number", 8: "empty-value",
        9: "not-json",
    }  # fmt: skip
    assert column(batches, "x") == [1, 2]


def test_a_null_among_floats_is_not_taken_for_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2]}\n{"x": [1, null]}\n{"x": [NaN, 1]}\n')
    batches = read(tmp_path, "jsonl", ["a.jsonl"], Wanted(dtypes={"x": "float32"}))
    assert [row for row, _, _ in failures(batches)] == [1]
    assert len(column(batches, "x")) == 2


def test_missing_values_are_what_they_are_said_to_stand_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,city,n\n1.5,Rome,1\n,,\n2.5,Bonn,3\n")
    wanted = Wanted(dtypes={"age": "float32", "city": "string", "n": "int64"}, keys=("city",))
    (batch,) = read(tmp_path, "csv", ["a.csv"], wanted, size=9)
    assert failures([batch]) == [(1, "a.csv:3", "empty-value")]
    missing = {"age": "nan", "city": "unknown", "n": 0}
    (batch,) = read(tmp_path, "csv", ["a.csv"], replace(wanted, missing=missing), size=9)
    assert np.isnan(batch.columns["age"][1])
    assert column([batch], "age")[::2] == [1.5, 2.5]
    assert column([batch], "city") == ["Rome", "unknown", "Bonn"]
    assert column([batch], "n") == [1, 0, 3]
    (batch,) = read(tmp_path, "csv", ["a.csv"], replace(wanted, missing={**missing, "city": None}), size=9)
    assert failures([batch]) == [(1, "a.csv:3", "missing-value")]


def test_nulls_and_absent_keys_of_json_lines_are_missing_too(tmp_path: Path) -> None:
    lines = ['{"x": [1, null], "t": "a"}', '{"x": [3, 4], "t": null}', '{"x": [5, 6]}', '{"x": [7, 8], "t": ""}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    wanted = Wanted(dtypes={"x": "float32", "t": "string"})
    (batch,) = read(tmp_path, "jsonl", ["a.jsonl"], wanted, size=9)
    assert [code for _, _, code in failures([batch])] == ["empty-value", "not-text", "missing-value"]
    (batch,) = read(tmp_path, "jsonl", ["a.jsonl"], replace(wanted, missing={"x": 2, "t": "-"}), size=9)
    assert column([batch], "x") == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert column([batch], "t") == ["a", "-", "-", "-"]
    (batch,) = read(tmp_path, "jsonl", ["a.jsonl"], replace(wanted, missing={"t": None}), size=9)
    assert [row for row, _, _ in failures([batch])] == [0, 1, 2, 3]


def test_rows_of_different_shape_stay_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2]}\n{"x": [1, 2, 3]}\n')
    (batch,) = read(tmp_path, "jsonl", ["a.jsonl"], Wanted(dtypes={"x": "float32"}))
    assert [np.shape(value) for value in batch.columns["x"]] == [(2,), (3,)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(20, 40), deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20),
    size=st.integers(1, 6),
    data=st.data(),
)
def test_text_formats_can_start_at_any_row(tmp_path: Path, values: list[float], size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{value!r}\n" for value in values))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": value}) + "\n" for value in values))
    for kind in ("csv", "jsonl"):
        batches = read(
            tmp_path, kind, [f"a.{kind}"], Wanted(dtypes={"x": "float32"}, keys=("row",)), start=start, size=size
        )
        assert column(batches, "x") == values[start:]
        assert column(batches, "row") == list(range(start, len(values)))


# images


def test_images_of_every_mode(tmp_path: Path) -> None:
    rgb = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for mode in ("L", "RGB", "RGBA", "P", "CMYK", "1", "LA"):
        rgb.convert(mode).save(tmp_path / f"{mode}.tif")
    Image.fromarray(np.full((4, 4), 300, dtype=np.uint16)).save(tmp_path / "deep.png")
    names = sorted(path.name for path in tmp_path.iterdir())
    facts = probe(tmp_path, "*")
    assert (facts.format, facts.rows) == ("image", 8)
    batches = read(tmp_path, "image", names, Wanted(dtypes={"pixels": "uint8"}, keys=("path",)), size=1)
    shapes = {batch.columns["path"][0]: np.shape(batch.columns["pixels"][0]) for batch in batches}
    assert {name: shape[-1] for name, shape in shapes.items() if shape[-1] == 1} == {"L.tif": 1, "deep.png": 1}
    by_name = {batch.columns["path"][0]: np.asarray(batch.columns["pixels"][0]) for batch in batches}
    assert np.array_equal(by_name["RGB.tif"], np.asarray(rgb))
    assert by_name["deep.png"].dtype == np.uint16
    assert by_name["deep.png"].max() == 300


def test_a_file_that_is_no_image_fails_alone(tmp_path: Path) -> None:
    Image.new("L", (3, 3)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"GIF89a nothing")
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    batches = read(tmp_path, "image", ["a.png", "b.png", "c.png", "d.png"], Wanted(dtypes={"pixels": "uint8"}))
    assert failures(batches) == [
        (1, "b.png", "not-an-image"), (2, "c.png", "not-an-image"), (3, "d.png", "vanished-file"),
    ]  # fmt: skip
    assert [batch.count for batch in batches] == [3, 1]


def test_images_without_pillow_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    facts = probe_input(DeclaredInput(folder=str(tmp_path), patterns=("a.png",)), frozenset())
    assert facts.missing_package == Package(module="PIL", name="Pillow", extra="images")


def test_a_file_name_may_be_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.png")
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / name)
    facts = probe(tmp_path, "*.png")
    assert facts.problem is None
    (batch,) = read(tmp_path, "image", [name], Wanted(dtypes={"pixels": "uint8"}, keys=("path",)))
    assert batch.columns["path"] == [name]
