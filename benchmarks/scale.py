"""What limits a plan that many workers share, by a model of the store and by what is measured here: docs/scale.md.

`python benchmarks/scale.py` prints the tables of that page. `--measure` first measures what the model takes from this
machine, and writes it to `scale.json` beside this file: commits of one to sixteen processes, the fold of `finish`, and
the driver. `--measure-ray` measures again what Ray takes, and nothing else. `--write` brings the page up to date. The
model is seeded, so the same measurements give the same page.
"""

import argparse
import heapq
import json
import math
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortdeploy.application.part_queue import PartQueue
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.ledger.records import Part
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.part_table import PartTable, PlannedPart

PAGE = Path(__file__).parent.parent / "docs/scale.md"
MEASURED = Path(__file__).parent / "scale.json"
SEED = 20
PROCESSES = (1, 2, 4, 8, 16)
COMMITS = 200
"""Commits of one process alone; the overhead of a part is the median over these."""
ROUNDS = 3
RAY_ROUNDS = 5
COMMITS_IN_A_ROUND = 50
"""Commits of each process in a round."""
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class Store:
    """A store as workers see it. `median` and `p99` are seconds of a request; rates are those of one prefix."""

    name: str
    median: float
    p99: float
    writes_per_second: float
    fails: float
    """The share of requests that fail for no reason and are sent again."""
    writes: int
    """Requests that write for each part: stage, decide, publish."""
    reads: int
    """Requests that only read for each part."""
    reads_per_second: float = math.inf


S3 = Store(name="object store", median=0.030, p99=0.200, writes_per_second=3500, fails=1e-4, writes=4, reads=4,
    reads_per_second=5500,
)  # fmt: skip
"""Rates as Amazon S3 documents them for a prefix; latencies as its users report them for small objects.

A part is staged (PUT), decided (PUT), copied (COPY), and its staged bytes are deleted (DELETE).
"""

NFS = Store(name="NFS", median=0.002, p99=0.020, writes_per_second=2000, fails=0.0, writes=6, reads=4)
"""A server that syncs each write: the file, the link of the decision, its removal, the rename, and two folders."""

STORES = (S3, NFS)

