"""Kills at each step of jobs whose rows are frames of clips, and whose results are recordings or pictures."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper
from support.clips import CODECS, clip, plain
from support.effort import effort
from support.fuse import killed_at
from support.models import save_model, scale_model

FRAMES = """\
version: 1
models: {m: {path: m.onnx}}
jobs:
  run:
    model: m
    input: {path: "*.mp4", key: [path, frame, time]}
    batch: {size: 4}
    output: {path: out, rows_per_part: 16}
    errors: {max_failed: 50%}
"""

SOUNDS = """\
version: 1
models: {m: {path: m.onnx}}
jobs:
  run:
    model: m
    input: {path: "*.npy", columns: {x: array}, key: [path]}
    batch: {size: 2}
    output: {path: out, recordings: {y: {rate: 8000}}, rows_per_part: 4}
"""


def in_shards(cli: Cli, path: Path) -> int:
    plan = path.with_name("plan.json")
    if not plan.exists() and cli("plan", path, "--out", plan).code != 0:
        return 1
    codes = [cli("apply", plan, "--shard", f"{shard}/2").code for shard in range(2)]
    return max(*codes, cli("finish", plan).code)


def in_one(cli: Cli, path: Path) -> int:
    return cli("apply", path).code


WAYS = {"one": in_one, "shards": in_shards}
EVERY = [("one", 25), ("one", effort(3, 1)), ("shards", 70), ("shards", effort(20, 7))]
"""Ways to run, and how many events are between the one before which a run is killed and the next."""


def killed(cli: Cli, made: Path, way: str, every: int) -> Iterator[Path]:
    """Kill a job before each nth event, and let it go on; yield its whole output, until it lives."""
    for event in itertools.count(1, every):
        here = made.with_name(f"{made.name}-{event}")
        shutil.copytree(made, here)
        with killed_at(event) as fuse:
            WAYS[way](cli, here / "m.yaml")
        assert WAYS[way](cli, here / "m.yaml") == 0, event
        yield here / "out"
        if not fuse.blew:
            return


@pytest.mark.process
@pytest.mark.quick("one-25", "shards-70")
@pytest.mark.parametrize(("way", "every"), EVERY, ids=["one-25", "one", "shards-70", "shards"])
def test_every_frame_is_there_once(cli: Cli, tmp_path: Path, way: str, every: int) -> None:
    made = tmp_path / "made"
    save_model(
        made / "m.onnx",
        [
            helper.make_node("Cast", ["image"], ["floating"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floating"], ["mean"], axes=[1, 2], keepdims=0),
        ],
        {"image": (TensorProto.UINT8, ["batch", "height", "width", 3])},
        {"mean": (TensorProto.FLOAT, ["batch", 3])},
    )
    (made / "m.yaml").write_text(FRAMES)
    names = {"a.mp4": 22, "b.mp4": 11}
    wanted = []
    for name, frames in names.items():
        pixels, times = plain(clip(made / name, CODECS["h264"], frames))
        wanted += [
            (name, at, time, one.mean((0, 1)).tolist())
            for at, (one, time) in enumerate(zip(pixels, times, strict=True))
        ]
    if way == "one":  # shards do not begin before every file says how many rows it has
        (made / "c.mp4").write_bytes((made / "a.mp4").read_bytes()[:900])
    for out in killed(cli, made, way, every):
        rows = read_rows(out)
        assert [(row["path"], row["frame"], row["time"]) for row in rows] == [one[:3] for one in wanted]
        np.testing.assert_allclose([row["mean"] for row in rows], [one[3] for one in wanted], rtol=1e-4)
        assert ("c.mp4" in (out / "_failed.jsonl").read_text()) == (way == "one")
        assert not [one.name for one in out.iterdir() if one.name.startswith(".")]


@pytest.mark.process
@pytest.mark.quick("one-25", "shards-70")
@pytest.mark.parametrize(("way", "every"), EVERY, ids=["one-25", "one", "shards-70", "shards"])
def test_every_recording_is_there_once_and_whole(cli: Cli, tmp_path: Path, way: str, every: int) -> None:
    made = tmp_path / "made"
    scale_model(made / "m.onnx", width=4, factor=2.0)
    (made / "m.yaml").write_text(SOUNDS)
    for number in range(3):
        np.save(made / f"{number}.npy", np.arange(12, dtype=np.float32).reshape(3, 4) + number * 12)
    for out in killed(cli, made, way, every):
        rows = read_rows(out)
        assert [row["path"] for row in rows] == [f"{number}.npy" for number in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
        for at, row in enumerate(rows):
            samples = np.frombuffer((out / row["y"]).read_bytes()[-16:], "<f4")
            np.testing.assert_array_equal(samples, 2 * (np.arange(4) + 4 * at))
        assert sorted(f"recordings/{one.name}" for one in (out / "recordings").iterdir()) == [row["y"] for row in rows]
        assert not [one.name for one in out.iterdir() if one.name.startswith(".")]
