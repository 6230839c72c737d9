"""The steps by the name that users write, and where each may stand."""

from ortdeploy.transforms import (
    argmax,
    bgr,
    cast,
    center_crop,
    expand,
    flatten,
    grayscale,
    head,
    labels,
    layout,
    mono,
    normalize,
    pad,
    resample,
    resize,
    rgb,
    scale,
    sigmoid,
    softmax,
    squeeze,
    strip,
    tail,
    threshold,
    top_k,
)
from ortdeploy.transforms.protocol import HeldTransform, Transform

_PREPARE: dict[str, Transform] = {
    "bgr": bgr,
    "cast": cast,
    "center_crop": center_crop,
    "expand": expand,
    "flatten": flatten,
    "grayscale": grayscale,
    "head": head,
    "layout": layout,
    "mono": mono,
    "normalize": normalize,
    "pad": pad,
    "resample": resample,
    "resize": resize,
    "rgb": rgb,
    "scale": scale,
    "squeeze": squeeze,
    "strip": strip,
    "tail": tail,
}

_POSTPROCESS: dict[str, Transform] = {
    "argmax": argmax,
    "labels": labels,
    "sigmoid": sigmoid,
    "softmax": softmax,
    "threshold": threshold,
    "top_k": top_k,
}

PREPARE = {name: HeldTransform(module) for name, module in _PREPARE.items()}
POSTPROCESS = {name: HeldTransform(module) for name, module in _POSTPROCESS.items()}
