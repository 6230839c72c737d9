"""The batch engine against Ray Data's map_batches on the same files: rows per second, memory, time to the first row.

Whole processes are measured, from start to end; memory is the largest sum of proportional set sizes over all of a
command's processes. Ray is no dependency: RAY_PYTHON names the interpreter of an environment that has it
(pip install 'ray[data]' onnxruntime).
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from apply import save_mlp
from engine import save_table
from measure import describe_machine, ortdeploy

ROWS, ROUNDS = 2_000_000, 3
MANIFEST = """\
version: 1
models:
  m: {path: mlp.onnx, session: {intra_op_num_threads: 1}}
jobs:
  run:
    model: m
    input: {path: x.parquet}
    batch: {size: 4096}
    output: {path: out, format: parquet}
"""
RAY = """\
import ray, numpy as np, onnxruntime
class Model:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession("mlp.onnx", options, providers=["CPUExecutionProvider"])
    def __call__(self, batch):
        x = np.ascontiguousarray(np.stack(batch["x"]).astype(np.float32, copy=False))
        return {"y": self.session.run(["y"], {"x": x})[0]}
ray.init(logging_level="ERROR", include_dashboard=False)
data = ray.data.read_parquet("x.parquet").map_batches(Model, batch_size=4096, concurrency=1)
data.write_parquet("ray")
"""


@dataclass(frozen=True)
class Measured:
    """A command's seconds, its largest memory in bytes, and the seconds until something was in its output folder."""

    seconds: float
    memory: int
    first: float


def _family(root: int) -> Iterator[int]:
    """Yield a process and all that come from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    left = [root]
    while left:
        process = left.pop()
        yield process
        left += children.get(process, [])


def _memory(root: int) -> int:
    """Return the proportional set sizes of a process and all that come from it, in bytes."""
    total = 0
    for process in _family(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += int(text.partition("Pss:")[2].split()[0]) * 1024
        except (OSError, IndexError, ValueError):
            continue
    return total


def measure(command: Sequence[str], folder: Path, output: Path) -> Measured:
    """Run a command and watch it."""
    shutil.rmtree(output, ignore_errors=True)
    begin, first, largest = time.perf_counter(), 0.0, 0
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        largest = max(largest, _memory(process.pid))
        if not first and any(output.glob("*.parquet")):
            first = time.perf_counter() - begin
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"{command} ended with {process.returncode}")
    seconds = time.perf_counter() - begin
    return Measured(seconds=seconds, memory=largest, first=first or seconds)


def main() -> None:
    """Measure both in turn and print their ratios."""
    python = os.environ.get("RAY_PYTHON")
    if python is None:
        sys.exit("RAY_PYTHON must name a Python with ray[data] and onnxruntime")
    print(f"{describe_machine()}; medians of {ROUNDS}; {ROWS:,} rows")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_mlp(folder / "mlp.onnx")
        save_table(folder / "x.parquet", ROWS)
        (folder / "m.yaml").write_text(MANIFEST)
        (folder / "by_ray.py").write_text(RAY)
        pairs = [
            (
                measure(ortdeploy("apply", "-q", "m.yaml"), folder, folder / "out"),
                measure([python, "by_ray.py"], folder, folder / "ray"),
            )
            for _ in range(ROUNDS)
        ]
    speed = statistics.median(ray.seconds / ours.seconds for ours, ray in pairs)
    memory = statistics.median(ours.memory / ray.memory for ours, ray in pairs)
    first = statistics.median(ours.first / ray.first for ours, ray in pairs)
    ours, ray = pairs[0]
    print(f"rows per second over Ray Data's: {speed:.1f} ({ours.seconds:.1f} s and {ray.seconds:.1f} s)")
    print(f"memory over its: {memory:.2f} ({ours.memory / 2**20:.0f} MiB and {ray.memory / 2**20:.0f} MiB)")
    print(f"time to the first rows over its: {first:.2f} ({ours.first:.1f} s and {ray.first:.1f} s)")


if __name__ == "__main__":
    main()