_SIGMAS_OF_P99 = 2.326
_SPREAD = 0.2
"""How much parts differ: the standard deviation of the logarithm of their seconds."""
_PATIENCE = 1.0
"""Seconds of requests that wait at a store before it refuses more of them."""
_PARTS_EACH = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulated job came to."""

    share_of_work: float
    """Seconds of workers in their parts, over those in parts and commits: without the end, where few have a part."""
    decisions_per_second: float
    refused: float
    """Requests that the store refused because there were too many, over all that write."""


def simulate(store: Store, workers: int, part_seconds: float) -> Outcome:
    """Run workers that make parts of lognormal length and commit them, one request after the other."""
    draw = random.Random(f"{SEED} {store.name} {workers} {part_seconds}")  # noqa: S311  a simulation
    sigma = math.log(store.p99 / store.median) / _SIGMAS_OF_P99
    free, refused, written, worked, spent = 0.0, 0, 0, 0.0, 0.0
    parts = workers * _PARTS_EACH
    events = [(0.0, worker, 0, 0, 0.0) for worker in range(workers)]
    done = -workers
    while events:
        clock, worker, requests, tries, begun = heapq.heappop(events)
        if requests == 0:
            done += 1
            spent += clock - begun
            if done + len(events) < parts:
                made = part_seconds * draw.lognormvariate(0.0, _SPREAD)
                worked += made
                heapq.heappush(events, (clock + made, worker, store.writes + store.reads, 0, clock))
            continue
        took = store.median * draw.lognormvariate(0.0, sigma)
        if requests <= store.writes:
            written += 1
            if free - clock > _PATIENCE:
                refused += 1
                wait = min(0.1 * 2**tries, 20.0) * draw.uniform(0.5, 1.5)
                heapq.heappush(events, (clock + took + wait, worker, requests, tries + 1, begun))
                continue
            free = max(free, clock) + 1 / store.writes_per_second
            took += max(free - clock, 0.0)
        answered = 0 if draw.random() < store.fails else 1
        heapq.heappush(events, (clock + took, worker, requests - answered, 0, begun))
    return Outcome(
        share_of_work=worked / spent,
        decisions_per_second=workers * done / spent,
        refused=refused / max(written, 1),
    )


def commits_predicted(alone: Mapping[str, float], processes: int) -> float:
    """Return commits a second, from those of one process: each waits for the disk by itself, all share the cores."""
    return min(processes * alone["rate"], CORES / alone["cpu"])


BEGIN_READS, BEGIN_WRITES = 5, 3
"""Requests with which a process joins a plan that is begun: it asks whether the plan is closed, for its parts, for
the facts of the first process and for rows in doubt, and tries whether the store decides.
"""
PLANS_BEFORE = 1000
"""Finished plans of an output, such as those of three years, one a day."""


def start_seconds(parts: int, workers: int) -> float:
    """Return how long a process on the object store takes to its first part: its own requests, or all that come."""
    own = (BEGIN_READS + BEGIN_WRITES) * S3.median + parts / workers * S3.median / _ASKED_AT_ONCE
    return max(own, (parts + workers * BEGIN_READS) / S3.reads_per_second)  # writes are fewer for what a prefix takes


def begin_seconds() -> float:
    """Return how much longer the process takes that begins a plan: it lists the plans before, and reads their parts."""
    listed = PLANS_BEFORE * 3 / _PAGE_OF_A_LISTING + PLANS_BEFORE / _PAGE_OF_A_LISTING
    return listed * S3.p99 + PLANS_BEFORE * S3.median / _ASKED_AT_ONCE


ROWS = 10**12
PARTS = (10**4, 10**5, 10**6, 10**7)
WORKERS = (10, 100, 10_000)
PART_SECONDS = (1, 10, 60)
_PAGE_OF_A_LISTING = 1000
_ASKED_AT_ONCE = 16
"""Decisions for which `finish` asks a store at the same time: `SharedStore.at_once`."""


def render(measured: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {
        "workers": _table(
            ["Store", "Workers", "Seconds a part", "Share of time in parts", "Decisions a second", "Refused writes"],
            [_workers_row(store, count, part) for store in STORES for count in WORKERS for part in PART_SECONDS],
        ),
        "start": _table(
            ["Parts", "Workers", "Seconds to the first part"],
            [
                [f"{parts:,}", f"{count:,}", _time(start_seconds(parts, count))]
                for parts in (10**4, 10**6)
                for count in WORKERS
            ],
        ),
        "parts": _table(
            [
                "Parts",
                "Rows a part",
                "Receipts",
                "Listing",
                "Finish here",
                "Finish, object store",
                "Hours of 10,000 workers",
            ],
            [_parts_row(parts, measured) for parts in PARTS],
        ),
        "commits": _table(
            ["Processes", "Commits a second", "Over the model", "Processor time of a commit over that of one process"],
            [_commits_row(measured, count) for count in PROCESSES],
        ),
        "figures": _table(["Figure", "Value"], _figures(measured)),
        "machine": f"{measured['machine']}, on {measured['day']}.\n",
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _workers_row(store: Store, workers: int, part_seconds: float) -> list[str]:
    found = simulate(store, workers, part_seconds)
    return [
        store.name, f"{workers:,}", f"{part_seconds}", f"{found.share_of_work:.0%}",
        f"{found.decisions_per_second:,.1f}", f"{found.refused:.0%}",
    ]  # fmt: skip


def _parts_row(parts: int, measured: Mapping[str, Any]) -> list[str]:
    rate = 1 / measured["seconds_a_row"] if measured["seconds_a_row"] else math.inf
    hours = ROWS / rate / max(WORKERS) / 3600
    return [
        f"{parts:,}", f"{ROWS // parts:,}", _bytes(parts * measured["receipt_bytes"]),
        _time(parts / _PAGE_OF_A_LISTING * S3.p99), _time(parts * measured["fold_seconds"]),
        _time(parts * (measured["fold_seconds"] + 2 * S3.median / _ASKED_AT_ONCE)), f"{hours:,.0f} h",
    ]  # fmt: skip


def _commits_row(measured: Mapping[str, Any], processes: int) -> list[str]:
    found = measured["commits"][str(processes)]
    return [str(processes), f"{found['per_second']:,.0f}", _spread(found["over_model"]), _spread(found["cpu_over_one"])]


def _figures(measured: Mapping[str, Any]) -> list[list[str]]:
    ray = measured["ray"]
    figures = [
        (
            "stage, decide and publish a part, one process (median of 200)",
            f"{measured['commit_seconds'] * 1000:.1f} ms",
        ),
        ("processor time of that", f"{measured['commit_cpu_seconds'] * 1000:.2f} ms"),
        ("a whole part of 8 rows, `--shard 0/1` (median of 200)", f"{measured['part_seconds']['shard'] * 1000:.1f} ms"),
        ("the same with `apply` on one machine", f"{measured['part_seconds']['apply'] * 1000:.1f} ms"),
        ("what `finish` takes for a part", f"{measured['fold_seconds'] * 1000:.1f} ms"),
        ("a receipt", f"{measured['receipt_bytes']:,} bytes"),
        (
            "parts that the driver can give out and take back in a second, with 10,000 workers",
            f"{measured['handouts']:,.0f}",
        ),
        ("two shards over one: rows per second", _spread(measured["two_shards"])),
        ("two shards over two processes with half of the input each", _spread(measured["shards_over_halves"])),
    ]
    if ray is not None:
        figures += [
            ("Ray: seconds to start it for one run, until it is joined", _spread(ray["start"])),
            ("Ray: seconds from there until the first worker is ready", _spread(ray["ready"])),
            ("Ray: seconds from the last part to the end of the command", _spread(ray["end"])),
            ("Ray: seconds of the whole command for 10 small parts", _spread(ray["whole"])),
            ("two shards at once and `finish`, seconds for the same parts", _spread(ray["shards"])),
            ("processes that wanted the cores after each of these rounds (load)", _spread(ray["load"])),
        ]
    return [list(line) for line in figures]


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.0f} TB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def page_with(text: str, tables: Mapping[str, str]) -> str:
    """Return a page whose tables are these."""
    for name, table in tables.items():
        head, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{head}<!-- {name} -->\n{table}<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def measure() -> dict[str, Any]:
    """Measure what the model takes from this machine."""
    with tempfile.TemporaryDirectory() as folder:
        ray = _ray(Path(folder)) if find_spec("ray") is not None else None
    with tempfile.TemporaryDirectory() as folder:
        parts = _whole_parts(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        shards = _two_workers(Path(folder))
    return {
        "machine": f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}",
        "day": f"{datetime.now().astimezone():%d %B %Y}",
        **measure_commits(),
        **parts,
        "handouts": _handouts(),
        **shards,
        "ray": ray,
    }


def measure_commits() -> dict[str, Any]:
    """Return what a commit takes, and how many of them so many processes make."""
    alone = _commits(1, COMMITS)
    rounds = [{processes: _commits(processes, COMMITS_IN_A_ROUND) for processes in PROCESSES} for _ in range(ROUNDS)]
    return {
        "commit_seconds": alone["median"],
        "commit_cpu_seconds": alone["cpu"],
        "commits": {str(processes): _compared(rounds, processes) for processes in PROCESSES},
    }


def _compared(rounds: Sequence[Mapping[int, Mapping[str, float]]], processes: int) -> dict[str, Any]:
    """Return the commits a second of so many processes, and in each round how they compare with the model."""
    ratios = [one[processes]["rate"] / commits_predicted(one[1], processes) for one in rounds]
    return {
        "per_second": median(one[processes]["rate"] for one in rounds),
        "over_model": ratios,
        "cpu_over_one": [one[processes]["cpu"] / one[1]["cpu"] for one in rounds],
    }


def _commit_many(output: Path, table: PartTable, first: int, count: int, barrier: Any, queue: Any) -> None:
    """Commit parts of 4 KiB, and say how long each took."""
    log = CommitLog(SharedFolder(output), "f" * 64, table, suffix=".jsonl", digits=8)
    log.begin(known=False)
    barrier.wait()
    begin, usage, times = time.perf_counter(), time.process_time(), []
    for number in range(first, first + count):
        started = time.perf_counter()
        _commit(log, table.part(number))
        times.append(time.perf_counter() - started)
    queue.put((begin, time.perf_counter(), (time.process_time() - usage) / count, times))


def _commit(log: CommitLog, part: PlannedPart) -> None:
    with log.staging(part) as staged:
        with staged.open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        log.stage(staged)
    made = Part(
        number=part.number, start=part.start, rows=8, committed=8, failed=0, skipped=0, file=log.name(part), bytes=4096,
        sha256="0" * 64,
    )  # fmt: skip
    receipt = Receipt(
        part=made,
        staged=staged.name,
        failed=(),
        origin={},
        statistics={"seconds": 0.0},
        ran={},
        worker={"host": "here"},
        spans=Spans(),
    )
    if log.decided(part) is None:
        log.publish(log.decide(part, receipt))


def _commits(processes: int, count: int) -> dict[str, float]:
    """Return the median and processor seconds of a commit, and commits a second of all processes together."""
    context = multiprocessing.get_context("spawn")
    table = PartTable(first_number=0, first_row=0, end=8 * count * processes, rows_per_part=8)
    with tempfile.TemporaryDirectory() as folder:
        barrier, queue = context.Barrier(processes), context.Queue()
        started = [
            context.Process(target=_commit_many, args=(Path(folder), table, n * count, count, barrier, queue))
            for n in range(processes)
        ]
        for one in started:
            one.start()
        found = [queue.get() for _ in started]
        for one in started:
            one.join()
    seconds = max(end for _, end, _, _ in found) - min(begin for begin, _, _, _ in found)
    times = [one for _, _, _, many in found for one in many]
    return {"median": median(times), "cpu": median(cpu for _, _, cpu, _ in found), "rate": len(times) / seconds}


_MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx, session: {{intra_op_num_threads: 1}}}}}}
jobs:
  run:
    model: m
    input: {{path: "x*.npy"}}
    batch: {{size: {size}}}
    output: {{path: out, rows_per_part: {rows_per_part}, format: npz}}
"""


