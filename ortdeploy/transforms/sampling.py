"""Computes the pixels of a resized image, as Pillow or as OpenCV does.

The two differ: Pillow averages all pixels that a smaller one covers (antialiasing), OpenCV takes the nearest two or
four along each axis, except with `area`. A model needs the one that it was trained with.

Source of OpenCV's: modules/imgproc/src/resize.cpp of opencv/opencv. uint8 is computed in its fixed-point arithmetic,
bit for bit for nearest and bilinear; the others may differ by one from builds that use vector instructions.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import Attribute, ContractError
from ortdeploy.transforms.protocol import Options

PILLOW = Package(module="PIL", name="Pillow", extra="images")

Sampler = Callable[[Array, int, int], Array]
"""Takes an image [height, width, channels], uint8 or float32, a new height and width, and returns the resized image."""

_METHODS = {
    "pillow": ("nearest", "bilinear", "bicubic", "lanczos"),
    "opencv": ("nearest", "bilinear", "bicubic", "lanczos", "area"),
}
_EVERY_METHOD = tuple(dict.fromkeys(method for methods in _METHODS.values() for method in methods))

SAMPLING = (
    Attribute("method", "STRING", "how pixels are mixed", default="bilinear", choices=_EVERY_METHOD),
    Attribute("sampling", "STRING", "whose arithmetic mixes them", default="pillow", choices=tuple(_METHODS)),
)
"""The settings of steps that change the size of images."""


def hold_method(options: Options) -> None:
    """Check that the sampling has the method. Raises ContractError."""
    method, sampling = options.get("method", "bilinear"), options.get("sampling", "pillow")
    if method not in _METHODS[sampling]:
        known = ", ".join(_METHODS[sampling])
        raise ContractError(f"sampling: {sampling} has no method {method}; it has {known}")


def package_of(options: Options) -> Package | None:
    """Return the package that the sampling needs, or None."""
    return None if options.get("sampling") == "opencv" else PILLOW


def sampler(options: Options) -> Sampler:
    """Return the function that resizes one image [height, width, channels]."""
    method = options.get("method", "bilinear")
    if options.get("sampling") == "opencv":
        return _OPENCV[method]
    from PIL import Image  # noqa: PLC0415  an extra, for resizing only

    return partial(_by_pillow, method=Image.Resampling[method.upper()])


def scratch_bytes(options: Options, image: Array, height: int, width: int) -> int:
    """Return what resizing one image [height, width, channels] takes for a while, beside the image and its result.

    Pillow's own picture takes four bytes a pixel. Of anything else than RGB it makes one for each channel, of a copy.
    OpenCV's arithmetic is done in int32 or float32, with two products and their sum of the new width; `area` takes
    three copies as float64.
    """
    size, itemsize = int(image.size), int(image.itemsize)
    old_height, old_width, channels = map(int, image.shape)
    if options.get("sampling") != "opencv":
        return size // channels * (4 if _is_rgb(image) else 4 + itemsize)
    method = options.get("method", "bilinear")
    if method == "nearest":
        return size * itemsize * height // old_height
    if method == "area":
        return 3 * 8 * size
    copy = 4 * size if image.dtype == np.uint8 else 0
    return copy + 3 * 4 * size * width // old_width


def _is_rgb(image: Array) -> bool:
    return image.shape[2] == 3 and image.dtype == np.uint8  # noqa: PLR2004


def _by_pillow(image: Array, height: int, width: int, *, method: int) -> Array:
    """Resize [height, width, channels]: three uint8 channels at once, anything else channel by channel."""
    from PIL import Image  # noqa: PLC0415

    def resize_plane(plane: Array) -> Array:
        made = Image.fromarray(np.ascontiguousarray(plane)).resize((width, height), Image.Resampling(method))
        return np.asarray(made)

    if _is_rgb(image):
        return resize_plane(image)
    return np.stack([resize_plane(image[:, :, channel]) for channel in range(image.shape[2])], axis=2)


_ONE = 2048
"""The number 1 in OpenCV's fixed-point weights."""

Taps = tuple[Array, Array]
"""The indices of the pixels that make each new one, int [new, taps], and their weights, float32 [new, taps]."""


def _nearest(image: Array, height: int, width: int) -> Array:
    """Resize [height, width, channels] by copying the pixel above and left of each place."""
    rows, columns = (
        np.minimum(np.floor(np.arange(new) * _scale(new, old)).astype(int), old - 1)
        for new, old in ((height, image.shape[0]), (width, image.shape[1]))
    )
    return np.asarray(image[rows][:, columns])


def _bilinear(image: Array, height: int, width: int) -> Array:
    """Resize [height, width, channels] from the two nearest pixels along each axis."""
    return _of_two(image, _two_taps(height, image.shape[0]), _two_taps(width, image.shape[1]))


def _of_two(image: Array, down: Taps, across: Taps) -> Array:
    """Resize [height, width, channels] from two pixels along each axis."""
    if image.dtype != np.uint8:
        return _mixed(_mixed(image, across, 1), down, 0)
    wide = _mixed(image.astype(np.int32), _fixed(across), 1) >> 4  # then each product is rounded down, as there
    (upper, lower), (first, second) = down[0].T, _fixed(down)[1].T.astype(np.int32)[..., np.newaxis, np.newaxis]
    mixed = (first * wide[upper] >> 16) + (second * wide[lower] >> 16)
    return np.asarray((mixed + 2 >> 2).astype(np.uint8))


