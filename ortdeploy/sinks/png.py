"""Makes the PNG of an image."""

import io

import numpy as np

_GREY, _COLORS = 2, (1, 3, 4)


def as_png(name: str, image: np.ndarray) -> bytes:
    """Return the PNG of an image, uint8 [height, width] or [height, width, 1, 3 or 4]. Raises ValueError for others."""
    from PIL import Image  # noqa: PLC0415  an extra, for images only

    if image.dtype != np.uint8 or not (image.ndim == _GREY or (image.ndim == 3 and image.shape[2] in _COLORS)):  # noqa: PLR2004
        raise ValueError(
            f"{name} is {image.dtype} {list(image.shape)}, and an image is uint8 [height, width, 1, 3 or 4]"
        )
    if image.ndim == 3 and image.shape[2] == 1:  # noqa: PLR2004
        image = image[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, format="PNG")
    return file.getvalue()