def _deployment(folder: Path, rows: int, width: int, size: int, rows_per_part: int, depth: int = 1) -> Path:
    """Write a job of `depth` square matrices of `width`, and plan it; return the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    weight = np.full((width, width), 0.01, dtype=np.float32)
    nodes = [helper.make_node("MatMul", [f"x{n}" if n else "x", "w"], [f"x{n + 1}"]) for n in range(depth)]
    nodes.append(helper.make_node("ReduceMean", [f"x{depth}"], ["y"], axes=[1], keepdims=1))
    graph = helper.make_graph(
        nodes, "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    np.save(folder / "x0.npy", np.ones((rows, width), dtype=np.float32))
    (folder / "m.yaml").write_text(_MANIFEST.format(size=size, rows_per_part=rows_per_part))
    _run(folder, "plan", "m.yaml", "--out", "plan.json", "-q")
    return folder / "plan.json"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ortdeploy", *arguments]


def _run(folder: Path, *arguments: str) -> float:
    begin = time.perf_counter()
    subprocess.run(_command(*arguments), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _events(folder: Path, name: str) -> list[float]:
    """Return when an event was logged, in seconds."""
    lines = map(json.loads, (folder / "log").read_text().splitlines())
    return [datetime.fromisoformat(one["timestamp"]).timestamp() for one in lines if one["event"] == name]


def _whole_parts(folder: Path) -> dict[str, Any]:
    """Return seconds of a part by shards and on one machine, of its fold, and the bytes of its receipt."""
    rows, seconds = 8 * (COMMITS + 1), {}
    for how, event, more in (("apply", "part.committed", []), ("shard", "part.decided", ["--shard", "0/1"])):
        _deployment(folder / how, rows, 8, 8, 8)
        _run(folder / how, "apply", "plan.json", *more, "--log-file", "log")
        seconds[how] = median(later - earlier for earlier, later in pairwise(_events(folder / how, event)))
    receipts = list((folder / "shard/out/_parts").glob("*/part-*.json"))
    size = round(median(path.stat().st_size for path in receipts))
    took = _run(folder / "shard", "finish", "plan.json", "-q")
    again = _run(folder / "shard", "finish", "plan.json", "-q")  # closed: all but the fold
    return {"part_seconds": seconds, "fold_seconds": max(took - again, 0.0) / len(receipts), "receipt_bytes": size}


def _handouts() -> float:
    """Return how many parts a driver gives out and takes back in a second."""
    workers, parts = 10_000, 40_000
    queue, begin, done = PartQueue(range(parts)), time.process_time(), 0
    held = {worker: [queue.give(worker, 0.0), queue.give(worker, 0.0)] for worker in range(workers)}
    while queue.left:
        for worker, has in held.items():
            part = has.pop(0) if has else None
            if part is not None:
                queue.decided(worker, part, 1.0)
                done += 1
                has.append(queue.give(worker, 1.0))
        if done >= parts - 2 * workers:
            break
    return done / (time.process_time() - begin)


def _two_workers(folder: Path) -> dict[str, Any]:
    """Return rows per second of two shards over those of one, and over two processes with half of the input each."""
    over_one, over_halves, a_row = [], [], []
    rows = 12_000
    for round_ in range(5):
        one, two = folder / f"one{round_}", folder / f"two{round_}"
        halves = [folder / f"half{round_}-{side}" for side in (0, 1)]
        for place, count in ((one, rows), (two, rows), *((half, rows // 2) for half in halves)):
            _deployment(place, count, 512, 64, 960, depth=24)
        alone = _together([(one, ["--shard", "0/1"])])
        both = _together([(two, ["--shard", f"{n}/2"]) for n in (0, 1)])
        apart = _together([(half, []) for half in halves])
        over_one.append(alone / both)
        over_halves.append(apart / both)
        a_row.append(alone / rows)
    return {"two_shards": over_one, "shards_over_halves": over_halves, "seconds_a_row": median(a_row)}


def _together(runs: Sequence[tuple[Path, Sequence[str]]]) -> float:
    begin = time.perf_counter()
    started = [
        subprocess.Popen(_command("apply", "plan.json", "-q", *more), cwd=folder, stdout=subprocess.DEVNULL)
        for folder, more in runs
    ]
    if any(one.wait() for one in started):
        raise RuntimeError("a run failed")
    return time.perf_counter() - begin


def _ray(folder: Path) -> dict[str, list[float]]:
    """Return for each round what a run on a Ray of its own takes beside its parts, and what two shards take in all.

    `load` is how many processes of the machine wanted its cores after each round, these among them.
    """
    found: dict[str, list[float]] = {name: [] for name in ("start", "ready", "end", "whole", "shards", "load")}
    for round_ in range(RAY_ROUNDS):
        with_ray, without = folder / f"ray{round_}", folder / f"shards{round_}"
        for place in (with_ray, without):
            _deployment(place, 80, 8, 8, 8)
        begin = time.time()
        _run(with_ray, "apply", "plan.json", "--engine", "ray=local", "--workers", "2", "--log-file", "log")
        end = time.time()
        joined, ready, decided = (_events(with_ray, name) for name in ("run.started", "worker.ready", "part.decided"))
        shards = _together([(without, ["--shard", f"{index}/2"]) for index in (0, 1)])
        seconds = {
            "start": joined[0] - begin, "ready": ready[0] - joined[0], "end": end - decided[-1], "whole": end - begin,
            "shards": shards + _run(without, "finish", "plan.json", "-q"), "load": os.getloadavg()[0],
        }  # fmt: skip
        for name, value in seconds.items():
            found[name].append(value)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure on this machine first")
    parser.add_argument("--measure-ray", action="store_true", help="measure only what Ray takes")
    parser.add_argument("--write", action="store_true", help="bring docs/scale.md up to date")
    arguments = parser.parse_args()
    if arguments.measure_ray:
        with tempfile.TemporaryDirectory() as folder:
            known = {**json.loads(MEASURED.read_text()), "ray": _ray(Path(folder))}
        MEASURED.write_text(json.dumps(known, indent=2) + "\n")
    elif arguments.measure:
        MEASURED.write_text(json.dumps(measure(), indent=2) + "\n")
    tables = render(json.loads(MEASURED.read_text()))
    for name, table in tables.items():
        print(f"{name}\n\n{table}")
    if arguments.write:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
