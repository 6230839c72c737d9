"""What jobs are estimated to take, on real graphs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli, run_fork, run_process
from onnx import TensorProto, helper
from PIL import Image
from support.models import lora_model, make_adapter, save_model

from ortdeploy.facts.host import MachineFacts
from ortdeploy.facts.memory import ROOMY
from ortdeploy.feeds import row_sources
from ortdeploy.feeds.in_flight import LEAST
from ortdeploy.graph.model import read_model
from ortdeploy.graph.values import live_bytes

MIB = 1024 * 1024
FLOAT = TensorProto.FLOAT
Values = dict[str, tuple[int, Sequence[int | str | None]]]

PICTURES = """\
version: 1
models:
  m: {path: m.onnx, session: {intra_op_num_threads: 1}}
jobs:
  run:
    model: m
    input: {path: in}
    prepare: {x: [{scale: 0.5}]}
    batch: {size: 1}
    output: {path: out, format: jsonl}
    limits: {threads: THREADS}
"""


def test_a_value_is_held_from_who_makes_it_to_who_reads_it_last(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=1),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 8])}, {"z": (FLOAT, ["n", 24])})
    assert live_bytes(read_model(path, "m").skeleton, {"x": (2, 8)}) == (3 * 8 + 24) * 2 * 4


def test_open_sizes_are_not_guessed(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 4])}, {"y": (TensorProto.INT64, [2, "k"])})
    assert live_bytes(read_model(path, "m").skeleton, {"x": (2, 4)}) is None
    assert live_bytes(b"", {"x": (2, 4)}) is None


@pytest.mark.parametrize("required", [False, True])
def test_matrices_of_an_adapter_have_their_rank(cli: Cli, tmp_path: Path, *, required: bool) -> None:
    """Not that of the defaults, which is zero, nor an open one."""
    lora_model(tmp_path / "m.onnx", required=required)
    rank = {"lora_A": np.ones((4, 4096), np.float32), "lora_B": np.ones((4096, 4), np.float32)}
    make_adapter(tmp_path / "a.onnx_adapter", **rank)
    np.savez(tmp_path / "in.npz", x=np.ones((64, 4), np.float32))
    text = """\
version: 1
models: {m: {path: m.onnx}}
adapters: {a: {path: a.onnx_adapter, model: m}}
jobs: {run: {model: m, adapter: a, input: {path: in.npz}, output: {path: out}}}
"""
    (tmp_path / "m.yaml").write_text(text)
    job = json.loads(cli("plan", str(tmp_path / "m.yaml"), "--format", "json").out)["steps"][-1]
    forecast = job["limits"]["forecast"]
    assert forecast["unknown"] is None
    activations = next(one["size"] for one in forecast["parts"] if one["what"] == "activations")
    assert activations >= forecast["callers"] * 32 * 4096 * 4


def test_sizes_that_a_graph_leaves_open_are_those_of_rows_in_a_pipeline_too(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", "w"])}, {"y": (FLOAT, ["n", "w"])})
    np.savez(tmp_path / "in.npz", x=np.ones((64, 5), np.float32))
    text = """\
version: 1
models: {m: {path: m.onnx}}
pipelines: {p: {steps: [{run: m, in: {x: $x}, out: {y: y}}], outputs: {y: $y}}}
jobs: {run: {pipeline: p, input: {path: in.npz}, output: {path: out, format: jsonl}}}
"""
    (tmp_path / "m.yaml").write_text(text)
    job = json.loads(cli("plan", str(tmp_path / "m.yaml"), "--format", "json").out)["steps"][-1]
    activations = [one["size"] for one in job["limits"]["forecast"]["parts"] if one["what"] == "activations"]
    assert activations == [32 * 5 * 4]


@pytest.mark.parametrize(
    ("external", "reader", "size"), [(False, "Gather", 4096), (True, "Gather", 0), (True, "MatMul", 4096)]
)
def test_tables_in_other_files_that_are_looked_up_take_no_memory(
    tmp_path: Path, reader: str, size: int, *, external: bool
) -> None:
    """ONNX Runtime maps them: a session over a table of 256 MiB took 10, as measured with onnxruntime 1.32."""
    is_table = reader == "Gather"
    node = helper.make_node(reader, ["w", "x"] if is_table else ["x", "w"], ["y"])
    values = [
        helper.make_tensor_value_info("x", TensorProto.INT64 if is_table else FLOAT, ["n"] if is_table else ["n", 32]),
        helper.make_tensor_value_info("y", FLOAT, ["n", 32]),
    ]
    weights = [onnx.numpy_helper.from_array(np.eye(32, dtype=np.float32), "w")]
    graph = helper.make_graph([node], "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=external, location="m.data", size_threshold=0)
    assert read_model(tmp_path / "m.onnx", "m").weights.size == size


MANIFEST = """\
version: 1
{top}
models:
  wide: {{path: wide.onnx{model}}}
