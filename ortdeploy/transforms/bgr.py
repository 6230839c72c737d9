"""`bgr: true` — turns three channels from red, green, blue into blue, green, red."""

import numpy as np
from msgspec.structs import replace

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms import rgb
from ortdeploy.transforms.protocol import Apply, Options, image_axes

CONTRACT = replace(
    rgb.CONTRACT, name="bgr", meaning="Three channels in the order blue, green, red; grey gets three equal ones"
)


def build(options: Options, tensor: TensorType) -> Apply:
    axis = image_axes(tensor)[2]
    to_rgb = rgb.build(options, tensor)
    return lambda array: (np.flip(to_rgb(array)[0], axis=axis),)
