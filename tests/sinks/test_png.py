"""Images as PNG files: grey, with colors, and what is none."""

import io

import numpy as np
import pytest
from PIL import Image

from ortdeploy.sinks.png import as_png


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1), (3, 4, 3), (3, 4, 4)])
def test_an_image_reads_back(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, size=shape).astype(np.uint8)
    with Image.open(io.BytesIO(as_png("x", image))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), image[:, :, 0] if shape[2:] == (1,) else image)


@pytest.mark.parametrize("image", [np.zeros((3, 4, 2), np.uint8), np.zeros((3, 4), np.float32), np.zeros(3, np.uint8)])
def test_what_is_no_image_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="an image is uint8"):
        as_png("x", image)
