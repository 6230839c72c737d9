"""The imitated arena: what it holds is what real runs take; its chunks never overlap."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.graph.activations import Buffer, most_at_once, plan_buffers
from ortdeploy.graph.arena import arena_bytes, pattern_bytes
from ortdeploy.graph.model import read_model

MIB = 1024 * 1024

MEASURE = """
import sys
import numpy as np, onnxruntime
from ortdeploy.process.memory import private_memory, trim_memory
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.enable_mem_pattern = sys.argv[2] == "True"
session = onnxruntime.InferenceSession(sys.argv[1], options)
rows = np.ones((2048, 1024), np.float32)
trim_memory()
before = private_memory()
for size in map(int, sys.argv[3:]):
    last = session.run(None, {"x": rows[:size]})  # held while the next one runs, as a job does
    print(private_memory() - before if before else 0)
"""


def graph_of(path: Path) -> Path:
    """Matrix products whose buffers are 8, 16, 8 and 24 MiB for 2048 rows, and a transpose that is fused."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["v1"]),
        helper.make_node("MatMul", ["v1", "b"], ["v2"]),
        helper.make_node("Transpose", ["v2"], ["v3"], perm=[1, 0]),
        helper.make_node("MatMul", ["v3", "v2"], ["v4"]),
        helper.make_node("ReduceSum", ["v4"], ["y"], keepdims=0),
    ]
    sizes = {"a": (1024, 1024), "b": (1024, 2048)}
    weights = {name: rng.standard_normal(size).astype(np.float32) / 32 for name, size in sizes.items()}
    return save_model(
        path, nodes, {"x": (TensorProto.FLOAT, ["n", 1024])}, {"y": (TensorProto.FLOAT, [])}, weights, opset=13
    )


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [True, False])
def test_what_the_arena_holds_is_what_real_runs_take(tmp_path: Path, pattern: bool) -> None:
    path = graph_of(tmp_path / "m.onnx")
    buffers = plan_buffers(read_model(path, "m").skeleton, {"x": (2048, 1024)})
    assert buffers is not None
    predicted = arena_bytes([buffers], pattern=pattern)
    *_, measured = measure(path, 2048, 2048, 2048, pattern=pattern)
    assert 0.85 < predicted / measured < 1.2, (predicted / MIB, measured / MIB)


@pytest.mark.slow
def test_a_pattern_of_large_values_takes_what_it_takes_in_real_runs(tmp_path: Path) -> None:
    """Its block fits both regions that the first run has made, and goes into the one that was written to less."""
    path = products_of(tmp_path / "m.onnx", 1024, 35 * 256, 10 * 256, 16)
    buffers = plan_buffers(read_model(path, "m").skeleton, {"x": (2048, 1024)}) or []
    predicted = arena_bytes([buffers], pattern=True)
    *_, measured = measure(path, 2048, 2048, 2048)
    assert predicted == pytest.approx(measured, abs=10 * MIB), (predicted / MIB, measured / MIB)


@pytest.mark.slow
def test_a_short_batch_at_the_end_takes_what_it_takes_in_real_runs(tmp_path: Path) -> None:
    """Its first run goes buffer by buffer through an arena that the pattern of whole batches has cut up."""
    path = products_of(tmp_path / "m.onnx", 1024, 1536, 256, 2048)
    skeleton = read_model(path, "m").skeleton
    whole, short = (plan_buffers(skeleton, {"x": (rows, 1024)}) or [] for rows in (2048, 1900))
    *_, before, after = measure(path, 2048, 2048, 2048, 1900)
    predicted = arena_bytes([whole, short], pattern=True) - arena_bytes([whole], pattern=True)
    assert predicted == pytest.approx(after - before, abs=2 * MIB), (predicted / MIB, (after - before) / MIB)
    assert predicted > 10 * MIB


def products_of(path: Path, *widths: int) -> Path:
    """Matrix products one after the other, and a sum."""
    nodes = [helper.make_node("ReduceSum", [f"v{len(widths) - 1}"], ["y"], keepdims=0)]
    weights = {}
    for number, sizes in enumerate(pairwise(widths)):
        taken = f"v{number}" if number else "x"
        nodes.insert(number, helper.make_node("MatMul", [taken, f"w{number}"], [f"v{number + 1}"]))
        weights[f"w{number}"] = np.zeros(sizes, np.float32)
    return save_model(
        path, nodes, {"x": (TensorProto.FLOAT, ["n", widths[0]])}, {"y": (TensorProto.FLOAT, [])}, weights, opset=13
    )


