"""Sizes for made-up inputs are tried one after the other, also after one of them has ended the process."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.family_models import hearer
from support.models import scale_model

from ortdeploy.runtime import trial_run
from ortdeploy.runtime.trial_run import Ran, SyntheticTensor, try_to_run

pytestmark = [
    pytest.mark.process,
    pytest.mark.opens_models,
    pytest.mark.skipif(sys.platform != "linux", reason="A trial is a fork on Linux alone"),
]
INPUT = SyntheticTensor(name="x", dtype="float32", shape=("batch", 4))
TRIES = [{"batch": number} for number in (1, 2, 3)]


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the numbers of rows with which a run ends its process."""
    numbers = set[int]()
    run = trial_run._run  # noqa: SLF001  what the child does with one choice of sizes

    def ending(session: Any, inputs: Sequence[SyntheticTensor], shapes: Mapping[str, tuple[int, ...]]) -> Ran | str:
        if shapes["x"][0] in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(session, inputs, shapes)

    monkeypatch.setattr(trial_run, "_run", ending)
    return numbers


def test_the_next_sizes_are_tried_after_a_crash(crashes: set[int], tmp_path: Path) -> None:
    crashes |= {1, 2}
    ran = try_to_run(str(scale_model(tmp_path / "m.onnx")), [INPUT], TRIES)
    assert ran.fed == {"x": (3, 4)}
    assert ran.refusal is None


def test_sizes_that_all_crash_are_a_crash(crashes: set[int], tmp_path: Path) -> None:
    crashes |= {1, 2, 3}
    ran = try_to_run(str(scale_model(tmp_path / "m.onnx")), [INPUT], TRIES)
    assert ran.crashed
    assert ran.refusal == "running it ends the process"


def test_an_input_that_counts_is_fed_the_size(tmp_path: Path) -> None:
    heard = SyntheticTensor(name="waveforms", dtype="float32", shape=("n", "length"))
    counted = SyntheticTensor(name="waveforms_lens", dtype="int64", shape=("n",), counts="length")
    ran = try_to_run(str(hearer(tmp_path / "m.onnx", lengths=True)), [heard, counted], [{"n": 2, "length": 30}])
    assert ran.values == {"waveforms_lens": 30}
    assert ran.ranges["y"][1] > 5  # thirty times a mean between 0 and 1
