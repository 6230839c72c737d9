"""Arrays change their element type in `tensors/conversion.py` alone, or where a list here says why nothing gets lost."""

import ast
from collections.abc import Iterator
from pathlib import Path

from conftest import REPOSITORY

ROOMS = ("sources", "sinks", "feeds", "transforms", "operations")

EXACT = {
    "sources/wav.py _samples": "bytes are float32 as they are",
    "sources/recordings.py row_of": "a rate is a whole number",
    "sources/bytes.py _decode": "a size is a whole number",
    "sinks/protocol.py as_rows": "text becomes objects",
    "sinks/recordings.py _wav": "the same samples in the order of bytes that WAV has",
    "sinks/npz.py merge": "numbers of rows",
    "sinks/tables.py _array": "offsets within a block",
    "transforms/normalize.py _along": "the manifest's numbers, in the type that is computed in",
    "transforms/grayscale.py _luma": "Pillow's fixed-point arithmetic on bytes, which stays within a byte",
    "transforms/sampling.py _nearest": "places in a picture",
    "transforms/sampling.py _of_two": "OpenCV's fixed-point arithmetic on bytes, whose results are bytes",
    "transforms/log_mel.py _filters": "the manifest's numbers",
    "transforms/sampling.py _eight_taps": "distances in a picture; weights that OpenCV has in float32",
    "transforms/sampling.py _of_taps": "OpenCV's fixed-point arithmetic on bytes, clipped to bytes",
    "transforms/sampling.py _area": "means of float32 or of bytes, computed in float64",
    "transforms/sampling.py _places": "places in a picture; OpenCV has the distances in float32",
    "transforms/sampling.py _grown_taps": "places in a picture; OpenCV has the distances in float32",
    "transforms/sampling.py cubic_weights": "weights that are float32 already",
    "transforms/sampling.py _means": "places in a picture",
    "transforms/sampling.py _fixed": "OpenCV's fixed-point weights",
    "transforms/sampling.py _mixed": "weights in the type that is computed in",
    "operations/places.py find_runs": "booleans",
    "operations/center_decode.py build": "places in a map, and numbers of classes",
    "operations/letters.py build": "ids of letters, which the file bounds",
    "operations/resizing.py _placed": "places in a picture",
    "operations/look_up.py build": "numbers of a file, in the element type that the manifest names",
    "operations/masks.py build": "places that are clipped to a picture",
    "operations/polygons.py _outline": "places in a picture",
    "operations/rle.py _runs": "booleans",
    "operations/text_spans.py _lists": "places in a text, and scores that are float32 by contract",
    "operations/time_spans.py _high": "booleans",
    "operations/time_spans.py build": "seconds, and means that are float32 by contract",
    "operations/text_boxes.py _mean_inside": "places that are clipped to a picture",
    "operations/text_boxes.py build": "corners and scores that are float32 by contract",
    "operations/text_boxes.py _outlines": "places in a picture",
    "operations/crop.py _cut": "places that are clipped to a picture",
    "operations/crop.py _projection": "sides of a picture",
    "operations/crop.py _sampled": "distances below one",
    "operations/boxes_from_heatmap.py build": "places in a picture",
    "operations/letterbox.py build": "sizes, and factors that are float32 by contract",
    "operations/unletterbox.py build": "what letterbox gave, float32",
    "operations/yolo_heads.py build": "the anchors of the manifest or of a model, float32 by contract",
    "operations/tokenize.py _array": "ids of tokens",
    "operations/tokenize_clip.py build": "ids of tokens",
    "operations/nms.py _keep": "places",
    "operations/boxes.py build": "the manifest's numbers",
    "operations/assignment.py assign": "what is gained, in float64",
    "operations/track.py build": "boxes, scores and classes, of which only the order and overlaps count",
    "operations/track.py _follow": "numbers of tracks, whole in float64",
}
"""Functions that convert by themselves, each with the reason why no value changes that is not meant to."""

_MAKERS = {"asarray", "array"}
_OBJECTS = {"object", "np.object_"}


def _converts(call: ast.Call) -> bool:
    """Whether a call changes the element type of values: astype, or asarray and array with a type."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "astype":
        return True
    if call.func.attr not in _MAKERS or ast.unparse(call.func.value) != "np":
        return False
    types = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "dtype")]
    return any(ast.unparse(one) not in _OBJECTS for one in types)


def converting(path: Path) -> Iterator[str]:
    """Yield the functions of a module that convert, each as often as it does, by its outermost name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        methods = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in methods:
            calls = [call for call in ast.walk(one) if isinstance(call, ast.Call) and _converts(call)]
            yield from [getattr(one, "name", ast.unparse(one)[:20])] * len(calls)


def test_nothing_else_converts() -> None:
    package = REPOSITORY / "ortdeploy"
    found = {
        f"{path.relative_to(package).as_posix()} {name}"
        for room in ROOMS
        for path in sorted((package / room).rglob("*.py"))
        for name in converting(path)
    }
    assert not found - set(EXACT), "convert with ortdeploy.tensors.conversion, or say here why no value changes"
    assert not set(EXACT) - found, "no longer there"


def test_a_new_astype_is_found(tmp_path: Path) -> None:
    for text in ("x.astype(np.uint8)", "np.asarray(x, np.float32)", "np.array(x, dtype='int8')"):
        (tmp_path / "a.py").write_text(f"def f(x):\n    def g():\n        return {text}\n")
        assert list(converting(tmp_path / "a.py")) == ["f"]
    (tmp_path / "a.py").write_text("def f(x):\n    return np.array(x, dtype=object), np.asarray(x)\n")
    assert not list(converting(tmp_path / "a.py"))