def measure(path: Path, *sizes: int, pattern: bool = True) -> list[int]:
    """Return the bytes that a process has grown by after each of its runs, of these numbers of rows."""
    command = [sys.executable, "-c", MEASURE, str(path), str(pattern), *map(str, sizes)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    measured = list(map(int, printed.split()))
    if not measured[-1]:
        pytest.skip("this system does not tell private memory")
    return measured


def test_a_pattern_takes_a_block_of_its_own_where_no_chunk_is_free() -> None:
    buffers = [Buffer(3 * MIB, 0, 1), Buffer(3 * MIB, 1, 2)]
    assert arena_bytes([buffers], pattern=False) == 6 * MIB
    assert arena_bytes([buffers], pattern=True) == 12 * MIB
    assert arena_bytes([buffers], pattern=True, again=1) == 12 * MIB
    assert arena_bytes([buffers], pattern=True, again=0) == 6 * MIB


def test_of_chunks_of_a_size_the_one_at_the_lowest_address_is_taken() -> None:
    """Each value takes a region whole. Large regions are mapped one below the other; small ones come from the heap."""
    large = [Buffer(70 * MIB, 0, 1), Buffer(20 * MIB, 1, 2)]
    assert arena_bytes([large], pattern=True) == (70 + 90) * MIB
    small = [Buffer(9 * MIB, 0, 1), Buffer(3 * MIB, 1, 2)]
    assert arena_bytes([small], pattern=True) == (12 + 3) * MIB


def test_a_pattern_has_no_place_for_scratch_and_holes_that_nothing_fits() -> None:
    scratch = Buffer(5 * MIB, 0, 0, is_scratch=True)
    assert arena_bytes([[Buffer(3 * MIB, 0, 1), scratch]], pattern=True) == arena_bytes(
        [[Buffer(3 * MIB, 0, 1), scratch]], pattern=False
    )
    hole = [Buffer(MIB, 0, 1), Buffer(2 * MIB, 0, 2), Buffer(2 * MIB, 2, 3)]
    assert most_at_once(hole) == 4 * MIB
    assert pattern_bytes(hole) == 5 * MIB
    fitting = [Buffer(2 * MIB, 0, 1), Buffer(2 * MIB, 0, 2), Buffer(2 * MIB, 2, 3)]
    assert pattern_bytes(fitting) == 4 * MIB


def test_results_of_the_last_run_are_still_held_in_the_next() -> None:
    result = [Buffer(3 * MIB, 0, 1, is_result=True)]
    assert arena_bytes([result], pattern=True) == arena_bytes([result], pattern=False) == 6 * MIB
    assert arena_bytes([result], pattern=True, held=4) == 15 * MIB


def test_results_that_wait_are_where_the_first_run_had_its_values() -> None:
    """Once the pattern has a block of its own, that room is free."""
    buffers = [Buffer(8 * MIB, 0, 1), Buffer(8 * MIB, 1, 2), Buffer(3 * MIB, 1, 3, is_result=True)]
    assert arena_bytes([buffers], pattern=True, held=4) == arena_bytes([buffers], pattern=True, held=1)


def test_nothing_takes_nothing() -> None:
    assert arena_bytes([[]], pattern=True) == 0
    assert arena_bytes([[Buffer(0, 0, 0)]], pattern=True) == 0


BUFFERS = st.lists(
    st.builds(
        lambda size, first, length, result: Buffer(size, first, 8 if result else first + length, is_result=result),
        st.integers(0, 300 * MIB),
        st.integers(0, 5),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=12,
)


@given(BUFFERS, st.booleans())
def test_it_holds_at_least_what_is_in_use_at_once(buffers: list[Buffer], pattern: bool) -> None:
    results = sum(buffer.size for buffer in buffers if buffer.is_result)
    held = arena_bytes([buffers], pattern=pattern)
    assert held >= most_at_once(buffers)
    assert held <= 4 * sum(buffer.size for buffer in buffers) + results