def _of_taps(image: Array, height: int, width: int, *, taps: Callable[[int, int], Taps]) -> Array:
    """Resize [height, width, channels] from the four or eight nearest pixels along each axis."""
    down, across = (taps(new, old) for new, old in ((height, image.shape[0]), (width, image.shape[1])))
    if image.dtype != np.uint8:
        return _mixed(_mixed(image, across, 1), down, 0)
    wide = _mixed(_mixed(image.astype(np.int32), _fixed(across), 1), _fixed(down), 0)
    return np.asarray(np.rint(wide / (_ONE * _ONE)).clip(0, 255).astype(np.uint8))


def _area(image: Array, height: int, width: int) -> Array:
    """Resize [height, width, channels] by the mean of all pixels that a new one covers.

    If a side grows, OpenCV mixes two pixels instead.
    """
    if height > image.shape[0] or width > image.shape[1]:
        return _of_two(image, _grown_taps(height, image.shape[0]), _grown_taps(width, image.shape[1]))
    made = _means(_means(image.astype(np.float64), height, 0), width, 1)
    rounded = np.rint(made).clip(0, 255) if image.dtype == np.uint8 else made
    return np.asarray(rounded.astype(image.dtype))


def _scale(new: int, old: int) -> float:
    """Return how many old pixels make a new one, rounded like OpenCV's double."""
    return 1 / (new / old)


def _places(new: int, old: int) -> tuple[Array, Array]:
    """Return for each new pixel the old one left of its center, int [new], and the distance from it, float32 [new]."""
    middles = ((np.arange(new) + 0.5) * _scale(new, old) - 0.5).astype(np.float32)
    left = np.floor(middles)
    return left.astype(int), middles - left


def _two_taps(new: int, old: int) -> Taps:
    left, behind = _places(new, old)
    return np.stack([left, left + 1], 1).clip(0, old - 1), np.stack([1 - behind, behind], 1)


def _grown_taps(new: int, old: int) -> Taps:
    """Return the taps of OpenCV's `area` for a side that grows: most new pixels are copies."""
    place = np.arange(new)
    left = np.floor(place * _scale(new, old)).astype(int)
    behind = ((place + 1) - (left + 1) * (new / old)).astype(np.float32)
    behind = np.where(behind <= 0, np.float32(0), behind - np.floor(behind))
    behind = np.where(left >= old - 1, np.float32(0), behind)
    left = left.clip(0, old - 1)
    return np.stack([left, np.minimum(left + 1, old - 1)], 1), np.stack([1 - behind, behind], 1)


def _four_taps(new: int, old: int) -> Taps:
    left, x = _places(new, old)
    return (left[:, np.newaxis] + np.arange(-1, 3)).clip(0, old - 1), cubic_weights(x)


def cubic_weights(x: Array) -> Array:
    """Return the weights of the four pixels around a place, float32 [n, 4]; `x` [n] is its distance from the second."""
    a = np.float32(-0.75)
    outer, inner, other = x + 1, x, 1 - x
    first = ((a * outer - 5 * a) * outer + 8 * a) * outer - 4 * a
    second = ((a + 2) * inner - (a + 3)) * inner * inner + 1
    third = ((a + 2) * other - (a + 3)) * other * other + 1
    return np.stack([first, second, third, 1 - first - second - third], 1).astype(np.float32)


def _eight_taps(new: int, old: int) -> Taps:
    """Return the taps of OpenCV's INTER_LANCZOS4."""
    left, x = _places(new, old)
    places = (left[:, np.newaxis] + np.arange(-3, 5)).clip(0, old - 1)
    away = x[:, np.newaxis].astype(np.float64) + 3 - np.arange(8)  # of each pixel, to the left
    weights = np.sinc(away) * np.sinc(away / 4)
    return places, (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _means(image: Array, new: int, axis: int) -> Array:
    """Return the mean of the pixels, whole and in part, that each new pixel covers along an axis.

    `image` is float64 [height, width, channels]; along `axis`, the result has `new` pixels.
    """
    old = image.shape[axis]
    edges = np.minimum(np.arange(new + 1) * _scale(new, old), old)
    whole = np.minimum(edges.astype(int), old - 1)
    shape = [-1 if one == axis else 1 for one in range(image.ndim)]
    sums = np.cumsum(image, axis=axis) - image  # of all pixels before each one
    before = np.take(sums, whole, axis) + np.take(image, whole, axis) * (edges - whole).reshape(shape)
    return np.asarray(np.diff(before, axis=axis) / np.diff(edges).reshape(shape))


def _fixed(taps: Taps) -> Taps:
    """Return taps whose weights are fixed-point numbers, int32 [new, taps]."""
    return taps[0], np.rint(taps[1] * _ONE).astype(np.int32)


def _mixed(image: Array, taps: Taps, axis: int) -> Array:
    """Return the weighted sums of pixels along an axis of [height, width, channels]."""
    places, weights = taps
    shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
    return np.asarray(
        sum(
            np.take(image, places[:, tap], axis) * weights[:, tap].reshape(shape).astype(image.dtype)
            for tap in range(places.shape[1])
        )
    )


_OPENCV: dict[str, Sampler] = {
    "nearest": _nearest,
    "bilinear": _bilinear,
    "bicubic": partial(_of_taps, taps=_four_taps),
    "lanczos": partial(_of_taps, taps=_eight_taps),
    "area": _area,
}
