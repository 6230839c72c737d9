"""A manifest that says nothing about threads against the best loop by hand: whole processes, from start to end.

Two jobs of ten seconds or more on two cores: 4,000,000 rows of 32 numbers through a perceptron from Parquet to
Parquet, and 6,000 pictures of 96 x 96 through four convolutions from .npy to .npz. By hand: a loop that reads, runs and
writes in turn, and one where a thread reads ahead and another writes behind, each with ONNX Runtime's own threads and
with one.
`--times N` makes the inputs N times as long, for machines where these jobs take less than ten seconds. Modules are
loaded as an installed package has them, with their bytecode.
"""

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from apply import save_mlp
from engine import BY_HAND, save_network, save_table
from measure import describe_machine, interleaved, ortdeploy
from onnx import helper

ROUNDS, ROWS, PICTURES, SIZE = 5, 4_000_000, 6_000, 96

MANIFEST = """\
version: 1
models:
  m: {{path: {model}.onnx{more}}}
jobs:
  run:
    model: m
    input: {{path: {input}}}
    batch: {{size: {batch}}}
    output: {{path: out, format: {format}}}
"""

CASES = {"perceptron": ("mlp", "mlp.parquet", 64, "parquet"), "convolutions": ("cnn", "cnn.npy", 8, "npz")}
WANTED = {"perceptron": 1.25, "convolutions": 0.97}

BY_HAND_WAYS = ("in turn", "overlapped")
THREADS = {"wide": "", "one thread": "options.intra_op_num_threads = 1"}


def save_convolutions(path: Path) -> None:
    """Four convolutions over pictures of three channels."""
    random = np.random.default_rng(0)
    sizes = (3, 24, 32, 48, 64)
    weights, nodes = {}, []
    for number, (before, after) in enumerate(pairwise(sizes)):
        weights[f"w{number}"] = (random.normal(size=(after, before, 3, 3)) / (3 * before**0.5)).astype(np.float32)
        stride = 2 if number % 2 else 1
        given = "x" if number == 0 else f"r{number - 1}"
        nodes.append(
            helper.make_node("Conv", [given, f"w{number}"], [f"c{number}"], pads=[1] * 4, strides=[stride] * 2)
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
    nodes += [helper.make_node("GlobalAveragePool", ["r3"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    save_network(nodes, ["batch", 3, SIZE, SIZE], ["batch", sizes[-1]], weights, path)


def prepare(folder: Path, name: str, times: int) -> None:
    """Make the model and the data of a case."""
    if name == "perceptron":
        save_mlp(folder / "mlp.onnx")
        save_table(folder / "mlp.parquet", ROWS * times)
        return
    save_convolutions(folder / "cnn.onnx")
    count = PICTURES * times
    pictures = np.lib.format.open_memmap(folder / "cnn.npy", mode="w+", dtype=np.float32, shape=(count, 3, SIZE, SIZE))
    for start in range(0, count, 500):
        pictures[start : start + 500] = np.random.default_rng(start).normal(size=pictures[start : start + 500].shape)


def by_hand(folder: Path, name: str, way: str, threads: str) -> float:
    """Return the seconds of a process with a loop."""
    model, data, batch, _ = CASES[name]
    text = BY_HAND.replace("options.intra_op_num_threads = 1", THREADS[threads])
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", text, f"{model}.onnx", data, str(batch), way], cwd=folder, check=True,
                   capture_output=True)  # fmt: skip
    return time.perf_counter() - begin


def by_ortdeploy(folder: Path, name: str, more: str = "") -> float:
    """Return the seconds of a process that applies the job for the first time."""
    model, data, batch, kind = CASES[name]
    for place in ("out", ".ortdeploy"):
        shutil.rmtree(folder / place, ignore_errors=True)
    (folder / "m.yaml").write_text(MANIFEST.format(model=model, more=more, input=data, batch=batch, format=kind))
    begin = time.perf_counter()
    subprocess.run(ortdeploy("apply", "-q", "m.yaml"), cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begin


def compare(folder: Path, name: str, rounds: int) -> None:
    """Print one case: seconds of the best loop by hand over those of ortdeploy, and how far rounds were apart."""
    hands = {
        f"{way}, {threads}": (lambda way=way, threads=threads: by_hand(folder, name, way, threads))
        for way in BY_HAND_WAYS
        for threads in THREADS
    }
    found = interleaved(
        {
            **hands,
            "by rule": lambda: by_ortdeploy(folder, name),
            "one wide session": lambda: by_ortdeploy(folder, name, ", sessions: [{name: m, providers: [CPU]}]"),
            "two callers": lambda: by_ortdeploy(folder, name, ", sessions: [{name: m, providers: [CPU], callers: 2}]"),
        },
        rounds,
    )
    best = min(hands, key=found.__getitem__)
    print(f"{name}: the best loop by hand is {best}, {found[best]:.1f} s; wanted at least {WANTED[name]}")
    for way in ("by rule", "one wide session", "two callers"):
        rounds_of = [a / b for a, b in zip(found.found[best], found.found[way], strict=True)]
        print(
            f"  {way}: {found.ratio(best, way):.2f} of it, rounds {min(rounds_of):.2f} to {max(rounds_of):.2f}, "
            f"{found[way]:.1f} s"
        )


def main() -> None:
    """Measure each case, or those that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(Path(__file__).parents[1] / "ortdeploy", quiet=1)
    print(f"{describe_machine()}; medians of {ROUNDS}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in arguments.cases or CASES:
            prepare(folder, name, arguments.times)
            compare(folder, name, ROUNDS)


if __name__ == "__main__":
    main()
