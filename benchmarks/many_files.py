"""A job over many small pictures, one a row: nothing to do, one new picture, and the whole job over a loop by hand.

Each case is a whole process, measured by a parent that stays small, for a child begins with its parent's peak memory.
Processor seconds (user and system, of the process and its children) are printed beside seconds: a busy machine bends
them less. The loop by hand lists the folder, decodes with Pillow, runs the same model in the same batches and saves one
.npy. `--files` says how many; from 1,000,000 on, memory over that of a tenth tells whether anything grows with them.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from cold_start import Process, measure

ROUNDS = 3
SIDE, BATCH = 8, 256
OF_A_FOLDER = 100_000
MAKE = f"""\
import io, sys
from pathlib import Path
import numpy as np
from PIL import Image
from onnx import TensorProto, helper, save
pixels = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", {SIDE}, {SIDE}, 3])
mean = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
nodes = [
    helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
    helper.make_node("ReduceMean", ["f", "axes"], ["y"], keepdims=0),
]
axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])
graph = helper.make_graph(nodes, "mean", [pixels], [mean], [axes])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
model.ir_version = 10
save(model, "mean.onnx")
random = np.random.default_rng(1)
folder = Path("pictures")
folder.mkdir()
kinds = []
for _ in range(64):
    content = io.BytesIO()
    Image.fromarray(random.integers(0, 256, ({SIDE}, {SIDE}, 3), np.uint8)).save(content, "png")
    kinds.append(content.getvalue())
for number in range(int(sys.argv[1])):
    (folder / f"{{number:07}}.png").write_bytes(kinds[number % 64])
"""
BY_HAND = f"""\
import os
import numpy as np, onnxruntime
from PIL import Image
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession("mean.onnx", options, providers=["CPUExecutionProvider"])
files = sorted(entry.path for entry in os.scandir("pictures") if entry.name.endswith(".png"))
found = []
for start in range(0, len(files), {BATCH}):
    batch = []
    for path in files[start : start + {BATCH}]:
        with Image.open(path) as image:
            batch.append(np.asarray(image))
    found.append(session.run(["y"], {{"x": np.stack(batch)}})[0])
np.save("by-hand.npy", np.concatenate(found))
"""
MANIFEST = f"""\
version: 1
models:
  mean: {{path: mean.onnx, session: {{intra_op_num_threads: 1}}}}
jobs:
  run:
    model: mean
    input: {{path: pictures}}
    batch: {{size: {BATCH}}}
    output: {{path: out, format: npy}}
"""


def let_settle() -> None:
    """Wait until the files count as settled: one that has only just changed is not remembered."""
    time.sleep(3)


def start_over(folder: Path) -> None:
    """Take away all that a run has left."""
    for name in ("out", ".ortdeploy"):
        shutil.rmtree(folder / name, ignore_errors=True)


def report(name: str, found: list[Process], loop: list[Process]) -> None:
    """Print the medians of a case, and those of its ratios to the loop that ran in the same round."""
    took = {what: statistics.median(getattr(one, what) for one in found) for what in ("seconds", "processor", "peak")}
    over = statistics.median(one.processor / other.processor for one, other in zip(found, loop, strict=True))
    print(
        f"{name:14} {took['seconds']:7.2f} s, {took['processor']:7.2f} s of the processor ({over:5.3f} of the loop), "
        f"peak {took['peak'] / 1e6:6.1f} MB",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=OF_A_FOLDER)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    apply = [str(Path(sys.executable).with_name("ortdeploy")), "apply", "m.yaml"]
    found: dict[str, list[Process]] = {name: [] for name in ("loop by hand", "whole job", "nothing to do", "one new")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "m.yaml").write_text(MANIFEST)
        (folder / "loop.py").write_text(BY_HAND)
        measure([sys.executable, "-c", MAKE, str(asked.files)], folder)
        for number in range(asked.rounds):
            start_over(folder)
            found["loop by hand"].append(measure([sys.executable, "loop.py"], folder))
            found["whole job"].append(measure(apply, folder))
            let_settle()
            measure(apply, folder)
            found["nothing to do"].append(measure(apply, folder))
            for what in ("first", "new"):  # the plan of the first is remembered, as on a device where files arrive
                shutil.copy(folder / "pictures/0000000.png", folder / f"pictures/{what}-{number}.png")
                taken = measure(apply, folder)
            found["one new"].append(taken)
    print(
        f"{asked.files:,} files, Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, processes in found.items():
        report(name, processes, found["loop by hand"])


if __name__ == "__main__":
    main()
