"""Unusual models over rows that begin equal: with exit 0, each row is what plain ONNX Runtime gives for it alone.

ORTDEPLOY_MODELS and ORTDEPLOY_MODELS_SEED say how many models are drawn, and which.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from conftest import Cli
from support.unusual_models import WIDTH, draw, rows, save

COUNT = int(os.environ.get("ORTDEPLOY_MODELS", "40"))
FIRST = int(os.environ.get("ORTDEPLOY_MODELS_SEED", "0"))
ROWS, FIXED = 26, 4


def alone(path: Path, data: np.ndarray, copies: int) -> list[np.ndarray | None]:
    """What each row gives by itself, [WIDTH] each: alone, or among copies of itself; None where it gives none.

    A graph that cannot run one row, because it squeezes an axis of one, runs two copies.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)

    def run(row: np.ndarray, times: int) -> np.ndarray | None:
        try:
            (found,) = session.run(["y"], {"x": np.repeat(row[np.newaxis], times, axis=0)})
        except Exception:  # noqa: BLE001  every error of the binding is its own class
            return None
        return found[0] if found.shape == (times, WIDTH) else None

    return [found if (found := run(row, copies)) is not None else run(row, 2 * copies) for row in data]


def differing(found: np.ndarray, expected: list[np.ndarray | None], rtol: float) -> list[int]:
    """The rows that are others than alone, beyond a tolerance."""
    return [
        row
        for row, (value, want) in enumerate(zip(found, expected, strict=True))
        if want is None
        or not np.allclose(value, want, rtol=0, atol=1e-4 + rtol * float(np.abs(want).max()), equal_nan=True)
    ]


@pytest.mark.slow
def test_with_exit_0_every_row_of_an_unusual_model_is_what_it_is_alone(cli: Cli, tmp_path: Path) -> None:
    codes: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(FIRST, FIRST + COUNT):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rng = np.random.default_rng([seed, 2])
        batch = FIXED if rng.random() < 0.25 else "batch"
        graph = draw(seed)
        save(folder / "m.onnx", graph, batch)
        data = rows(seed, ROWS)
        np.save(folder / "x.npy", data)
        size = FIXED if batch == FIXED else int(rng.choice([2, 4, 8]))
        (folder / "m.yaml").write_text(
            "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n"
            f"  j: {{model: m, input: {{path: x.npy}}, batch: {{size: {size}, last: pad}}, "
            f"output: {{path: out, format: npy}}, errors: {{on_nan: keep}}}}\n"
        )
        applied = cli("apply", "-q", folder / "m.yaml")
        told = f"seed {seed}, {graph.kinds}, batches of {size}{', fixed' if batch == FIXED else ''}"
        assert applied.code in {0, 1}, f"{told}: {applied.out}"
        assert "Traceback" not in applied.out, told
        codes[f"exit {applied.code}"] += 1
        if applied.code == 1:
            assert len(applied.out) > 40, told
            continue
        parts = sorted((folder / "out").glob("part-*.npy"))
        found = np.concatenate([np.load(part) for part in parts])
        expected = alone(folder / "m.onnx", data, FIXED if batch == FIXED else 1)
        assert found.size == ROWS * WIDTH, told
        rtol = 0.05 if "half" in graph.kinds else 5e-3  # the documented tolerances are relative to the largest row
        others = differing(found.reshape(ROWS, WIDTH), expected, rtol)
        if others:
            wrong.append(f"{told}: rows {others}")
    assert not wrong, f"{len(wrong)} of {dict(codes)}:\n" + "\n".join(wrong)
    assert COUNT < 10 or codes.keys() == {"exit 0", "exit 1"}
