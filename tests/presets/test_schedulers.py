"""Schedulers: what they have in common, without a model; tests/pipelines compares their images with those of diffusers."""

import json
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY

from ortdeploy.presets.schedulers import SCHEDULERS, make_scheduler, read_scheduler

REFERENCE = REPOSITORY / "tests/data/painter.npz"
SHAPE = (2, 4, 3, 5)
"""Of latents [rows, channels, height, width]."""


def settings_of(name: str, **settings: Any) -> dict[str, Any]:
    """The settings of a scheduler as models have them."""
    betas = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
    found, problem = read_scheduler({"_class_name": name, **betas, "skip_prk_steps": True, **settings})
    assert problem is None
    return dict(found)


def test_every_scheduler_has_a_reference() -> None:
    with np.load(REFERENCE) as known:
        names = [name.removesuffix("_config") for name in known if name.endswith("_config")]
        classes = {json.loads(str(known[f"{name}_config"]))["_class_name"] for name in names}
    assert classes == set(SCHEDULERS)


@pytest.mark.parametrize("steps", [1, 4, 20])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_times_go_from_noise_to_the_image(name: str, steps: int) -> None:
    times = np.asarray(make_scheduler(settings_of(name), steps).timesteps)
    calls = {"PNDMScheduler": steps + (steps > 1), "HeunDiscreteScheduler": 2 * steps - 1}.get(name, steps)
    assert times.shape == (calls,)
    assert 0 <= times.min() <= times.max() <= 1000
    assert (np.diff(times) <= 0).all()


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_model_that_knows_the_image_leads_to_it(name: str, kind: str) -> None:
    """For one image, the way from noise is a straight line, which every scheduler follows whatever its steps."""
    scheduler = make_scheduler(settings_of(name, prediction_type=kind), 12)
    random = np.random.default_rng(0)
    image, latents = random.normal(size=SHAPE), random.normal(size=SHAPE) * scheduler.first_scale
    alphas = np.cumprod(1 - np.linspace(np.sqrt(0.00085), np.sqrt(0.012), 1000) ** 2)
    for index, time in enumerate(scheduler.timesteps):
        sigma = np.interp(time, np.arange(1000), np.sqrt((1 - alphas) / alphas))
        signal, noise = 1 / np.sqrt(sigma**2 + 1), sigma / np.sqrt(sigma**2 + 1)
        given = scheduler.scale(latents, index)
        epsilon = (given - signal * image) / noise
        latents = scheduler.step(latents, index, epsilon if kind == "epsilon" else signal * epsilon - noise * image)
    assert latents.shape == SHAPE
    left = 0.1 if name == "PNDMScheduler" else 1e-6  # it ends at the first noise level, not at none
    np.testing.assert_allclose(latents, image, atol=left)
