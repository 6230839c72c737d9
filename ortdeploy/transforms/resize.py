"""`resize: [HEIGHT, WIDTH]` — as Pillow resizes, with its antialiasing; method nearest, bilinear, bicubic, lanczos."""

from collections.abc import Callable

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, need_nhwc, resized


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    height_axis, width_axis, _ = need_nhwc(tensor)
    if tensor.dtype not in {None, "uint8", "float32"}:
        raise InapplicableError(f"it resizes uint8 and float32 images and gets {tensor.dtype}; cast before")
    height, width = options["resize"]
    return (tensor.with_shape(resized(tensor, {height_axis: height, width_axis: width})),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    from PIL import Image  # noqa: PLC0415  an extra: only who resizes needs it

    height, width = options["resize"]
    method = Image.Resampling[options.get("method", "bilinear").upper()]

    def resize_plane(plane: Array) -> Array:
        return np.asarray(Image.fromarray(plane).resize((width, height), method))

    return lambda batch: (np.stack([_resize_image(image, resize_plane) for image in batch]),)


def _resize_image(image: Array, resize_plane: Callable[[Array], Array]) -> Array:
    """Resize one HWC image; three uint8 channels go at once, anything else plane by plane."""
    if image.shape[2] == 3 and image.dtype == np.uint8:  # noqa: PLR2004  RGB
        return resize_plane(np.ascontiguousarray(image))
    planes = [resize_plane(np.ascontiguousarray(image[:, :, channel])) for channel in range(image.shape[2])]
    return np.stack(planes, axis=2)
