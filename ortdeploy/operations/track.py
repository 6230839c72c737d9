"""`track` — gives boxes of successive rows the number of the thing that they show: ByteTrack.

`boxes` are [rows, n, 4]: left, top, right, bottom. `scores` are [rows, n]; without them, all boxes are sure. Of
`classes` [rows, n], if they are given, boxes of two are never one thing. The result, int64 [rows, n], has the number of
each box's track, from 1, or 0 for a box without one. A box that resembles no track begins one if its score is at least
`new`.

A track is where a Kalman filter with a constant speed expects its box. First, boxes whose score is at least `score`
are assigned to all tracks, so that they overlap as much as possible in all; then those from `low` on to tracks of the
row before that are left over. A track without a box is kept for `keep` rows; a new one ends if the next row has no
box for it.

Tracks are passed from row to row, and begin anew with each file.
"""

from collections.abc import Mapping

import numpy as np

from ortdeploy.operations.assignment import assign
from ortdeploy.operations.protocol import CallInTurn, Types, as_column
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import (
    COORDINATES,
    NORMALISED,
    OPTIONAL,
    PIXELS,
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    FormalParameter,
    forms,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Options

_FIELDS = 24
_NUMBER, _CLASS, _MISSED, _SEEN = range(4)
_MEAN, _SPEED = slice(4, 8), slice(8, 12)
_MEAN_SPREAD, _SHARED_SPREAD, _SPEED_SPREAD = slice(12, 16), slice(16, 20), slice(20, 24)
"""The fields of a track: its number, class, rows without and with a box; by centre x and y, width through height and
height of its box: where it is expected, its speed a row, and the variances and covariance of both."""

STATE = TensorType("float64", (None, _FIELDS))
"""Tracks [tracks + 1, fields]; the first row has in the place of the number that of the last track that was begun."""

_OVERLAP_OF_LOW, _OVERLAP_OF_NEW = 0.5, 0.3
_OF_PLACE, _OF_SPEED = 1 / 20, 1 / 160
"""ByteTrack's: the least overlaps in its second and third assignment, and the noise of its filter by height."""

CONTRACT = Contract(
    name="track",
    meaning="The number of the thing that each box shows, the same from row to row of a file: ByteTrack",
    inputs=(
        FormalParameter(
            "boxes", "B", forms("rows n 4"), "left, top, right, bottom", units=(PIXELS, NORMALISED), not_nan=True
        ),
        FormalParameter(
            "scores", "T", forms("rows n"), "their scores", units=(PROBABILITY,), not_nan=True, option=OPTIONAL
        ),
        FormalParameter("classes", "int64", forms("rows n"), "their classes", option=OPTIONAL),
    ),
    outputs=(FormalParameter("ids", "int64", forms("rows n"), "the number of the track of each box, 0 for none"),),
    attributes=(
        Attribute("score", "FLOAT", "boxes from this score on are assigned first", default=0.5, least=0, most=1),
        Attribute("low", "FLOAT", "boxes from this score on are assigned at all", default=0.1, least=0, most=1),
        Attribute("new", "FLOAT", "boxes from this score on may begin a track", default=0.6, least=0, most=1),
        Attribute("iou", "FLOAT", "the least overlap of a box with its track", default=0.2, least=0, most=1),
        Attribute("keep", "INT", "the rows for which a track without a box is kept", default=30, least=0),
    ),
    types=(REALS, COORDINATES),
)


def build(options: Options, types: Types) -> CallInTurn:  # noqa: ARG001  the same for every tensor
    def track(values: Mapping[str, Column], state: Array) -> tuple[tuple[Column, ...], Array]:
        found: list[Array] = []
        for row, boxes in enumerate(values["boxes"]):
            scores = np.asarray(values["scores"][row] if "scores" in values else np.ones(len(boxes)), np.float64)
            classes = np.asarray(values["classes"][row] if "classes" in values else np.zeros(len(scores)), np.float64)
            ids, state = _follow(state, np.asarray(boxes, np.float64), scores, classes, options)
            found.append(ids)
        return (as_column(found),), state

    return track


def _follow(state: Array, boxes: Array, scores: Array, classes: Array, options: Options) -> tuple[Array, Array]:
    """Return the tracks' numbers int64 [n] of the boxes [n, 4] of a row, and the state behind it."""
    head, tracks = state[0], _expected(state[1:])
    is_first = head[_SEEN] == 0
    boxes_now = np.zeros(len(boxes), np.int64)  # the places of their tracks, from 1
    overlap = _overlaps(_corners(tracks), boxes) * (tracks[:, _CLASS][:, None] == classes)
    sure = scores >= options["score"]
    is_new = tracks[:, _SEEN] == 1
    known = tracks[:, _MISSED] == 0
    for of_tracks, of_boxes, least in (
        (~is_new, sure, options["iou"]),
        (~is_new & known, ~sure & (scores >= options["low"]), _OVERLAP_OF_LOW),
        (is_new, sure, _OVERLAP_OF_NEW),
    ):
        left = np.setdiff1d(np.flatnonzero(of_tracks), boxes_now - 1)
        free = np.flatnonzero(of_boxes & (boxes_now == 0))
        gain = overlap[np.ix_(left, free)]
        rows, columns = assign(np.where(gain >= max(least, np.finfo(float).tiny), gain, 0.0))
        boxes_now[free[columns]] = left[rows] + 1
    with_box = np.flatnonzero(boxes_now)
    tracks[:, _MISSED] += 1
    _correct(tracks, boxes_now[with_box] - 1, boxes[with_box])
    begun = np.flatnonzero((boxes_now == 0) & sure & (scores >= options["new"]))
    boxes_now[begun] = len(tracks) + 1 + np.arange(len(begun))
    made = _begun(boxes[begun], classes[begun], head[_NUMBER], seen=2 if is_first else 1)
    tracks = np.concatenate([tracks, made])
    ids = np.concatenate([[0.0], tracks[:, _NUMBER]])[boxes_now].astype(np.int64)
    kept = (tracks[:, _MISSED] == 0) | ((tracks[:, _MISSED] <= options["keep"]) & (tracks[:, _SEEN] > 1))
    now = head.copy()
    now[_NUMBER] += len(begun)
    now[_SEEN] += 1
    return ids, np.concatenate([now[None], tracks[kept]])


def _begun(boxes: Array, classes: Array, last: float, *, seen: int) -> Array:
    """Return new tracks [n, fields] of boxes [n, 4], numbered from behind the last one."""
    made = np.zeros((len(boxes), _FIELDS))
    made[:, _NUMBER], made[:, _CLASS], made[:, _SEEN] = last + 1 + np.arange(len(boxes)), classes, seen
    made[:, _MEAN] = _measured(boxes)
    height = made[:, _MEAN][:, 3:]
    made[:, _MEAN_SPREAD] = (_by_height(height, _OF_PLACE, 1e-2) * [2, 2, 1, 2]) ** 2
    made[:, _SPEED_SPREAD] = (_by_height(height, _OF_SPEED, 1e-5) * [10, 10, 1, 10]) ** 2
    return made


def _expected(tracks: Array) -> Array:
    """Return tracks [n, fields] where they are expected a row later; one without a box does not grow meanwhile."""
    found = tracks.copy()
    mean, speed, shared = found[:, _MEAN], found[:, _SPEED], found[:, _SHARED_SPREAD]
    speed[found[:, _MISSED] > 0, 3] = 0
    height = mean[:, 3:].copy()
    mean += speed
    found[:, _MEAN_SPREAD] += 2 * shared + found[:, _SPEED_SPREAD] + _by_height(height, _OF_PLACE, 1e-2) ** 2
    shared += found[:, _SPEED_SPREAD]
    found[:, _SPEED_SPREAD] += _by_height(height, _OF_SPEED, 1e-5) ** 2
    return found


def _correct(tracks: Array, places: Array, boxes: Array) -> None:
    """Let tracks [n, fields] at some places have seen boxes [places, 4]."""
    found = tracks[places]
    spread, shared = found[:, _MEAN_SPREAD], found[:, _SHARED_SPREAD]
    total = spread + _by_height(found[:, _MEAN][:, 3:], _OF_PLACE, 1e-1) ** 2
    off = _measured(boxes) - found[:, _MEAN]
    of_mean, of_speed = spread / total, shared / total
    found[:, _MEAN] += of_mean * off
    found[:, _SPEED] += of_speed * off
    found[:, _SPEED_SPREAD] -= of_speed * shared
    found[:, _SHARED_SPREAD] -= of_mean * shared
    found[:, _MEAN_SPREAD] -= of_mean * spread
    found[:, _MISSED] = 0
    found[:, _SEEN] += 1
    tracks[places] = found


def _by_height(height: Array, share: float, of_shape: float) -> Array:
    """Return standard deviations [n, 4], by the heights [n, 1]; that of width through height is fixed."""
    return np.concatenate([height * share, height * share, np.full_like(height, of_shape), height * share], axis=1)


def _measured(boxes: Array) -> Array:
    """Return centre x and y, width through height, and height [n, 4] of boxes [n, 4]."""
    size = np.maximum(boxes[:, 2:] - boxes[:, :2], 1e-9)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    return np.concatenate([centre, size[:, :1] / size[:, 1:], size[:, 1:]], axis=1)


def _corners(tracks: Array) -> Array:
    """Return the boxes [n, 4] where tracks [n, fields] are expected."""
    mean = tracks[:, _MEAN]
    half = np.stack([mean[:, 2] * mean[:, 3], mean[:, 3]], axis=1) / 2
    return np.concatenate([mean[:, :2] - half, mean[:, :2] + half], axis=1)


def _overlaps(one: Array, other: Array) -> Array:
    """Return intersection over union [n, m] of boxes [n, 4] and [m, 4]."""
    common = np.minimum(one[:, None, 2:], other[None, :, 2:]) - np.maximum(one[:, None, :2], other[None, :, :2])
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1) for boxes in (one, other)]
    shared = common.clip(0).prod(axis=2)
    whole = areas[0][:, None] + areas[1] - shared
    return np.asarray(np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0))
