"""Inputs that are made for a model without golden ones: of its types, sizes and limits."""

import numpy as np

from ortdeploy.checks.synthetic_inputs import synthetic_feeds
from ortdeploy.plan.steps import SyntheticInput


def test_synthetic_inputs_keep_types_sizes_and_limits() -> None:
    inputs = [
        SyntheticInput(name="image", dtype="float32", shape=("batch", 3, "side", "side"), limits=(-1.0, 1.0)),
        SyntheticInput(name="ids", dtype="int64", shape=("batch", None), limits=(0.0, 9.0)),
        SyntheticInput(name="text", dtype="string", shape=("batch",), limits=None),
        SyntheticInput(name="bits", dtype="int4", shape=("batch", 2), limits=(-8.0, 7.0)),
    ]
    feeds = synthetic_feeds(inputs)
    assert len({feed["image"].shape for feed in feeds}) == len(feeds)
    for feed in feeds:
        rows, channels, height, width = feed["image"].shape
        assert channels == 3
        assert height == width
        assert {len(array) for array in feed.values()} == {rows}
        assert feed["ids"].dtype == np.int64
        assert 0 <= feed["ids"].min() <= feed["ids"].max() <= 9
        assert feed["image"].min() < 0
        assert feed["bits"].dtype.name == "int4"
