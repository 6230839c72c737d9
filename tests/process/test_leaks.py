"""`ortdeploy check --leaks`: a planted leak is found, memory that grows and stays is not called one."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import gather_model, save_model, scale_model

from ortdeploy.process import leaks
from ortdeploy.process.leaks import EVERY, LeakWatch, judge
from ortdeploy.process.memory import private_memory

needs_private_memory = pytest.mark.skipif(private_memory() is None, reason="this system does not tell private memory")

RUNS = """\
import ctypes, sys
import numpy as np, onnxruntime
from ortdeploy.process.leaks import look_for_leak
leak, varying = int(sys.argv[2]), sys.argv[3] == "varying"
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
random = np.random.default_rng(0)

def run(number):
    rows = int(random.integers(1, 400)) if varying and number else 400
    session.run(None, {"x": np.ones((rows, 64), np.float32)})
    if leak:
        ctypes.memset(libc.malloc(leak), 1, leak)

verdict = look_for_leak(run, 1)
print(verdict.leaks, verdict.text)
"""


@pytest.mark.quick("0-varying-False", "1100-varying-True")
@needs_private_memory
@pytest.mark.parametrize(
    ("leak", "shapes", "found"),
    [
        (0, "fixed", "False"),
        (0, "varying", "False"),
        (1100, "fixed", "True"),
        (1100, "varying", "True"),
        (4096, "varying", "True"),
    ],
)
def test_a_planted_leak_is_found_and_a_growing_arena_is_none(
    tmp_path: Path, leak: int, shapes: str, found: str
) -> None:
    if sys.platform != "linux":
        pytest.skip("malloc is reached through the C library")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    weights = {"w": np.ones((64, 64), dtype=np.float32)}
    sizes: list[int | str | None] = ["rows", 64]
    shape = (TensorProto.FLOAT, sizes)
    path = save_model(tmp_path / "m.onnx", nodes, {"x": shape}, {"y": shape}, weights)
    command = [sys.executable, "-c", RUNS, str(path), str(leak), shapes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == found, done.stdout


def test_samples_are_judged_by_slope_and_certainty() -> None:
    count = 21
    steady = [10_000_000] * count
    assert not judge(steady, 1000).leaks
    rising = [10_000_000 + number * EVERY * 2048 for number in range(count)]
    verdict = judge(rising, 1000)
    assert verdict.leaks
    assert verdict.bytes_a_run == pytest.approx(2048)
    assert verdict.confidence > 0.999
    plateau = [10_000_000 + min(number, 5) * 4_000_000 for number in range(count)]
    assert not judge(plateau, 1000).leaks
    noise = np.random.default_rng(1).integers(0, 8_000_000, size=count)
    noisy = [10_000_000 + int(one) for one in noise]
    assert not judge(noisy, 1000).leaks
    falling = judge(rising[::-1], 1000)
    assert not falling.leaks
    assert falling.confidence < 0.001


@needs_private_memory
def test_models_are_looked_at_on_synthetic_and_on_golden_inputs(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "double.onnx")
    gather_model(tmp_path / "look.onnx")
    (tmp_path / "m.yaml").write_text("version: 1\nmodels: {a: {path: double.onnx}, b: {path: look.onnx}}\n")
    checked = cli("check", tmp_path / "m.yaml", "--leaks", "--runs", "300")
    assert checked.code == 0, checked.out
    assert checked.out.count("leaks: no leak") == 2
    (tmp_path / "golden").mkdir()
    np.savez(tmp_path / "golden/inputs.npz", x=np.ones((3, 4), np.float32))
    (tmp_path / "m.yaml").write_text("version: 1\nmodels: {a: {path: double.onnx, checks: [golden]}}\n")
    only = cli("check", tmp_path / "m.yaml", "--leaks", "--runs", "300", "--format", "json")
    assert only.json["checks"][0]["check"] == "leaks"
    assert only.json["checks"][0]["status"] == "passed"


def test_leaks_cannot_be_recorded_and_need_enough_runs(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "m.yaml").write_text("version: 1\nmodels: {a: {path: double.onnx}}\n")
    assert cli("check", tmp_path / "m.yaml", "--leaks", "--record").code == 64
    assert cli("check", tmp_path / "m.yaml", "--leaks", "--runs", "10").code == 64


MIB = 1024 * 1024


def watched(monkeypatch: pytest.MonkeyPatch, sizes: Iterable[float], seconds: float = 0.6, **given: int) -> LeakWatch:
    """A watch over a job that has these MiB after every 100 rows, of which each takes some time."""
    clock, memory = [0.0], [0]
    monkeypatch.setattr("ortdeploy.process.leaks.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(leaks, "private_memory", lambda: memory[0])
    watch = LeakWatch()
    for size in sizes:
        clock[0] += seconds
        memory[0] = int(size * MIB)
        watch.look(100, **given)
    return watch


def test_a_running_job_whose_memory_grows_is_told_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, (100 + 2 * number for number in range(80)))
    assert watch.growth is not None
    assert watch.growth.bytes_a_run == pytest.approx(0.02 * MIB)
    assert watch.growth.grown == 158 * MIB
    assert watch.rows_per_second == pytest.approx(100 / 0.6)


def test_a_slow_leak_is_told_after_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = [100 + 0.005 * number for number in range(12_000)]
    assert watched(monkeypatch, hours[:1000]).growth is None
    found = watched(monkeypatch, hours).growth
    assert found is not None
    assert found.bytes_a_run == pytest.approx(0.00005 * MIB, rel=0.1)


def test_memory_that_has_stopped_growing_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = [100 + 2 * number for number in range(80)]
    assert watched(monkeypatch, grown).growth is not None
    assert watched(monkeypatch, [*grown, *[258.0] * 500]).growth is None


random = np.random.default_rng(0)
NO_LEAKS: dict[str, Sequence[float]] = {
    "steady": [100.0] * 1000,
    "noise": [100 + float(noise) for noise in random.normal(0, 20, 1000)],
    "an arena that fills": [300 - 200 * 0.95**number for number in range(1000)],
    "steps of ever larger rows": np.maximum.accumulate(random.exponential(60, 1000)).tolist(),
    "one step": [100.0] * 150 + [400.0] * 850,
    "parts that are held": [100 + 0.5 * (number % 90) for number in range(1000)],
}


@pytest.mark.parametrize("shape", NO_LEAKS)
def test_other_growth_is_no_leak(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    for count in (80, 160, 240, 500, 1000):
        assert watched(monkeypatch, NO_LEAKS[shape][:count], expected=48 * MIB).growth is None


def test_a_part_that_is_held_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [100 + 2 * number for number in range(80)]
    assert watched(monkeypatch, sizes, expected=160 * MIB).growth is None
    assert watched(monkeypatch, sizes, expected=20 * MIB).growth is not None


def test_looking_costs_nothing_between_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.process.leaks.time.monotonic", lambda: 0.0)
    monkeypatch.setattr(leaks, "private_memory", lambda: pytest.fail("no time has passed"))
    watch = LeakWatch()
    assert not any(watch.look(number) for number in range(1000))
