"""Pipelines against the same steps written by hand, one loop in one thread; ortdeploy's figure is the job's time.

Pages: read PNG pages, run a detector on four at a time, cut what it finds out, fit it into 8 x 8 pixels, run a reader
on 32 of those. The models take microseconds, so nearly all of it is Python, which three threads share.
Pictures: a convolutional network of milliseconds, a softmax, and a perceptron on its shares, from .npy to .npy.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from apply import save_mlp
from engine import save_cnn
from measure import describe_machine, interleaved, ortdeploy

ROUNDS, COPIES, PICTURE_ROWS = 9, 600, 40_000
EXAMPLES = Path(__file__).parent.parent / "deployments"

PICTURES = """\
version: 1
models:
  network: {path: cnn.onnx, session: {intra_op_num_threads: 1}}
  judge: {path: mlp.onnx, session: {intra_op_num_threads: 1}}
pipelines:
  judge:
    steps:
      - {run: network, in: {x: $x}, out: {y: scores}}
      - {do: softmax, in: {x: $scores}, out: shares}
      - {run: judge, in: {x: $shares}, out: {y: verdict}}
    outputs: {verdict: $verdict}
jobs:
  run:
    pipeline: judge
    input: {path: pictures.npy}
    batch: {size: 64}
    output: {path: outbox, format: npy}
"""

PICTURES_BY_HAND = """\
import time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
network, judge = (
    onnxruntime.InferenceSession(f"{name}.onnx", options, providers=["CPUExecutionProvider"]) for name in ("cnn", "mlp")
)
begin = time.perf_counter()
pictures = np.load("pictures.npy", mmap_mode="r")
verdicts = []
for at in range(0, len(pictures), 64):
    (scores,) = network.run(["y"], {"x": np.ascontiguousarray(pictures[at:at + 64])})
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    (verdict,) = judge.run(["y"], {"x": exponentials / exponentials.sum(axis=-1, keepdims=True)})
    verdicts.append(verdict)
np.save("by_hand.npy", np.concatenate(verdicts))
print(time.perf_counter() - begin)
"""

BY_HAND = """\
import json, sys, time
from pathlib import Path
import numpy as np, onnxruntime
from PIL import Image
from ortdeploy.operations import boxes_from_heatmap, crop, letterbox
from ortdeploy.tensors.types import TensorType
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
detector, reader = (
    onnxruntime.InferenceSession(f"models/{name}.onnx", options, providers=["CPUExecutionProvider"])
    for name in ("detector", "digits")
)
image = TensorType("float32", ("rows", None, None, 1), "NHWC")
find = boxes_from_heatmap.build({"threshold": 0.5, "min_area": 6, "margin": -1, "stride": 1}, {})
cut = crop.build({}, {"image": image})
fit = letterbox.build({"size": [8, 8], "value": 0}, {})
begin = time.perf_counter()
with open("by_hand.jsonl", "w") as out:
    paths = sorted(Path("pages").glob("*.png"))
    for at in range(0, len(paths), 4):
        pages = np.stack([np.asarray(Image.open(path))[..., None] for path in paths[at:at + 4]]).astype(np.float32)
        pages *= np.float32(0.00416666666)
        (heat,) = detector.run(["heat"], {"page": np.ascontiguousarray(pages.transpose(0, 3, 1, 2))})
        (boxes,) = find({"heat": heat})
        (crops,) = cut({"image": pages, "boxes": boxes})
        items = [one for row in crops for one in row]
        digits = []
        for first in range(0, len(items), 32):
            scans, _ = fit({"image": items[first:first + 32]})
            (scores,) = reader.run(["scores"], {"image": np.ascontiguousarray(scans.transpose(0, 3, 1, 2))})
            digits += scores.argmax(axis=-1).tolist()
        for path, row in zip(paths[at:at + 4], boxes):
            mine, digits = digits[:len(row)], digits[len(row):]
            out.write(json.dumps({"path": str(path), "boxes": row.tolist(), "digits": mine}) + "\\n")
print(time.perf_counter() - begin)
"""


def prepare(folder: Path) -> None:
    """Copy the example, with its pages many times over."""
    (folder / "models").mkdir()
    (folder / "pages").mkdir()
    for name in ("pages.yaml", "models/detector.onnx", "models/digits.onnx"):
        shutil.copy(EXAMPLES / name, folder / name)
    for path in (EXAMPLES / "pages").glob("*.png"):
        for copy in range(COPIES):
            shutil.copy(path, folder / f"pages/{path.stem}-{copy:03}.png")


def prepare_pictures(folder: Path) -> None:
    """Make the two models and their pictures."""
    save_cnn(folder / "cnn.onnx")
    save_mlp(folder / "mlp.onnx", 10, 64)
    np.save(folder / "pictures.npy", np.random.default_rng(0).normal(size=(PICTURE_ROWS, 3, 32, 32)).astype(np.float32))
    (folder / "pictures.yaml").write_text(PICTURES)


def by_pipeline(folder: Path, manifest: str, output: str) -> float:
    """Return the seconds of the job."""
    for place in (folder / "outbox", folder / ".ortdeploy"):
        shutil.rmtree(place, ignore_errors=True)
    subprocess.run(ortdeploy("apply", "-q", manifest), cwd=folder, check=True, capture_output=True)
    return float(json.loads((folder / output / "_run.json").read_text())["seconds"])


def by_hand(folder: Path, loop: str) -> float:
    """Return the seconds of a loop."""
    done = subprocess.run([sys.executable, "-c", loop], cwd=folder, check=True, capture_output=True, text=True)
    return float(done.stdout)


def compare(folder: Path, what: str, rows: int, manifest: str, output: str, loop: str) -> None:
    """Measure both in turn and print."""
    cases = {"hand": lambda: by_hand(folder, loop), "pipeline": lambda: by_pipeline(folder, manifest, output)}
    found = interleaved(cases, ROUNDS)
    hand, pipeline = rows / found["hand"], rows / found["pipeline"]
    ratio = found.ratio("hand", "pipeline")
    print(f"{rows} {what}: by hand {hand:.0f} a second, pipeline {pipeline:.0f}, ratio {ratio:.2f}")


def main() -> None:
    """Measure and print."""
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        prepare_pictures(folder)
        compare(folder, "pictures", PICTURE_ROWS, "pictures.yaml", "outbox", PICTURES_BY_HAND)
        pages = len(list((folder / "pages").iterdir()))
        compare(folder, "pages", pages, "pages.yaml", "outbox/pages", BY_HAND)


if __name__ == "__main__":
    main()
