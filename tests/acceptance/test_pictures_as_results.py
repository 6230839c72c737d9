"""Classes of pixels as PNG files that are named after the pictures: in one run, shards, on a store, after repairs."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image
from support.models import save_model

from ortdeploy.sinks.row_files import file_names, is_of_row, named_in

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  segment:
    steps:
      - {do: letterbox, in: {image: $image, size: [8, 8]}, out: [fit, how]}
      - {do: layout, in: {x: $fit, layout: NCHW}, out: planes}
      - {op: Cast, in: {input: $planes}, attributes: {to: float32}, out: x}
      - {run: m, in: {x: $x}, out: {y: scores}}
      - {do: class_map, in: {scores: $scores, how: $how}, out: map}
    outputs: {map: $map}
jobs:
  run:
    pipeline: segment
    input: {path: "photos/*.png", columns: {image: pixels}, key: [path]}
    prepare: {image: [{rgb: true}]}
    batch: {size: 2}
    output: {path: out, images: [map], rows_per_part: 2}
    errors: {max_failed: 2}
"""

NAMES = ["a", "IMG-20240101", "x y\u00fc;1", "last", ".hidden" * 20]


def save(path: Path, seed: int) -> np.ndarray:
    """Save a picture of two halves in pure colours; return the class of each pixel."""
    classes = np.random.default_rng(seed).integers(0, 3, (1, 2)).repeat(2, axis=0)
    scale = 4 * (1 + seed % 3)
    large = classes.repeat(scale, axis=0).repeat(scale, axis=1)
    path.parent.mkdir(exist_ok=True)
    Image.fromarray((np.eye(3)[large] * 255).astype(np.uint8)).save(path)
    return large.astype(np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, np.ndarray]:
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n", 3, 8, 8])},
        {"y": (TensorProto.FLOAT, ["n", 3, 8, 8])},
    )
    (tmp_path / "m.yaml").write_text(MANIFEST)
    named = {f"photos/{name}.png": number for number, name in enumerate(NAMES) if not name.startswith(".")}
    return {path: save(tmp_path / path, seed) for path, seed in named.items()}


