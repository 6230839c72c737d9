"""Reads what a folder of ONNX Runtime GenAI says of pictures and recordings: how they are prepared, and their places.

The processor of such a folder is a list of operators that came with the model, and the library runs it as it stands: an
operator reads what the one before has left, whatever that is. So only the operators that are known are let through, in
an order in which each gets what it takes, and with sizes that bound their memory.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, ValidationError, convert

from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.presets.folder import FolderError, PresetFiles

_Side = Annotated[int, Meta(ge=1, le=8192)]
_Pixels = Annotated[int, Meta(ge=1, le=2**24)]
_Patch = Annotated[int, Meta(ge=1, le=1024)]
_Flag = Annotated[int, Meta(ge=0, le=1)]
_Colors = tuple[float, float, float]
_Milliseconds = Annotated[float, Meta(ge=5, le=64)]
_Hertz = Annotated[float, Meta(ge=0, le=8000)]


class Place(NamedTuple):
    """What stands for a picture or a recording in a text, how that begins, and what a processor must end with."""

    tag: str
    begin: str
    ends: str


_QWEN = {"vision": Place("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|>", "patches")}

FAMILIES = {
    "fara": _QWEN,
    "gemma3": {"vision": Place("<start_of_image>", "<start_of_image>", "planes")},
    "gemma4": {
        "vision": Place("<|image|>", "<|image", "patches and places"),
        "speech": Place("<|audio|>", "<|audio", "bands"),
    },
    "mistral3": {"vision": Place("[IMG]", "[IMG]", "planes and sizes")},
    "phi3v": {"vision": Place("<|image_1|>\n", "<|image_", "crops")},
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""The models of GenAI that take more than text beside text, by their types, and by the parts that sense it."""

_PROCESSORS = {"vision": "processor_config.json", "speech": "audio_processor_config.json"}
"""The processors of parts, if the config does not name them."""
_COLUMNS = {"vision": "images", "speech": "audio"}
_RATE = 16_000


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


class _Squares(_Attributes, frozen=True):
    """GenAI counts on the size that patches are pooled by."""

    patch_size: Annotated[int, Meta(ge=1, le=32)] = 16
    max_soft_tokens: Annotated[int, Meta(ge=1, le=2048)] = 280
    pooling_kernel_size: Literal[3] = 3


class _Gemma4ImageTransform(_Operator, frozen=True, tag="Gemma4ImageTransform"):
    GIVES = "patches and places"
    attrs: _Squares = _Squares()


class _Sound(_Attributes, frozen=True):
    """What is longer is cut, and no recording may be: it fails its row."""

    max_samples: Annotated[int, Meta(ge=1, le=2**24)] = 30 * _RATE
    target_sample_rate: Literal[16_000] = 16_000
    stereo_to_mono: _Flag = 1


class _Bands(_Attributes, frozen=True):
    feature_size: Annotated[int, Meta(ge=1, le=256)] = 128
    sampling_rate: Literal[16_000] = 16_000
    frame_length_ms: _Milliseconds = 20.0
    hop_length_ms: _Milliseconds = 10.0
    min_frequency: _Hertz = 0.0
    max_frequency: _Hertz = 8000.0
    preemphasis: float = 0.0
    preemphasis_htk_flavor: _Flag = 1
    fft_overdrive: _Flag = 0
    mel_floor: float = 0.001
    per_bin_mean: tuple[float, ...] = ()
    per_bin_stddev: tuple[float, ...] = ()


class _AudioDecoder(_Operator, frozen=True, tag="AudioDecoder"):
    TAKES, GIVES = "file", "samples"
    attrs: _Sound = _Sound()


class _Gemma4LogMel(_Operator, frozen=True, tag="Gemma4LogMel"):
    TAKES, GIVES = "samples", "bands"
    attrs: _Bands = _Bands()


_Known = (
    _DecodeImage | _ConvertRGB | _Resize | _CenterCrop | _Rescale | _Normalize | _Permute3D | _Phi3ImageTransform
    | _PatchImage | _PixtralImageSizes | _Gemma4ImageTransform | _AudioDecoder | _Gemma4LogMel
)  # fmt: skip


class _Transform(Struct, frozen=True, forbid_unknown_fields=True):
    operation: _Known


_Operators = Annotated[tuple[_Transform, ...], Meta(max_length=16)]
"""Operators in their order; `inputs` of one, which would name others than the one before, are not known."""


class _Pictures(Struct, frozen=True, forbid_unknown_fields=True):
    transforms: _Operators
    name: str = ""


class _Recordings(Struct, frozen=True, forbid_unknown_fields=True):
    sequence: _Operators
    name: str = ""


class _PictureProcessor(Struct, frozen=True, forbid_unknown_fields=True):
    processor: _Pictures


class _SoundProcessor(Struct, frozen=True, forbid_unknown_fields=True):
    feature_extraction: _Recordings


def read_sense(
    files: PresetFiles, preset: PresetSpec, kind: str, part: str, processor: str | None
) -> tuple[str, dict[str, Any]]:
    """Return the column that a part senses, and what stands for it in a text. Raises FolderError, OSError.

    `kind` is the type of the model, one of FAMILIES. Of recordings, the fewest and the most samples are told, too.
    """
    processor = processor or _PROCESSORS[part]
    shown, place = f"{preset.folder}/{processor}", FAMILIES[kind][part]
    found = files.read_object(processor, preset.folder)
    try:
        if part == "vision":
            operators = convert(found, _PictureProcessor).processor.transforms
        else:
            operators = convert(found, _SoundProcessor).feature_extraction.sequence
    except ValidationError as error:
        raise FolderError(f"{shown} prepares what it takes in a way that ortdeploy does not know: {error}.") from error
    has, told = "file", {"tag": place.tag, "begin": place.begin}
    for one in operators:
        operator = one.operation
        if has != operator.TAKES:
            raise FolderError(f"{shown}: {operator.name} takes {operator.TAKES}, and there it gets {has}.")
        has = operator.GIVES
        told |= _samples(operator)
    if has != place.ends:
        raise FolderError(f"{shown} ends with {has}, and a model of type {kind} takes {place.ends}.")
    return _COLUMNS[part], told


def _samples(operator: _Known) -> dict[str, Any]:
    """Return how long a recording is for an operator: over one of no frame, the library ends the process."""
    match operator:
        case _AudioDecoder():
            return {"most": operator.attrs.max_samples}
        case _Gemma4LogMel():
            return {"least": round(_RATE * operator.attrs.frame_length_ms / 1000) + 1}
    return {}
