"""`bgr: true` — three channels in the order blue, green, red, from an image read as red, green, blue."""

import numpy as np

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms import rgb
from ortdeploy.transforms.protocol import Apply, Options, image_axes

infer = rgb.infer


def build(options: Options, tensor: TensorType) -> Apply:
    axis = image_axes(tensor)[2]
    to_rgb = rgb.build(options, tensor)
    return lambda array: (np.flip(to_rgb(array)[0], axis=axis),)
