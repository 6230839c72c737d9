"""The batch engine against hand-written loops over the same files and session, and its memory over millions of rows.

Three jobs: a tabular MLP of about 50 µs a batch with Parquet in and out, a convolutional network of about 5 ms, and a
transformer block of about 20 ms a batch, both from .npy to .npz; and one where decoding PNG files costs as much as
running. By hand: one loop that reads, runs and writes in turn, and the best loop that one could write, where a thread
reads ahead and another writes behind. ortdeploy's figure is the job's own time, with every fsync.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from apply import save_mlp
from measure import describe_machine, interleaved, ortdeploy
from onnx import NodeProto, TensorProto, helper, numpy_helper, save
from PIL import Image
from pyarrow import parquet

ROUNDS = 9
CNN_ROWS, BLOCK_ROWS, TABLE_ROWS, IMAGES = 20_000, 3_000, 2_000_000, 1000
MANY, FEW = 10_000_000, 100_000

MANIFEST = """\
version: 1
models:
  m: {{path: {model}.onnx, session: {{intra_op_num_threads: 1}}}}
jobs:
  run:
    model: m
    input: {{path: {input}}}
    batch: {{size: {batch}}}
    output: {{path: out, format: {format}}}
{more}"""

BY_HAND = """\
import json, sys, threading, queue, time
import numpy as np, onnxruntime
from pathlib import Path
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
batch, how = int(sys.argv[3]), sys.argv[4]
name = session.get_outputs()[0].name

def chunks():
    path = sys.argv[2]
    if path.endswith(".parquet"):
        from pyarrow import parquet
        for part in parquet.ParquetFile(path).iter_batches(batch * 512, use_threads=False):
            column = part.column(0)
            yield column.flatten().to_numpy().reshape(len(column), -1)
    elif path.endswith(".npy"):
        rows = np.load(path, mmap_mode="r")
        for start in range(0, len(rows), batch * 8):
            yield np.array(rows[start : start + batch * 8])
    else:
        from PIL import Image
        files = sorted(Path(path).parent.glob("*.png"))
        for start in range(0, len(files), batch):
            yield np.stack([np.asarray(Image.open(file)) for file in files[start : start + batch]]).astype(np.float32)

def run(rows):
    runs = [session.run([name], {{"x": rows[i : i + batch]}})[0] for i in range(0, len(rows), batch)]
    return np.concatenate(runs)

class Writer:
    def __init__(self):
        self.table, self.kept = None, []
    def write(self, y):
        if not sys.argv[2].endswith(".parquet"):
            self.kept.append(y)
            return
        import pyarrow as pa
        from pyarrow import parquet
        table = pa.table({{"y": pa.FixedSizeListArray.from_arrays(pa.array(y.reshape(-1)), y.shape[1])}})
        self.table = self.table or parquet.ParquetWriter("hand.parquet", table.schema)
        self.table.write_table(table)
    def close(self):
        if self.table:
            self.table.close()
        else:
            np.savez("hand.npz", y=np.concatenate(self.kept))

writer = Writer()
begin = time.perf_counter()
if how == "in turn":
    for rows in chunks():
        writer.write(run(rows))
else:
    read, written = queue.Queue(3), queue.Queue(3)
    def reader():
        for rows in chunks():
            read.put(rows)
        read.put(None)
    def write():
        while (y := written.get()) is not None:
            writer.write(y)
    threads = [threading.Thread(target=reader), threading.Thread(target=write)]
    [thread.start() for thread in threads]
    while (rows := read.get()) is not None:
        written.put(run(rows))
    written.put(None)
    [thread.join() for thread in threads]