def check(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Each row has the file of its picture, and there are no others."""
    rows = read_rows(folder)
    assert sorted(row["path"] for row in rows) == sorted(pictures)
    for row in rows:
        stem = Path(row["path"]).stem.replace(" ", "_").replace(";", "_")
        assert row["map"].endswith(f"-{stem}.png")
        np.testing.assert_array_equal(np.array(Image.open(folder / row["map"])), pictures[row["path"]])
    assert sorted(f"images/{one.name}" for one in (folder / "images").iterdir()) == sorted(row["map"] for row in rows)


def test_classes_are_written_as_pictures_that_are_named_after_theirs(
    cli: Cli, tmp_path: Path, pictures: dict[str, np.ndarray]
) -> None:
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    check(tmp_path / "out", pictures)
    more = MANIFEST.replace("{map: $map}", "{map: $map, again: $map}").replace("images: [map]", "images: [map, again]")
    (tmp_path / "m.yaml").write_text(more)  # which is about rows to come
    assert cli("verify", tmp_path / "m.yaml").code == 0
    (tmp_path / "out/images/map-00000001-a.png").rename(tmp_path / "out/images/map-00000099-a.png")
    lost = cli("verify", tmp_path / "m.yaml")
    assert lost.code == 1
    assert lost.out.splitlines()[0].endswith("/out/images/map-00000001*.png is gone")
    assert lost.out.splitlines()[1].startswith("run: 2 of 2 parts in ")


def test_shards_name_them_alike(cli: Cli, tmp_path: Path, pictures: dict[str, np.ndarray]) -> None:
    assert cli("plan", tmp_path / "m.yaml", "--out", tmp_path / "p.json").code == 0
    for shard in (1, 0):
        assert cli("apply", tmp_path / "p.json", "--shard", f"{shard}/2").code == 0
    assert cli("finish", tmp_path / "p.json").code == 0
    check(tmp_path / "out", pictures)


@pytest.mark.parametrize("shards", [False, True])
def test_they_come_onto_a_store(
    cli: Cli, tmp_path: Path, pictures: dict[str, np.ndarray], store: Any, shards: bool
) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("path: out,", 'path: "memory://out",'))
    if shards:
        assert cli("plan", tmp_path / "m.yaml", "--out", tmp_path / "p.json").code == 0
        assert cli("apply", tmp_path / "p.json", "--shard", "0/1").code == 0
        assert cli("finish", tmp_path / "p.json").code == 0
    else:
        assert cli("apply", tmp_path / "m.yaml").code == 0
    rows = [json.loads(line) for part in store.glob("/out/part-*") for line in store.cat_file(part).splitlines()]
    assert len(rows) == len(pictures)
    assert sorted(store.glob("/out/images/*")) == sorted(f"/out/{row['map']}" for row in rows)


def test_a_picture_that_is_repaired_or_replaced_gets_its_file(
    cli: Cli, tmp_path: Path, pictures: dict[str, np.ndarray]
) -> None:
    path = "photos/IMG-20240101.png"
    (tmp_path / path).write_bytes(b"\x89PNG broken")
    assert cli("apply", tmp_path / "m.yaml").code == 0
    check(tmp_path / "out", {name: one for name, one in pictures.items() if name != path})
    assert cli("verify", tmp_path / "m.yaml").code == 0  # the row has failed, and has no file
    save(tmp_path / path, 1)
    assert cli("retry", tmp_path / "m.yaml", "--job", "run").code == 0
    check(tmp_path / "out", pictures)
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("key: [path]", "key: [path], on_change: rerun"))
    pictures[path] = save(tmp_path / path, 2)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    check(tmp_path / "out", pictures)


@given(source=st.text(max_size=300), row=st.integers(0, 10**10), other=st.integers(0, 10**10))
def test_a_name_is_one_that_any_folder_takes_and_tells_its_row(source: str, row: int, other: int) -> None:
    suffixes = {"map": "png", "speech": "wav"}
    for name in file_names(suffixes, [row], {row: source}):
        folder, _, file = name.partition("/")
        assert folder in {"images", "recordings"}
        assert len(file.encode()) < 250
        assert not set(file) & set('/\\\0:*?"<>| ')
        assert is_of_row(file, suffixes, {row})
        assert is_of_row(file, suffixes, {other}) == (row == other)


def test_files_of_rows_are_found_whatever_they_are_named_after(tmp_path: Path) -> None:
    names = [*file_names({"map": "png", "a-2-b": "wav"}, [7, 12], {7: "in/2024-00000012-x.png"})]
    for name in [*names, "images/own.png"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {*named_in(tmp_path, {7})} == {name for name in names if "-00000007" in name}
    assert {*named_in(tmp_path, {12})} >= {name for name in names if "00000007" not in name}
    assert {*named_in(tmp_path, {7, 12})} == {*names}


def test_the_query_of_a_url_is_in_no_name() -> None:
    (name,) = file_names({"y": "png"}, [3], {3: "https://host/a/cat.png?sig=secret.png"})
    assert name == "images/y-00000003-cat.png"


@pytest.mark.usefixtures("pictures")
def test_a_picture_on_a_store_is_replaced_by_one_of_the_same_size(cli: Cli, tmp_path: Path, store: Any) -> None:
    rerun = MANIFEST.replace("key: [path]", "key: [path], on_change: rerun")
    (tmp_path / "m.yaml").write_text(rerun.replace("path: out,", 'path: "memory://out",'))
    path, found = tmp_path / "photos/a.png", []
    for colour in ([0, 255, 0], [0, 0, 255]):
        Image.fromarray(np.full((8, 8, 3), colour, np.uint8)).save(path)
        done = cli("apply", tmp_path / "m.yaml")
        assert done.code == 0, done.words
        (name,) = (one for one in store.glob("/out/images/*") if one.endswith("-a.png"))
        found.append(store.cat_file(name))
    classes = [np.unique(np.array(Image.open(BytesIO(one)))).tolist() for one in found]
    assert classes == [[1], [2]]
    assert len(found[0]) == len(found[1])
