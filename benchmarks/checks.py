"""What share of a job's time the checks of every batch take: type, shape and symbols; and a range, where declared.

The job is batches of 32 rows of 64 numbers through a small network; its time is that of reading, feeding and running,
without writing. Preparing has no steps here, so that feeding is the check.
"""

import itertools
import statistics
import tempfile
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from measure import describe_machine
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.row_sources import wanted_columns
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.sources import npy

ROWS, WIDTH, HIDDEN = 20_000, 64, 1024
ROUNDS = 7
MANIFEST = """\
version: 1
models: {m: {path: m.onnx, inputs: {x: {dtype: float32, shape: [batch, 64]}}}}
jobs: {run: {model: m, input: {path: x.npy}, batch: {size: 32}, output: {path: out}}}
"""


def make(folder: Path) -> RunJob:
    """Write model, data and manifest, and plan them."""
    random = np.random.default_rng(0)
    sizes = (WIDTH, HIDDEN, HIDDEN, 10)
    weights = [random.standard_normal(pair).astype(np.float32) for pair in itertools.pairwise(sizes)]
    nodes = []
    for layer in range(len(weights)):
        nodes.append(helper.make_node("MatMul", ["x" if layer == 0 else f"r{layer - 1}", f"w{layer}"], [f"h{layer}"]))
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(f"r{len(weights) - 1}", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, f"w{layer}") for layer, array in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    np.save(folder / "x.npy", random.random((ROWS, WIDTH), dtype=np.float32))
    (folder / "m.yaml").write_text(MANIFEST)
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    return next(step for step in plan.steps if isinstance(step, RunJob))


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = make(folder)
        session = ort.InferenceSession(str(folder / "m.onnx"))

        def run() -> tuple[float, float]:
            """Return the seconds of a whole pass over the data, and those of them that feeding took."""
            feeder, feeding = Feeder(job), 0.0
            begin = time.perf_counter()
            with npy.open_source([str(folder / "x.npy")], name, wanted_columns(job)) as source:
                for batch in source.blocks(0, repeat(job.batching.run_size)):
                    before = time.perf_counter()
                    feeds = feeder.prepare_batch(batch, range(len(batch.rows)))
                    feeding += time.perf_counter() - before
                    session.run(None, feeds)
            return time.perf_counter() - begin, feeding

        print(f"{describe_machine()}; medians of {ROUNDS}; {ROWS // job.batching.run_size} batches")
        for what in ("type and shape", "and range"):
            found = [run() for _ in range(ROUNDS)]
            whole, feeding = (
                statistics.median(times) * job.batching.run_size / ROWS for times in zip(*found, strict=True)
            )
            share = 100 * feeding / whole
            print(f"{what:14} {feeding * 1e6:4.1f} µs of {whole * 1e6:.0f} µs a batch, {share:.2f} % of the job")
            job = replace(job, inputs=tuple(replace(one, limits=(0.0, 1.0)) for one in job.inputs))


if __name__ == "__main__":
    main()
