"""`track` against ByteTrack written down once more, with whole matrices and SciPy's assignment; and in jobs."""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.models import scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.manifest.pipelines import IN_TURN
from ortdeploy.operations.assignment import assign
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.track import STATE
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.tensors.types import TensorType

TYPES = {"boxes": TensorType("float32", ("rows", None, 4)), "scores": TensorType("float32", ("rows", None))}


@settings(max_examples=effort(60, 1000), deadline=None)
@given(data=st.data())
def test_an_assignment_is_the_best_of_all(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    cells = st.lists(st.integers(0, 9), min_size=rows * columns, max_size=rows * columns)
    gain = np.array(data.draw(cells), float).reshape(rows, columns)
    chosen = assign(gain)
    assert len(set(chosen[0])) == len(set(chosen[1])) == len(chosen[0])
    assert (gain[chosen] > 0).all()
    wide = gain if rows <= columns else gain.T
    ways = permutations(range(wide.shape[1]), wide.shape[0])
    assert gain[chosen].sum() == max(sum(wide[at, column] for at, column in enumerate(way)) for way in ways)


def test_large_assignments_are_those_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(3)
    for shape in ((40, 60), (60, 40), (50, 50)):
        gain = rng.random(shape) * (rng.random(shape) < 0.3)
        assert gain[assign(gain)].sum() == pytest.approx(
            gain[optimize.linear_sum_assignment(gain, maximize=True)].sum()
        )


class Filter:
    """ByteTrack's Kalman filter of a box, with whole matrices."""

    def __init__(self, measured: np.ndarray) -> None:
        height = measured[3]
        place, speed = height / 20, height / 160
        self.mean = np.concatenate([measured, np.zeros(4)])
        spread = [2 * place, 2 * place, 1e-2, 2 * place, 10 * speed, 10 * speed, 1e-5, 10 * speed]
        self.covariance = np.diag(np.square(spread))

    def predict(self, *, lost: bool) -> None:
        if lost:
            self.mean[7] = 0
        height = self.mean[3]
        place, speed = height / 20, height / 160
        noise = np.diag(np.square([place, place, 1e-2, place, speed, speed, 1e-5, speed]))
        motion = np.eye(8) + np.eye(8, k=4)
        self.mean = motion @ self.mean
        self.covariance = motion @ self.covariance @ motion.T + noise

    def update(self, measured: np.ndarray) -> None:
        place = self.mean[3] / 20
        seen = np.eye(4, 8)
        total = seen @ self.covariance @ seen.T + np.diag(np.square([place, place, 1e-1, place]))
        gain = self.covariance @ seen.T @ np.linalg.inv(total)
        self.mean = self.mean + gain @ (measured - seen @ self.mean)
        self.covariance = self.covariance - gain @ total @ gain.T

    @property
    def box(self) -> np.ndarray:
        x, y, ratio, height = self.mean[:4]
        return np.array([x - ratio * height / 2, y - height / 2, x + ratio * height / 2, y + height / 2])


def measured(box: np.ndarray) -> np.ndarray:
    left, top, right, bottom = box
    return np.array([(left + right) / 2, (top + bottom) / 2, (right - left) / (bottom - top), bottom - top])


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(shared / (sum(areas) - shared))


class Reference:
    """ByteTrack, box by box."""

    def __init__(self, keep: int = 30) -> None:
        self.tracks: list[dict[str, Any]] = []
        self.last = self.row = 0
        self.keep = keep

    def match(self, tracks: list[Any], places: list[int], boxes: np.ndarray, least: float) -> dict[int, Any]:
        optimize = pytest.importorskip("scipy.optimize")
        gain = np.array([[overlap(track["filter"].box, boxes[at]) for at in places] for track in tracks])
        gain = np.where(gain >= least, gain, 0.0).reshape(len(tracks), len(places))
        pairs = zip(*optimize.linear_sum_assignment(gain, maximize=True), strict=True)
        return {places[column]: tracks[row] for row, column in pairs if gain[row, column] > 0}

    def follow(self, boxes: np.ndarray, scores: np.ndarray) -> list[int]:
        self.row += 1
        for track in self.tracks:
            track["filter"].predict(lost=track["missed"] > 0)
        found: dict[int, Any] = {}
        places = range(len(boxes))
        sure = [at for at in places if scores[at] >= 0.5]
        low = [at for at in places if 0.1 <= scores[at] < 0.5]
        for of_tracks, wanted, least in (
            ([one for one in self.tracks if one["sure"]], sure, 0.2),
            ([one for one in self.tracks if one["sure"] and not one["missed"]], low, 0.5),
            ([one for one in self.tracks if not one["sure"]], sure, 0.3),
        ):
            left = [one for one in of_tracks if not any(one is taken for taken in found.values())]
            found |= self.match(left, [at for at in wanted if at not in found], boxes, least)
        for track in self.tracks:
            track["missed"] += 1
        for at, track in found.items():
            track["filter"].update(measured(boxes[at]))
            track.update(missed=0, sure=True)
        for at in places:
            if at not in found and scores[at] >= 0.6:
                self.last += 1
                found[at] = {
                    "id": self.last, "filter": Filter(measured(boxes[at])), "missed": 0, "sure": self.row == 1,
                }  # fmt: skip
                self.tracks.append(found[at])
        self.tracks = [one for one in self.tracks if not one["missed"] or (one["sure"] and one["missed"] <= self.keep)]
        return [found[at]["id"] if at in found else 0 for at in places]


def scene(seed: int, rows: int = 40, things: int = 6) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Boxes [n, 4] and scores [n] of things that move, are hidden for a while, and stand among chance boxes."""
    rng = np.random.default_rng(seed)
    place, speed = rng.uniform(0, 400, (things, 2)), rng.uniform(-8, 8, (things, 2))
    size = rng.uniform(30, 80, (things, 2))
    boxes, scores = [], []
    for _ in range(rows):
        place = place + speed
        seen = rng.random(things) < 0.85
        real = np.concatenate([place, place + size], axis=1)[seen] + rng.normal(0, 1.5, (seen.sum(), 4))
        chance = rng.uniform(0, 400, (rng.integers(0, 3), 2))
        both = np.concatenate([real, np.concatenate([chance, chance + 40], axis=1)])
        order = rng.permutation(len(both))
        boxes.append(both[order].astype(np.float32))
        scores.append(rng.uniform(0.05, 1, len(both))[order].astype(np.float32))
    return boxes, scores


def ids_of(boxes: Sequence[np.ndarray], scores: Sequence[np.ndarray], cuts: Sequence[int], **options: Any) -> list[Any]:
    """The numbers of tracks, in batches that begin at `cuts`."""
    call = OPERATIONS["track"].build({"track": True, **options}, TYPES)
    state, found = np.zeros((1, 24)), []
    for begin, end in zip([0, *cuts], [*cuts, len(boxes)], strict=True):
        (ids,), state = call({"boxes": list(boxes[begin:end]), "scores": list(scores[begin:end])}, state)
        found += [one.tolist() for one in ids]
    return found


@pytest.mark.parametrize("seed", range(effort(4, 60)))
def test_tracks_are_those_of_bytetrack_however_rows_are_cut(seed: int) -> None:
    boxes, scores = scene(seed)
    reference = Reference(keep=5)
    expected = [reference.follow(*row) for row in zip(boxes, scores, strict=True)]
    assert ids_of(boxes, scores, [], keep=5) == expected
    assert ids_of(boxes, scores, [1, 2, 17, 30], keep=5) == expected
    assert max(max(one, default=0) for one in expected) > 3


def test_boxes_of_two_classes_are_never_one_thing() -> None:
    call = OPERATIONS["track"].build({"track": True}, {**TYPES, "classes": TensorType("int64", ("rows", None))})
    boxes = np.array([[[0, 0, 10, 10]]] * 3, np.float32)
    values = {"boxes": boxes, "scores": np.ones((3, 1), np.float32), "classes": np.array([[0], [1], [0]])}
    (ids,), _ = call(values, np.zeros((1, 24)))
    assert ids.tolist() == [[1], [2], [1]]


def test_rows_without_boxes_pass_tracks_on() -> None:
    box, none = np.array([[0, 0, 10, 10]], np.float32), np.zeros((0, 4), np.float32)
    rows = [none, box, box, none, box]
    assert ids_of(rows, [np.ones(len(one), np.float32) for one in rows], []) == [[], [1], [1], [], [1]]


def test_operations_in_turn_are_those_with_a_state() -> None:
    assert {name for name in OPERATIONS if OPERATIONS[name].state is not None} == set(IN_TURN)
    assert STATE.shape is not None


MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
pipelines:
  follow:
    steps:
      - {{run: m, in: {{x: $x}}, out: {{y: y}}}}
      - {{do: track, in: {{boxes: $boxes, scores: $scores}}, out: ids}}
    outputs: {{ids: $ids, y: $y}}
jobs:
  run:
    pipeline: follow
    input: {{path: "*.jsonl", key: [path, row]}}
    batch: {{size: {size}}}
    output: {{path: out, format: jsonl, rows_per_part: 6}}
"""


def deploy(folder: Path, size: int = 4) -> Path:
    for name, seed in (("a", 1), ("b", 2)):
        boxes, scores = scene(seed, 15)
        lines = [
            json.dumps({"x": [1, 2, 3, 4], "boxes": one.tolist(), "scores": other.tolist()})
            for one, other in zip(boxes, scores, strict=True)
            if len(one)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    scale_model(folder / "m.onnx")
    (folder / "m.yaml").write_text(MANIFEST.format(size=size))
    return folder / "m.yaml"


def expected_of(folder: Path) -> list[list[int]]:
    """The numbers of the tracks of each row: each file begins anew."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        reference = Reference()
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found += [reference.follow(*(np.array(row[name], np.float32) for name in ("boxes", "scores"))) for row in rows]
    return found


@pytest.mark.parametrize("size", [1, 4, 64])
def test_a_job_gives_tracks_that_begin_anew_with_each_file(tmp_path: Path, cli: Cli, size: int) -> None:
    done = cli("apply", deploy(tmp_path, size))
    assert done.code == 0, done.words
    assert [row["ids"] for row in read_rows(tmp_path / "out")] == expected_of(tmp_path)


def test_a_job_that_goes_on_gives_the_same_tracks(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: MemoryWatch) -> bool:
        raise OrtdeployError("enough")

    deploy(tmp_path)
    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryWatch, "is_near", end)
            assert "enough" in cli("apply", tmp_path / "m.yaml").words
    assert cli("apply", tmp_path / "m.yaml").code == 0
    assert [row["ids"] for row in read_rows(tmp_path / "out")] == expected_of(tmp_path)


def test_items_of_a_row_are_not_followed(tmp_path: Path, cli: Cli) -> None:
    path = deploy(tmp_path)
    text = path.read_text()
    step = "{do: track, in: {boxes: $boxes, scores: $scores}, out: ids}"
    assert step in text
    inner = f"{{each: $boxes, as: one, collect: {{ids: ids}}, steps: [{step.replace('$boxes', '$one')}]}}"
    path.write_text(text.replace(step, inner))
    assert "track follows the rows of a file, and items of a row are none" in cli("plan", path).words
