"""Thread layouts of random networks over one wide session: runs per second of each, of sessions alone, without a job.

The layouts are that of jobs whose manifest says nothing about threads (`plan/thread_layout.py`), a session of one
thread for each core, and one wide session with one caller and with two. Networks are drawn by a seed, and the layouts
of each are measured in a drawn order, several times: threads of a pool spin on after a run, and a machine may be busy.
Each session is called by threads that do nothing else.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from measure import describe_machine
from msgspec.structs import replace
from random_networks import draw

from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.process.cores import usable_cores

NETWORKS, ROUNDS, SECONDS, REST = 36, 5, 0.2, 0.05
MOST_BATCH = 64


def opened(path: Path, layout: ThreadLayout) -> list[onnxruntime.InferenceSession]:
    """Return the session that each caller of a layout calls."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = layout.threads
    sessions = [
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(layout.sessions)
    ]
    return sessions * layout.callers


def runs_per_second(
    sessions: Sequence[onnxruntime.InferenceSession], rows: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
) -> float:
    """Let a thread call each session for some time."""
    counts = [0] * len(sessions)
    begin = time.perf_counter()

    def call(place: int) -> None:
        while time.perf_counter() - begin < SECONDS:
            sessions[place].run(None, {sessions[place].get_inputs()[0].name: rows})
            counts[place] += 1

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", type=int, default=NETWORKS)
    asked = parser.parse_args()
    cores = usable_cores()
    if cores == 1:
        raise SystemExit("one core has one layout")
    plain = ThreadLayout(threads=0)
    layouts = (plain, replace(plain, callers=2), ThreadLayout(callers=cores), ThreadLayout(sessions=cores))
    random, best = np.random.default_rng(asked.seed), dict.fromkeys((one.name for one in layouts), 0)
    print(f"{describe_machine()}; runs per second over those of {layouts[0].name}; medians of {ROUNDS}")
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(asked.networks):
            case = draw(random, number, Path(temporary))
            rows = np.random.default_rng(number).random((min(case.batch, MOST_BATCH), *case.row), dtype=np.float32)
            ways = [opened(Path(temporary) / f"{number}.onnx", layout) for layout in layouts]
            found: list[list[float]] = [[] for _ in ways]
            for _ in range(ROUNDS):
                for place in np.random.default_rng().permutation(len(ways)):
                    time.sleep(REST)
                    found[place].append(runs_per_second(ways[place], rows))
            rates = dict(zip(best, map(statistics.median, found), strict=True))
            best[max(rates, key=rates.__getitem__)] += 1
            wide = rates[layouts[0].name]
            shown = ", ".join(f"{name} {rate / wide:.2f}" for name, rate in rates.items())
            print(f"{number:2} {case.name}, {1000 / wide:.2f} ms a run: {shown}", flush=True)
    print("; ".join(f"{name} is the best of {count}" for name, count in best.items()) + f"; seed {asked.seed}")


if __name__ == "__main__":
    main()
