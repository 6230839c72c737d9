"""What `threads: auto` finds against the best of all ways to use threads, each measured by hand."""

import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from apply import save_mlp
from engine import save_cnn, save_transformer
from measure import describe_machine, interleaved, ortdeploy

from ortdeploy.deployment.threads import thread_layouts
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.process.cores import usable_cores

ROUNDS, SECONDS, ROWS = 5, 0.4, 64
SHAPES = {"mlp": (512,), "cnn": (3, 96, 96), "transformer": (192, 384)}
BATCHES = (1, 8, 32)

MANIFEST = """\
version: 1
models:
  m: {{path: {model}.onnx, threads: auto}}
jobs:
  run:
    model: m
    input: {{path: {model}.npy}}
    batch: {{size: {size}}}
    output: {{path: out, format: npy}}
"""


class ByHand:
    """The sessions of one layout, and the threads that run them."""

    def __init__(self, model: Path, layout: ThreadLayout) -> None:
        """Open the sessions."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = layout.threads
        if layout.sessions > 1 and layout.threads > 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        opened = [onnxruntime.InferenceSession(str(model), options) for _ in range(layout.sessions)]
        self.callers = [session for session in opened for _ in range(layout.callers)]

    def rows_per_second(self, feeds: Mapping[str, np.ndarray], seconds: float) -> float:
        """Let all callers run for a while."""
        start = threading.Barrier(len(self.callers))

        def call(session: onnxruntime.InferenceSession) -> float:
            runs = 0
            start.wait()
            begin = time.perf_counter()
            while not runs or time.perf_counter() - begin < seconds:
                session.run(None, feeds)
                runs += 1
            return runs / (time.perf_counter() - begin)

        with ThreadPoolExecutor(len(self.callers)) as pool:
            return len(feeds["x"]) * sum(pool.map(call, self.callers))


def by_hand(model: Path, batch: int, found: tuple[ThreadLayout, ...]) -> dict[str, float]:
    """Return the median rows per second of each layout, measured in turn."""
    feeds = {"x": np.load(model.with_suffix(".npy"))[:batch]}
    measured = interleaved({layout.name: partial(once, model, layout, feeds) for layout in found}, ROUNDS)
    return {layout.name: measured[layout.name] for layout in found}


def compare(folder: Path, model: str, batch: int, found: tuple[ThreadLayout, ...]) -> tuple[str, dict[str, float]]:
    """Return what is chosen, and the rows per second of each layout by hand, before and after: machines change."""
    before = by_hand(folder / f"{model}.onnx", batch, found)
    layout = chosen(folder, model, batch)
    after = by_hand(folder / f"{model}.onnx", batch, found)
    return layout, {name: (rate + after[name]) / 2 for name, rate in before.items()}


def once(model: Path, layout: ThreadLayout, feeds: Mapping[str, np.ndarray]) -> float:
    """Return the rows per second of one layout; its sessions are open alone, for others' threads would spin."""
    opened = ByHand(model, layout)
    opened.rows_per_second(feeds, 0.0)
    return opened.rows_per_second(feeds, SECONDS)


def chosen(folder: Path, model: str, batch: int) -> str:
    """Return what a job with threads: auto chooses."""
    for place in (folder / "out", folder / ".ortdeploy"):
        shutil.rmtree(place, ignore_errors=True)
    (folder / "m.yaml").write_text(MANIFEST.format(model=model, size=batch))
    subprocess.run(ortdeploy("apply", "-q", "m.yaml"), cwd=folder, check=True, capture_output=True)
    return str(json.loads((folder / "out/_run.json").read_text())["layout"])


def main() -> None:
    """Print, for each model and batch, the choice and what it is worth."""
    found = thread_layouts(usable_cores())
    print(f"{describe_machine()}; medians of {ROUNDS}; {len(found)} ways to use threads")
    shares = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_mlp(folder / "mlp.onnx", 512, 2048)
        save_cnn(folder / "cnn.onnx", 96)
        save_transformer(folder / "transformer.onnx", 192, 384)
        for model, shape in SHAPES.items():
            rows = np.random.default_rng(1).normal(size=(ROWS, *shape)).astype(np.float32)
            np.save(folder / f"{model}.npy", rows)
            for batch in BATCHES:
                layout, rates = compare(folder, model, batch, found)
                shares.append(rates[layout] / max(rates.values()))
                shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
                print(f"{model} batch {batch}: {layout}: {shares[-1]:.2f} of the best ({shown} rows/s)", flush=True)
    print(f"at least 0.95 of the best: {sum(share >= 0.95 for share in shares)} of {len(shares)}")


if __name__ == "__main__":
    main()
