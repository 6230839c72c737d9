"""Whole processes that have little or nothing to do, over a bare onnxruntime script that runs the same 64 rows.

Everything is measured by a parent that stays small, for a child begins with its parent's peak memory. Compared are
seconds and processor seconds (user and system, of the process and its children), which a busy machine bends less; the
script and each command take turns. Run it with the Python of an environment that has the wheel installed.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROWS, ROUNDS = 64, 11
MAKE = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from apply import WIDTH, save_mlp
save_mlp(Path("mlp.onnx"))
np.save("rows.npy", np.random.default_rng(1).normal(size=(int(sys.argv[2]), WIDTH)).astype(np.float32))
"""
SCRIPT = """\
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession("mlp.onnx", options, providers=["CPUExecutionProvider"])
np.save("by-hand.npy", session.run(["y"], {"x": np.load("rows.npy")})[0])
"""
MANIFEST = """\
version: 1
models:
  mlp: {path: mlp.onnx, session: {intra_op_num_threads: 1}}
jobs:
  run:
    model: mlp
    input: {path: rows.npy}
    batch: {size: 64}
    output: {path: out, format: npy}
"""
ARRIVING = MANIFEST.replace("rows.npy", "inbox/*.npy").replace("path: out,", "path: outbox,")


@dataclass(frozen=True)
class Process:
    """What a process took: seconds, processor seconds, and peak memory in bytes, of its largest child where larger."""

    seconds: float
    processor: float
    peak: int


def measure(command: Sequence[str], folder: Path) -> Process:
    """Run a command to its end, which must be a good one."""
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.execv(command[0], list(command))  # noqa: S606  no shell
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return Process(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def prepare(folder: Path) -> None:
    """Write model, rows, script and manifest; a process of its own makes them, so that this one stays small."""
    (folder / "m.yaml").write_text(MANIFEST)
    (folder / "arriving").mkdir()
    (folder / "arriving/m.yaml").write_text(ARRIVING)
    (folder / "script.py").write_text(SCRIPT)
    measure([sys.executable, "-c", MAKE, str(Path(__file__).parent), str(ROWS)], folder)
    shutil.copy(folder / "mlp.onnx", folder / "arriving")
    measure([sys.executable, "script.py"], folder)  # later, it makes no new file beside the manifest


def start_over(folder: Path) -> None:
    """Take away what a run left, so that the next has its rows to run; what was remembered of files stays."""
    shutil.rmtree(folder / "out", ignore_errors=True)


def let_arrive(folder: Path) -> None:
    """Let a file with new rows come to those that were run already."""
    inbox = folder / "arriving/inbox"
    inbox.mkdir(exist_ok=True)
    shutil.copy(folder / "rows.npy", inbox / f"{sum(1 for _ in inbox.iterdir()):04}.npy")


def compare(name: str, ours: Sequence[str], folder: Path, before: Callable[[Path], None]) -> None:
    """Run the script and a command in turn, and print the command's figures over the script's."""
    pairs = []
    for _ in range(ROUNDS):
        before(folder)
        pairs.append((measure([sys.executable, "script.py"], folder), measure(ours, folder)))
    seconds, processor = (
        statistics.median(getattr(our, what) / getattr(script, what) for script, our in pairs)
        for what in ("seconds", "processor")
    )
    our_time, script_time = (statistics.median(pair[side].processor for pair in pairs) for side in (1, 0))
    our_peak, script_peak = (statistics.median(pair[side].peak for pair in pairs) for side in (1, 0))
    print(
        f"{name:22} {seconds:5.2f} of the script's seconds, {processor:5.2f} of its processor seconds "
        f"({our_time:.3f} to {script_time:.3f}), peak {our_peak / 1e6:5.1f} MB to {script_peak / 1e6:.1f} MB"
    )


def beyond_python(name: str, ours: Sequence[str], folder: Path) -> None:
    """Print how many processor seconds a command takes beyond a Python that does nothing."""
    pairs = [(measure([sys.executable, "-c", "pass"], folder), measure(ours, folder)) for _ in range(ROUNDS)]
    beyond = statistics.median(our.processor - empty.processor for empty, our in pairs)
    print(f"{name:22} {beyond * 1000:5.0f} ms of the processor beyond an empty Python")


def main() -> None:
    """Measure and print."""
    program = str(Path(sys.executable).with_name("ortdeploy"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        print(f"Python {sys.version.split()[0]}, {cores}; medians of {ROUNDS}")
        apply = [program, "apply", "m.yaml"]
        measure(apply, folder)
        time.sleep(3)  # a file that has only just changed is not remembered
        measure(apply, folder)
        compare("apply, nothing to do", apply, folder, lambda _folder: None)
        compare("status", [program, "status", "m.yaml"], folder, lambda _folder: None)
        arriving = [program, "apply", "arriving/m.yaml"]
        let_arrive(folder)
        measure(arriving, folder)
        start_over(folder)
        time.sleep(3)  # nor is a plan beside whose manifest a folder has only just come or gone
        measure(apply, folder)
        let_arrive(folder)
        measure(arriving, folder)
        compare(f"apply, {ROWS} rows", apply, folder, start_over)
        compare(f"apply, {ROWS} new rows", arriving, folder, let_arrive)
        beyond_python("validate", [program, "validate", "m.yaml"], folder)


if __name__ == "__main__":
    main()
