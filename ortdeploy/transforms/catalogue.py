"""The steps by name, and in which of `prepare` and `postprocess` each one is allowed."""

from ortdeploy.modules import Modules
from ortdeploy.transforms.protocol import HeldTransform

PREPARE = Modules(
    "ortdeploy.transforms",
    (
        "bgr",
        "cast",
        "center_crop",
        "expand",
        "flatten",
        "grayscale",
        "head",
        "layout",
        "log_mel",
        "mono",
        "normalize",
        "pad",
        "resample",
        "resize",
        "rgb",
        "scale",
        "squeeze",
        "standardize",
        "strip",
        "tail",
    ),
    HeldTransform,
)

POSTPROCESS = Modules(
    "ortdeploy.transforms",
    (
        "argmax",
        "labels",
        "sigmoid",
        "softmax",
        "threshold",
        "top_k",
    ),
    HeldTransform,
)