jobs:
  run:
    model: wide
    input: {{path: data.{read}}}
    batch: {{size: {size}}}
    output: {{path: out, format: {written}}}
"""

ONE_CALLER = ", session: {intra_op_num_threads: 1}"


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A model that makes 2 KiB rows 64 times as wide, twice, and sums them: 256 rows take 64 MiB at once."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Cos", ["b"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["y"], axes=[1], keepdims=1),
    ]
    weights = {"times": np.array([1, 64], dtype=np.int64)}
    save_model(tmp_path / "wide.onnx", nodes, {"x": (FLOAT, ["n", 512])}, {"y": (FLOAT, ["n", 1])}, weights, opset=12)
    np.save(tmp_path / "data.npy", np.ones((1024, 512), dtype=np.float32))
    return tmp_path


def write(
    folder: Path, *, top: str = "", model: str = "", size: int = 256, read: str = "npy", written: str = "npy"
) -> Path:
    text = MANIFEST.format(top=top, model=model, size=size, read=read, written=written)
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def predicted(path: Path, cli: Cli) -> dict[str, int]:
    said = cli("plan", path, "--format", "json")
    assert said.code == 0, said.out
    (job,) = (step for step in said.json["steps"] if "limits" in step)
    return {part["what"]: part["size"] for part in job["limits"]["forecast"]["parts"]}


def test_a_batch_of_more_rows_than_there_are_takes_what_these_take(wide: Path, cli: Cli) -> None:
    full = predicted(write(wide), cli)
    np.save(wide / "data.npy", np.ones((5, 512), dtype=np.float32))
    assert predicted(write(wide), cli) == predicted(write(wide, size=5), cli)
    assert full["activations"] > 50 * predicted(write(wide), cli)["activations"]


def test_a_batch_that_is_filled_up_takes_what_a_full_one_takes(wide: Path, cli: Cli) -> None:
    full = predicted(write(wide, model=ONE_CALLER), cli)
    np.save(wide / "data.npy", np.ones((5, 512), dtype=np.float32))
    path = write(wide, model=ONE_CALLER)
    path.write_text(path.read_text().replace("size: 256", "size: 256, last: pad"))
    assert predicted(path, cli)["activations"] == full["activations"]


@pytest.mark.slow
@pytest.mark.parametrize(("side", "threads"), [(700, 1), (1000, 1), (700, 3)])
def test_pictures_count_as_large_as_the_first_ones_are(
    side: int, threads: int, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    sizes: Values = {"x": (FLOAT, ["n", "height", "width", 3])}
    save_model(tmp_path / "m.onnx", [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2], keepdims=0)], sizes,
               {"y": (FLOAT, ["n", 3])}, opset=13)  # fmt: skip
    (tmp_path / "in").mkdir()
    for number in range(6):
        Image.new("RGB", (side, side)).save(tmp_path / f"in/{number}.png")
    (tmp_path / "m.yaml").write_text(PICTURES.replace("THREADS", str(threads)))
    read, fed = 3 * side * side, 12 * side * side  # bytes of uint8, and of float32
    decoding = threads * read * 7 / 3 + (threads * read if threads > 1 else 0)
    beside = (threads - 1) * (read + fed)
    for_a_while = decoding + fed + beside if beside else max(fed, decoding)
    on_their_way = predicted(tmp_path / "m.yaml", cli)["rows and results"] - for_a_while
    assert on_their_way == pytest.approx((LEAST + 1) * (read + fed), rel=0.01)


def test_ways_to_use_threads_that_memory_has_no_room_for_are_not_measured(wide: Path, cli: Cli) -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one core has one way to use it")
    planned = cli("plan", write(wide, top="limits: {memory: 150MiB, threads: 2}", model=", threads: auto", size=128))
    assert "is measured: 1 session of 2 threads; 1 session of 1 thread\n" in planned.out
    planned = cli("plan", write(wide, top="limits: {memory: 400MiB, threads: 2}", model=", threads: auto", size=128))
    assert "is measured: 1 session of 2 threads; 1 session of 1 thread with 2 callers; 2 sess" in planned.out


def test_callers_are_in_the_forecast_and_fewer_if_there_is_no_room(
    wide: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MachineFacts, "usable_cores", 4)

    def planned(limit: float | None = None, **settings: Any) -> tuple[int | None, int]:
        top = "" if limit is None else f"limits: {{memory: {int(limit / ROOMY)}}}"
        result = cli("plan", write(wide, size=16, top=top, **settings), "--format", "json")
        assert result.code == 0, result.out
        forecast = json.loads(result.out)["steps"][1]["limits"]["forecast"]
        return forecast["callers"], sum(one["size"] for one in forecast["parts"])

    callers, most = planned()
    assert callers == 4
    one = forecast_of(wide, cli)
    assert one + 3 * 3 * MIB < most  # a run of each
    assert planned(model=", session: {execution_mode: sequential}") == (None, one)
    assert planned(most + MIB) == (4, most)
    three = planned(most - MIB)
    assert three[0] == 3
    assert one < three[1] < most
    assert planned(one + MIB) == (1, one)
    assert planned(one - MIB) == (1, one)


def forecast_of(folder: Path, cli: Cli) -> int:
    """Return what a job is predicted to take with one session."""
    path = write(folder, size=16, model=", session: {execution_mode: sequential}")
    job = json.loads(cli("plan", path, "--format", "json").out)["steps"][1]
    return sum(one["size"] for one in job["limits"]["forecast"]["parts"])


def test_cudas_libraries_are_counted_and_cudnns_with_each_model_of_convolutions(cli: Cli, tmp_path: Path) -> None:
    """Measured on an H200 and an H100 with CUDA 13.0, onnxruntime-gpu 1.31.1."""
    takes: Values
    gives: Values
    takes, gives = {"x": (FLOAT, ["n", 3, 8, 8])}, {"y": (FLOAT, ["n", 3, 8, 8])}
    filters = {"w": np.zeros((3, 3, 1, 1), dtype=np.float32)}
    plain, convolving = helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Conv", ["x", "w"], ["y"])
    np.save(tmp_path / "data.npy", np.ones((8, 3, 8, 8), dtype=np.float32))
    jetson = REPOSITORY / "deployments/devices/jetson-orin-nano.yaml"

    def process(node: onnx.NodeProto, providers: str) -> int:
        weights = filters if node is convolving else {}
        save_model(tmp_path / "wide.onnx", [node], takes, gives, weights)
        path = write(tmp_path, size=4, model=f", providers: [{providers}]")
        planned = json.loads(cli("plan", path, "--format", "json", "--device", jetson).out)["steps"][1]
        return sum(one["size"] for one in planned["limits"]["forecast"]["parts"] if one["what"] == "process")

    base = process(plain, "CPU")
    assert process(convolving, "CPU") == base
    assert process(plain, "CUDA, CPU") == base + 470 * MIB
    assert process(convolving, "CUDA, CPU") == base + (470 + 70) * MIB


@pytest.mark.parametrize("limit", [pytest.param("200MiB", marks=pytest.mark.slow), "180MiB"])
def test_a_job_keeps_to_its_limit(wide: Path, limit: str) -> None:
    write(wide, top=f"limits: {{memory: {limit}}}", size=64)
    done = run_process(["apply", "m.yaml"], cwd=wide)
    assert done.code == 0, done.out + done.err
    report = json.loads((wide / "out/_run.json").read_text())
    assert report["peak_memory_bytes"] < int(limit[:3]) * MIB
    assert report["memory"]["limit_bytes"] == int(limit[:3]) * MIB
    assert report["rows"]["committed"] == 1024


WITH_A_LIMIT = """\
import sys
from msgspec.structs import replace
from ortdeploy.cli.main import main
from ortdeploy.cli import plans
from ortdeploy.cli.children import memory

