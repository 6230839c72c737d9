"""`center_crop: [HEIGHT, WIDTH]` — the middle of each image; a smaller image is an error."""

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, image_axes, resized


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    axes = image_axes(tensor)[:2]
    wanted = dict(zip(axes, options["center_crop"], strict=True))
    for axis, size in wanted.items():
        have = tensor.shape[axis] if tensor.shape else None
        if isinstance(have, int) and have < size:
            raise InapplicableError(f"it wants {size} pixels of {have}")
    return (tensor.with_shape(resized(tensor, wanted)),)


def build(options: Options, tensor: TensorType) -> Apply:
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        cut = [slice(None)] * array.ndim
        for axis, size in zip(axes, options["center_crop"], strict=True):
            have = array.shape[axis]
            if have < size:
                raise ValueError(f"center_crop wants {size} pixels of {have}")
            start = (have - size) // 2
            cut[axis] = slice(start, start + size)
        return (array[tuple(cut)],)

    return apply
