"""What `plan --measure` says of a job's memory against what the job takes; limits that hold; varying shapes.

With `--seed N` it compares forty networks that are drawn from the seed instead (`random_networks.py`). Their memory is
measured by a parent of a few megabytes: the peak that the system tells of a process is never less than what its parent
held when it was started.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from apply import save_mlp
from engine import save_cnn, save_transformer
from measure import describe_machine, ortdeploy
from random_networks import Case, draw, save_rows

MIB = 1024 * 1024
BATCHES = 6
FILES, LONGEST, ROUNDS, WIDTH = 2000, 384, 3, 256

NETWORKS = 40
LOWEST, HIGHEST = 0.90, 1.15

CASES = [
    *(("mlp", (512,), size) for size in (32, 256, 1024, 4096, 16384)),
    *(("cnn", (3, 96, 96), size) for size in (1, 8, 32, 64, 128)),
    *(("transformer", (192, 384), size) for size in (1, 4, 16, 32, 64)),
    *(("table", (64,), size) for size in (32, 1024)),
]

MANIFEST = """\
version: 1
models:
  m: {{path: {model}.onnx{more}}}
jobs:
  run:
    model: m
    input: {{path: {data}}}
    batch: {{size: {size}}}
    output: {{path: out, format: npy}}
    limits: {limits}
"""

DRAWN_MANIFEST = """\
version: 1
models:
  m: {{path: {number}.onnx{case.sessions}}}
jobs:
  run:
    model: m
    input: {{path: rows.{case.read}}}
    batch: {{size: {case.batch}}}
    output: {{path: out, format: {case.written}, rows_per_part: {case.rows_per_part}}}
