"""Arrays whose rows do not lie one after the other in their file are read in strips, and give the rows that they hold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.facts.data import InputFacts
from ortdeploy.sources import mapped, npy
from ortdeploy.sources.protocol import Wanted

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=3)


@settings(max_examples=effort(40, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    shape=SHAPES,
    dtype=st.sampled_from(["uint8", "<f2", ">f4", "<i8"]),
    size=st.integers(1, 80),
    through=st.sampled_from([0, 128, 128 * 1024]),
    strips=st.sampled_from([1, 64, 4096]),
)
def test_strips_hold_the_rows(
    tmp_path: Path, rows: int, shape: list[int], dtype: str, size: int, through: int, strips: int
) -> None:
    count = rows * int(np.prod(shape))
    array = np.asfortranarray((np.arange(count) % 251).reshape(rows, *shape).astype(dtype))
    np.save(tmp_path / "a.npy", array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_READ_THROUGH", through)
        patch.setattr(mapped, "_STRIP_BYTES", strips)
        patch.setattr(mapped, "BLOCK_BYTES", 256)
        files = [str(tmp_path / "a.npy")]
        with npy.open_source(files, str(tmp_path), Wanted(dtypes={"array": None})) as source:
            blocks = [np.asarray(block.columns["array"]) for block in source.blocks(0, iter(lambda: size, None))]
    assert np.array_equal(np.concatenate(blocks), array)


def test_the_forecast_counts_the_strips(tmp_path: Path) -> None:
    array = np.zeros((600, 20_000), np.float32)
    np.save(tmp_path / "c.npy", array)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    assert npy.probe([str(tmp_path / "c.npy")], InputFacts()).held_bytes == 0
    assert npy.probe([str(tmp_path / "f.npy")], InputFacts()).held_bytes == 2 * 32 * 1024 * 1024


@pytest.mark.parametrize("width", [1, 64, 4096, 8192, 8193])
def test_strips_do_not_begin_at_distances_of_a_power_of_two(width: int) -> None:
    pitch = mapped._pitch(width)  # noqa: SLF001  the distance shows in nothing else but time
    assert pitch >= width
    assert pitch % 128 == 64