memory.can_fork = lambda: False

def with_a_limit(*arguments, real=plans.plan_manifests, **settings):
    planned = real(*arguments, **settings)
    (plan,) = planned.plans
    steps = [replace(one, limits=replace(one.limits, memory=int(sys.argv[1]))) if hasattr(one, "job") else one for one in plan.steps]
    return replace(planned, plans=(replace(plan, steps=tuple(steps)),))

plans.plan_manifests = with_a_limit
raise SystemExit(main(["apply", "m.yaml"]))
"""


@pytest.mark.slow
def test_a_job_that_was_let_through_is_still_held(wide: Path) -> None:
    """The plan is made without a limit, and then run with one that is too small for it, which nobody has measured."""
    write(wide, size=512)
    command = [sys.executable, "-c", WITH_A_LIMIT, str(170 * MIB)]
    ended = subprocess.run(command, cwd=wide, capture_output=True, encoding="utf-8", check=False)
    report = json.loads((wide / "out/_run.json").read_text())
    assert "Traceback" not in ended.stdout + ended.stderr
    stacks = 4 * 8 * MIB  # of threads that may be to come, at most; without a limit it takes 370 MiB
    assert report["peak_memory_bytes"] < 180 * MIB + stacks
    if ended.returncode:
        assert "memory" in report["reason"]
    else:
        assert report["sessions"][0]["batch_size"] < 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "model", "without"),
    [
        ("200MiB", "", True),
        ("200MiB", ", memory: {arena: true}", False),
        pytest.param("900MiB", "", False, marks=pytest.mark.slow),
    ],
)
def test_a_job_near_its_limit_has_no_arena(wide: Path, limit: str, model: str, *, without: bool) -> None:
    """An arena that cannot grow takes what is left, and is broken then."""
    write(wide, top=f"limits: {{memory: {limit}}}", size=128 if not model else 64, model=model)
    done = run_process(["apply", "m.yaml"], cwd=wide)
    assert done.code == 0, done.out + done.err
    assert ('"session.without_arena"' in done.err) is without


def test_threads_are_divided_over_the_sessions(wide: Path, cli: Cli) -> None:
    quiet = "session: {config: {session.intra_op.allow_spinning: false}}"
    model = f", sessions: [{{name: a, providers: [CPU], count: 2}}], {quiet}"
    planned = cli("plan", write(wide, top="limits: {threads: 2}", model=model), "--format", "json")
    assert [step["options"]["intra_op_num_threads"] for step in planned.json["steps"] if "options" in step] == [1]


@pytest.mark.quick("lean")
@pytest.mark.parametrize("memory", ["lean", "fast", "{arena: shared, shrink_after_run: true}", "{prepacking: false}"])
def test_every_profile_runs_and_gives_the_same_rows(wide: Path, memory: str) -> None:
    write(wide, model=f", memory: {memory}", size=64)
    done = run_fork(["apply", "m.yaml"], cwd=wide)
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(
        np.concatenate([np.load(path) for path in sorted((wide / "out").glob("part-*"))]).ravel(),
        512 * 64 * np.cos(np.sin(1.0)),
        rtol=1e-3,
    )


def test_a_shared_arena_bounds_activations_and_runs_are_halved(wide: Path) -> None:
    write(wide, top="shared_arena: {max: 24MiB, extend_strategy: same_as_requested}", model=", memory: {arena: shared}")
    done = run_fork(["apply", "m.yaml"], cwd=wide)
    assert done.code == 0, done.out + done.err
    report = json.loads((wide / "out/_run.json").read_text())
    assert report["sessions"][0]["batch_size"] < 256
    assert report["rows"]["committed"] == 1024


def test_the_output_that_a_disk_limit_has_no_room_for_is_refused_by_the_plan(wide: Path, cli: Cli) -> None:
    assert cli("plan", write(wide, top="limits: {disk: 5KB}")).code == 0
    refused = cli("plan", write(wide, top="limits: {disk: 4KB}"))
    assert refused.code == 1
    assert "[over-disk-limit]" in refused.out + refused.err


def test_lines_of_items_with_their_numbers_count_for_the_disk(wide: Path, cli: Cli) -> None:
    """1024 rows of one item: its four bytes, and the numbers of its row and its place."""
    for limit, code in (("20KB", 1), ("21KB", 0)):
        manifest = write(wide, top=f"limits: {{disk: {limit}}}")
        manifest.write_text(manifest.read_text().replace("format: npy", "format: npz, explode: y"))
        assert cli("plan", manifest).code == code


def test_the_report_tells_what_the_process_used(wide: Path, cli: Cli) -> None:
    assert cli("apply", write(wide, size=64)).code == 0
    report = json.loads((wide / "out/_run.json").read_text())
    assert report["process"]["cpu_seconds_user"] > 0
    assert report["process"]["minor_faults"] > 0
    assert report["memory"]["predicted_bytes"] > 98 * MIB


def test_an_estimate_without_a_range_is_one_number(cli: Cli, deployment: Path) -> None:
    """Of twenty rows by four, all but the process rounds to nothing."""
    assert re.search(r"memory (\d+) MiB, estimated: process \1 MiB, ", cli("plan", deployment / "m.yaml").out)