writer.close()
print(time.perf_counter() - begin)
""".replace("{{", "{").replace("}}", "}")


def save_network(
    nodes: Sequence[NodeProto], x: Sequence[Any], y: Sequence[Any], weights: Mapping[str, np.ndarray], path: Path
) -> None:
    """Write a model that takes x [batch, …] and gives y [batch, …]."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def save_cnn(path: Path, size: int = 32) -> None:
    """Three convolutions over pictures of three channels."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(size=(16, 3, 3, 3)).astype(np.float32) / 9,
        "w2": random.normal(size=(32, 16, 3, 3)).astype(np.float32) / 40,
        "w3": random.normal(size=(10, 32, 1, 1)).astype(np.float32) / 6,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w3"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["y"]),
    ]
    save_network(nodes, ["batch", 3, size, size], ["batch", 10], weights, path)


def save_transformer(path: Path, tokens: int | str = 64, width: int = 256) -> None:
    """One attention head and a feed-forward layer over embeddings."""
    random = np.random.default_rng(0)
    shapes = {
        "q": (width, width),
        "k": (width, width),
        "v": (width, width),
        "u": (width, 4 * width),
        "o": (4 * width, width),
    }
    weights = {name: (random.normal(size=shape) / shape[0] ** 0.5).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        *(helper.make_node("MatMul", ["x", one], [one + "x"]) for one in "qkv"),
        helper.make_node("Transpose", ["kx"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["qx", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vx"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["r"]),
        helper.make_node("MatMul", ["r", "u"], ["h"]),
        helper.make_node("Relu", ["h"], ["g"]),
        helper.make_node("MatMul", ["g", "o"], ["f"]),
        helper.make_node("ReduceMean", ["f"], ["y"], axes=[1], keepdims=0),
    ]
    save_network(nodes, ["batch", tokens, width], ["batch", width], weights, path)


def prepare(folder: Path) -> None:
    """Make models and data."""
    random = np.random.default_rng(1)
    save_mlp(folder / "mlp.onnx")
    save_cnn(folder / "cnn.onnx")
    save_transformer(folder / "transformer.onnx")
    np.save(folder / "cnn.npy", random.normal(size=(CNN_ROWS, 3, 32, 32)).astype(np.float32))
    np.save(folder / "transformer.npy", random.normal(size=(BLOCK_ROWS, 64, 256)).astype(np.float32))
    save_table(folder / "mlp.parquet", TABLE_ROWS)
    save_network(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
            helper.make_node("Conv", ["t", "w"], ["c"], strides=[2, 2]),
            helper.make_node("ReduceMean", ["c"], ["y"], axes=[2, 3], keepdims=0),
        ],
        ["batch", 256, 256, 3],
        ["batch", 24],
        {"w": random.normal(size=(24, 3, 5, 5)).astype(np.float32)},
        folder / "pictures.onnx",
    )
    (folder / "pictures").mkdir()
    picture = np.cumsum(random.integers(-3, 4, size=(256, 256, 3)), axis=1).astype(np.uint8)
    for number in range(IMAGES):
        Image.fromarray(np.roll(picture, number, axis=0)).save(folder / f"pictures/{number:04}.png")


def save_table(path: Path, rows: int) -> None:
    """Write rows of 32 numbers, in row groups of 50,000."""
    with parquet.ParquetWriter(path, pa.schema({"x": pa.list_(pa.float32(), 32)})) as writer:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            numbers = np.random.default_rng(start).normal(size=count * 32).astype(np.float32)
            table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 32)})
            writer.write_table(table, row_group_size=50_000)


def by_hand(folder: Path, model: str, data: str, batch: int, how: str) -> float:
    """Return the seconds of a loop."""
    command = [sys.executable, "-c", BY_HAND, f"{model}.onnx", data, str(batch), how]
    return float(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


UNSYNCED = (
    "import os, sys; os.fsync = lambda file: None; from ortdeploy.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def by_ortdeploy(
    folder: Path, model: str, data: str, batch: int, kind: str, more: str = "", *, synced: bool = True
) -> dict[str, Any]:
    """Return the report of a job, whose parts are made durable or left to the operating system."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    text = MANIFEST.format(model=model, input=data, batch=batch, format=kind, more=more)
    (folder / "m.yaml").write_text(text)
    command = ortdeploy("apply", "-q", "m.yaml")
    unsynced = [sys.executable, "-c", UNSYNCED, *command[1:]]
    subprocess.run(command if synced else unsynced, cwd=folder, check=True, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "out/_run.json").read_text())
    return report


CASES = {
    "MLP, Parquet": ("mlp", "mlp.parquet", 32, "parquet", ""),
    "CNN": ("cnn", "cnn.npy", 40, "npz", ""),
    "transformer": ("transformer", "transformer.npy", 18, "npz", ""),
    "pictures": ("pictures", "pictures/*.png", 8, "npz", "    prepare: {x: [{cast: float32}]}\n"),
}


def compare(folder: Path, name: str) -> None:
    """Print one case: rows per second over both loops, and the share of the time in session.run."""
    model, data, batch, kind, more = CASES[name]
    reports: list[dict[str, Any]] = []

    def ours() -> float:
        reports.append(by_ortdeploy(folder, model, data, batch, kind, more))
        return float(reports[-1]["seconds"])

    found = interleaved(
        {
            "in turn": lambda: by_hand(folder, model, data, batch, "in turn"),
            "overlapped": lambda: by_hand(folder, model, data, batch, "overlapped"),
            "ours": ours,
            "unsynced": lambda: by_ortdeploy(folder, model, data, batch, kind, more, synced=False)["seconds"],
        },
        ROUNDS,
    )
    best = found.ratio(min("in turn", "overlapped", key=found.__getitem__), "ours")
    share = statistics.median(report["session_run_share"] for report in reports)
    run = statistics.median(report["session_run"]["p50"] for report in reports)
    commit = statistics.median(report["stages"]["commit"]["seconds"] / report["seconds"] for report in reports)
    print(
        f"{name}, {run * 1e6:,.0f} µs a batch: {best:.2f} of the best loop, {found.ratio('in turn', 'ours'):.2f} of "
        f"the loop in turn; {share:.0%} of the time in session.run; commits take {commit:.1%} beside it, and the job "
        f"{found.ratio('ours', 'unsynced'):.3f} of its time without fsync"
    )


def memory(folder: Path) -> None:
    """Print the peak memory of many rows over that of few."""
    peaks = {}
    for rows in (FEW, MANY):
        save_table(folder / f"{rows}.parquet", rows)
        peaks[rows] = by_ortdeploy(folder, "mlp", f"{rows}.parquet", 1024, "parquet")["peak_memory_bytes"]
        (folder / f"{rows}.parquet").unlink()
    ratio = peaks[MANY] / peaks[FEW]
    print(f"peak memory: {MANY:,} rows {peaks[MANY] / 2**20:.0f} MiB, {ratio:.2f} of {FEW:,} rows")


def main() -> None:
    """Measure every case, and the memory."""
    print(f"{describe_machine()}; medians of {ROUNDS}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        for name in CASES if len(sys.argv) == 1 else sys.argv[1:]:
            if name == "memory":
                memory(folder)
            else:
                compare(folder, name)
        if len(sys.argv) == 1:
            memory(folder)


if __name__ == "__main__":
    main()
