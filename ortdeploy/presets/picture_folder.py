"""Reads what a folder of ONNX Runtime GenAI says of pictures: how they are prepared, and what stands for one in a text.

The processor of such a folder is a list of operators that came with the model, and the library runs it as it stands: an
operator reads what the one before has left, whatever that is. So only the operators that are known are let through, in
an order in which each gets what it takes, and with sizes that bound their memory.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, ValidationError, convert

from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.presets.folder import FolderError, PresetFiles

_Side = Annotated[int, Meta(ge=1, le=8192)]
_Pixels = Annotated[int, Meta(ge=1, le=2**24)]
_Patch = Annotated[int, Meta(ge=1, le=1024)]
_Flag = Annotated[int, Meta(ge=0, le=1)]
_Colors = tuple[float, float, float]


class Family(NamedTuple):
    """A kind of models: what stands for a picture in a text, how that begins, and what its processor must end with."""

    tag: str
    begin: str
    ends: str


_QWEN = Family("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|>", "patches")

FAMILIES = {
    "fara": _QWEN,
    "gemma3": Family("<start_of_image>", "<start_of_image>", "planes"),
    "mistral3": Family("[IMG]", "[IMG]", "planes and sizes"),
    "phi3v": Family("<|image_1|>\n", "<|image_", "crops"),
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""The models of GenAI that see pictures, by their types."""


class _Attributes(Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator is told; no attribute, if it has none."""


class _Operator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """An operator of ONNX Runtime's extensions, with what it takes and gives."""

    TAKES: ClassVar[str] = "bytes"
    GIVES: ClassVar[str] = "bytes"

    name: str
    domain: str = ""
    attrs: _Attributes = _Attributes()


class _Space(_Attributes, frozen=True):
    color_space: Literal["RGB", "BGR", "rgb", "bgr"] = "RGB"


class _Size(_Attributes, frozen=True):
    height: _Side = 256
    width: _Side = 256


class _Resizing(_Size, frozen=True):
    keep_aspect_ratio: _Flag = 1
    interpolation: Literal["NEAREST", "LINEAR", "CUBIC", "LANCZOS"] = "CUBIC"
    smart_resize: _Flag = 0
    min_pixels: _Pixels = 3136
    max_pixels: _Pixels = 12_845_056
    patch_size: _Patch = 14
    merge_size: _Patch = 2


class _Factor(_Attributes, frozen=True):
    rescale_factor: float = 1 / 255


class _Colouring(_Attributes, frozen=True):
    mean: _Colors = (0.0, 0.0, 0.0)
    std: _Colors = (1.0, 1.0, 1.0)
    qwen2_5_vl: _Flag = 0
    qwen3_vl: _Flag = 0


class _Axes(_Attributes, frozen=True):
    dims: tuple[Literal[2], Literal[0], Literal[1]]


class _Crops(_Attributes, frozen=True):
    num_crops: Annotated[int, Meta(ge=1, le=64)] = 16
    num_img_tokens: Annotated[int, Meta(ge=1, le=4096)] = 144


class _Patches(_Attributes, frozen=True):
    patch_size: _Patch = 14
    temporal_patch_size: Annotated[int, Meta(ge=1, le=16)] = 2
    merge_size: _Patch = 2


class _DecodeImage(_Operator, frozen=True, tag="DecodeImage"):
    TAKES = "file"
    attrs: _Space = _Space()


class _ConvertRGB(_Operator, frozen=True, tag="ConvertRGB"):
    pass


class _Resize(_Operator, frozen=True, tag="Resize"):
    attrs: _Resizing = _Resizing()


class _CenterCrop(_Operator, frozen=True, tag="CenterCrop"):
    attrs: _Size = _Size()


class _Rescale(_Operator, frozen=True, tag="Rescale"):
    GIVES = "numbers"
    attrs: _Factor = _Factor()


class _Normalize(_Operator, frozen=True, tag="Normalize"):
    TAKES = GIVES = "numbers"
    attrs: _Colouring = _Colouring()


class _Permute3D(_Operator, frozen=True, tag="Permute3D"):
    TAKES, GIVES = "numbers", "planes"
    attrs: _Axes


class _Phi3ImageTransform(_Operator, frozen=True, tag="Phi3ImageTransform"):
    GIVES = "crops"
    attrs: _Crops = _Crops()


class _PatchImage(_Operator, frozen=True, tag="PatchImage"):
    TAKES, GIVES = "numbers", "patches"
    attrs: _Patches = _Patches()


class _PixtralImageSizes(_Operator, frozen=True, tag="PixtralImageSizes"):
    TAKES, GIVES = "planes", "planes and sizes"


_Known = (
    _DecodeImage | _ConvertRGB | _Resize | _CenterCrop | _Rescale | _Normalize | _Permute3D | _Phi3ImageTransform
    | _PatchImage | _PixtralImageSizes
)  # fmt: skip


class _Transform(Struct, frozen=True, forbid_unknown_fields=True):
    operation: _Known


class _Steps(Struct, frozen=True, forbid_unknown_fields=True):
    """The operators in their order; `inputs` of one, which would name others than the one before, are not known."""

    transforms: Annotated[tuple[_Transform, ...], Meta(max_length=16)]
    name: str = ""


class _Processor(Struct, frozen=True, forbid_unknown_fields=True):
    processor: _Steps


def read_pictures(files: PresetFiles, preset: PresetSpec, kind: str, processor: str) -> dict[str, str]:
    """Return what stands for a picture in a text, of a folder with this processor. Raises FolderError, OSError.

    `kind` is the type of the model, one of FAMILIES.
    """
    shown, family = f"{preset.folder}/{processor}", FAMILIES[kind]
    try:
        found = convert(files.read_object(processor, preset.folder), _Processor)
    except ValidationError as error:
        raise FolderError(f"{shown} prepares pictures in a way that ortdeploy does not know: {error}.") from error
    has = "file"
    for one in found.processor.transforms:
        operator = one.operation
        if has != operator.TAKES:
            raise FolderError(f"{shown}: {operator.name} takes {operator.TAKES}, and there it gets {has}.")
        has = operator.GIVES
    if has != family.ends:
        raise FolderError(f"{shown} gives {has} of a picture, and a model of type {kind} takes {family.ends}.")
    return {"tag": family.tag, "begin": family.begin}