"""

PARENT = """\
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def prepare(folder: Path) -> None:
    """Make the models, and files of varying shapes for the transformer."""
    save_table(folder / "table.onnx", 1024 * 1024, 128)
    save_mlp(folder / "mlp.onnx", 512, 2048)
    save_cnn(folder / "cnn.onnx", 96)
    save_transformer(folder / "transformer.onnx", 192, 384)
    save_transformer(folder / "tokens.onnx", "tokens", WIDTH)
    _take_samples(folder / "tokens.onnx")
    (folder / "varying").mkdir()
    random = np.random.default_rng(0)
    for number in range(FILES):
        samples = random.integers(-1000, 1000, size=int(random.integers(1, LONGEST)) * WIDTH).astype(np.int16)
        with wave.open(str(folder / f"varying/{number:04}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, len(samples), "NONE", ""))
            file.writeframes(samples.tobytes())


def _take_samples(path: Path) -> None:
    """Let a transformer take sound, which it cuts into tokens."""
    model = onnx.load(str(path))
    model.graph.node.insert(0, onnx.helper.make_node("Reshape", ["samples", "shape"], ["x"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -1, WIDTH], dtype=np.int64), "shape"))
    del model.graph.input[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("samples", onnx.TensorProto.FLOAT, ["batch", "n"]))
    onnx.save(model, str(path))


def save_table(path: Path, words: int, width: int) -> None:
    """Save a model that looks words up in a large table in another file, and adds them up."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Cast", ["x"], ["word"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "word"], ["found"]),
        helper.make_node("ReduceMean", ["found"], ["y"], axes=[1], keepdims=0),
    ]
    values = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64]),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", width]),
    ]
    table = onnx.numpy_helper.from_array(np.ones((words, width), np.float32), "table")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path), save_as_external_data=True, location="table.data", size_threshold=0)


def forget(folder: Path) -> None:
    """Delete results and everything that is remembered."""
    for place in (folder / "out", folder / ".ortdeploy"):
        shutil.rmtree(place, ignore_errors=True)


def write_manifest(folder: Path, **manifest: Any) -> None:
    """Forget everything, and write the manifest of a job."""
    forget(folder)
    (folder / "m.yaml").write_text(MANIFEST.format(**({"more": "", "limits": "{}"} | manifest)))


def measured_before(folder: Path) -> int:
    """Return the bytes that a job takes as its first rows tell."""
    command = ortdeploy("plan", "--measure", "--format", "json", "m.yaml")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (forecast,) = (step["limits"]["forecast"] for step in json.loads(done.stdout)["steps"] if "limits" in step)
    return int(forecast["measured"][0]["size"])


def apply(folder: Path, **manifest: Any) -> tuple[int, str, Mapping[str, Any]]:
    """Apply a job; return its exit code, what it said, and its report."""
    write_manifest(folder, **manifest)
    done = subprocess.run(ortdeploy("apply", "-q", "m.yaml"), cwd=folder, capture_output=True, text=True, check=False)
    report = folder / "out/_run.json"
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.is_file() else {}


def predictions(folder: Path) -> None:
    """Print measured before over measured in the run for every case, and what becomes of jobs with limits around it."""
    good, kept = 0, 0
    for model, shape, size in CASES:
        np.save(folder / "data.npy", np.zeros((size * BATCHES, *shape), dtype=np.float32))
        job = {"model": model, "data": "data.npy", "size": size}
        write_manifest(folder, **job)
        before = measured_before(folder)
        _, _, report = apply(folder, **job)
        taken = report["peak_memory_bytes"]
        good += LOWEST <= before / taken <= HIGHEST
        ends = []
        for share in (1.2, 0.8):
            limit = int(taken * share)
            code, said, limited = apply(folder, **job, limits=f"{{memory: {limit}}}")
            refused = "over-memory-limit" in said
            kept += refused or limited["peak_memory_bytes"] <= limit
            ends.append(
                "refused" if refused else f"exit {code}, {limited['peak_memory_bytes'] / limit:.2f} of it taken"
            )
        print(
            f"{model} of {size} rows: first rows {before / MIB:.0f} MiB, all {taken / MIB:.0f}, ratio "
            f"{before / taken:.2f}; with a limit of 1.2 times that {ends[0]}, of 0.8 {ends[1]}",
            flush=True,
        )
    print(f"{good} of {len(CASES)} within {LOWEST} and {HIGHEST}; {kept} of {2 * len(CASES)} limits kept")


def varying(folder: Path) -> None:
    """Print what memory a job over varying shapes has gained at its end, and its seconds, by profile."""
    settings = {"defaults": "", "lean": ", memory: lean", "fast": ", memory: fast"}
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    gained: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(ROUNDS):
        for name, more in settings.items():
            _, _, one = apply(folder, model="tokens", data="varying/0000.wav", size=1, more=more)
            _, _, all_ = apply(folder, model="tokens", data="varying/*.wav", size=1, more=more)
            gained[name].append((all_["memory"]["resident_bytes"] - one["memory"]["resident_bytes"]) / MIB)
            seconds[name].append(all_["session_run"]["seconds"])
    fastest = min(map(statistics.median, seconds.values()))
    for name in settings:
        print(
            f"{FILES} files of varying shapes, {name}: {statistics.median(gained[name]):.0f} MiB gained, "
            f"{statistics.median(seconds[name]) / fastest:.2f} of the fastest's seconds in session.run"
        )


def drawn(folder: Path, seed: int, only: int | None) -> None:
    """Print measured before over measured in the run for each network of a seed, and how many are within the bounds."""
    random = np.random.default_rng(seed)
    good = 0
    for number in range(NETWORKS):
        case = draw(random, number, folder)
        if only in {None, number}:
            before, taken = _measured(folder, number, case)
            ratio = before / taken
            is_good = LOWEST <= ratio <= HIGHEST
            good += is_good
            print(
                f"{number:2} {case.name}: {case.rows} rows of {case.row}, batch {case.batch}, {case.read} to "
                f"{case.written}, parts of {case.rows_per_part}{case.sessions}: first rows {before / MIB:.0f} MiB "
                f"all {taken / MIB:.0f}, ratio {ratio:.2f}{'' if is_good else ' OUTSIDE'}",
                flush=True,
            )
        (folder / f"{number}.onnx").unlink()
    print(f"{good} of {NETWORKS} within {LOWEST} and {HIGHEST}; seed {seed}")


def _measured(folder: Path, number: int, case: Case) -> tuple[int, int]:
    """Return what the first rows of a job took, and what its process took at most, in bytes."""
    forget(folder)
    save_rows(folder / f"rows.{case.read}", case)
    (folder / "m.yaml").write_text(DRAWN_MANIFEST.format(number=number, case=case))
    before = measured_before(folder)
    command = [sys.executable, "-I", "-S", "-c", PARENT, *ortdeploy("apply", "-q", "m.yaml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"network {number} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return before, int(done.stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="compare networks that are drawn from this number")
    parser.add_argument("--only", type=int, help="of these, compare the one of this number")
    chosen = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        if chosen.seed is not None:
            drawn(Path(name), chosen.seed, chosen.only)
            return
        prepare(Path(name))
        predictions(Path(name))
        varying(Path(name))


if __name__ == "__main__":
    main()
