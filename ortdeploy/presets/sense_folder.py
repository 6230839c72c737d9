"""Reads what a folder of ONNX Runtime GenAI says of pictures and recordings: how they are prepared, and their places.

The processor of such a folder is a list of operators that came with the model, and the library runs it as it stands: an
operator reads what the one before has left, whatever that is. So only the operators that are known are let through, in
an order in which each gets what it takes, and with sizes that bound their memory.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, ValidationError, convert, field

from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.presets.folder import FolderError, PresetFiles
from ortdeploy.presets.speech import RATE


class Place(NamedTuple):
    """What stands for a picture or a recording in a text, how that begins, and what a processor must end with.

    `{}` is its number. `between` stands between two of them, which GenAI would else take for one.
    """

    tag: str
    begin: str
    ends: str
    between: str = ""


_QWEN = {"vision": Place("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|>", "patches")}

FAMILIES = {
    "fara": _QWEN,
    "gemma3": {"vision": Place("<start_of_image>", "<start_of_image>", "planes")},
    "gemma4": {
        "vision": Place("<|image|>", "<|image", "patches and places"),
        "speech": Place("<|audio|>", "<|audio", "bands"),
    },
    "mistral3": {"vision": Place("[IMG]", "[IMG]", "planes and sizes", between="\n")},
    "phi3v": {"vision": Place("<|image_{}|>\n", "<|image_", "crops")},
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""The models of GenAI that take more than text beside text, by their types, and by the parts that sense it."""

_PROCESSORS = {"vision": "processor_config.json", "speech": "audio_processor_config.json"}
"""The processors of parts, if the config does not name them."""
_COLUMNS = {"vision": "images", "speech": "audio"}


def _from(least: int, most: int) -> Any:
    return Annotated[int, Meta(ge=least, le=most)]


def _numbers(least: float, most: float) -> Any:
    return Annotated[float, Meta(ge=least, le=most)]


class _Kind(NamedTuple):
    """An operator of ONNX Runtime's extensions: what it takes and gives, and what its attributes may be."""

    takes: str
    gives: str
    attributes: Mapping[str, Any] = {}


_FLAG, _PATCH, _SIDES = _from(0, 1), _from(1, 1024), {"height": _from(1, 4096), "width": _from(1, 4096)}
_COLOURS = tuple[float, float, float]
_KINDS = {
    "DecodeImage": _Kind("file", "bytes", {"color_space": Literal["RGB", "BGR", "rgb", "bgr"]}),
    "ConvertRGB": _Kind("bytes", "bytes"),
    "CenterCrop": _Kind("bytes", "bytes", _SIDES),
    "Resize": _Kind("bytes", "bytes", {
        **_SIDES, "keep_aspect_ratio": _FLAG, "interpolation": Literal["NEAREST", "LINEAR", "CUBIC", "LANCZOS"],
        "smart_resize": _FLAG, "min_pixels": _from(1, 2**24), "max_pixels": _from(1, 2**24), "patch_size": _PATCH,
        "merge_size": _PATCH,
    }),
    "Rescale": _Kind("bytes", "numbers", {"rescale_factor": float}),
    "Normalize": _Kind("numbers", "numbers", {
        "mean": _COLOURS, "std": _COLOURS, "qwen2_5_vl": _FLAG, "qwen3_vl": _FLAG,
    }),
    "Permute3D": _Kind("numbers", "planes", {"dims": tuple[Literal[2], Literal[0], Literal[1]]}),
    "PatchImage": _Kind("numbers", "patches", {
        "patch_size": _PATCH, "temporal_patch_size": _from(1, 4), "merge_size": _PATCH,
    }),
    "PixtralImageSizes": _Kind("planes", "planes and sizes"),
    "Phi3ImageTransform": _Kind("bytes", "crops", {"num_crops": _from(1, 64), "num_img_tokens": _from(1, 4096)}),
    "Gemma4ImageTransform": _Kind("bytes", "patches and places", {
        "patch_size": _from(1, 32), "max_soft_tokens": _from(1, 2048), "pooling_kernel_size": Literal[3],
    }),
    "AudioDecoder": _Kind("file", "samples", {
        "max_samples": _from(1, 2**24), "target_sample_rate": Literal[16_000], "stereo_to_mono": _FLAG,
    }),
    "Gemma4LogMel": _Kind("samples", "bands", {
        "feature_size": _from(1, 256), "sampling_rate": Literal[16_000], "frame_length_ms": _numbers(5, 64),
        "hop_length_ms": _numbers(5, 64), "min_frequency": _numbers(0, 8000), "max_frequency": _numbers(0, 8000),
        "preemphasis": float, "preemphasis_htk_flavor": _FLAG, "fft_overdrive": _FLAG, "mel_floor": float,
        "per_bin_mean": tuple[float, ...], "per_bin_stddev": tuple[float, ...],
    }),
}  # fmt: skip


class _Operator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a processor; `inputs`, which would name others than the step before, are not known."""

    type: str
    name: str = ""
    domain: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)


class _Step(Struct, frozen=True, forbid_unknown_fields=True):
    operation: _Operator


_Steps = Annotated[tuple[_Step, ...], Meta(max_length=16)]


class _Transforms(Struct, frozen=True, forbid_unknown_fields=True):
    transforms: _Steps
    name: str = ""


class _Sequence(Struct, frozen=True, forbid_unknown_fields=True):
    sequence: _Steps
    name: str = ""


class _OfPictures(Struct, frozen=True, forbid_unknown_fields=True):
    processor: _Transforms


class _OfSound(Struct, frozen=True, forbid_unknown_fields=True):
    feature_extraction: _Sequence


def read_sense(
    files: PresetFiles, preset: PresetSpec, kind: str, part: str, processor: str | None
) -> tuple[str, dict[str, Any]]:
    """Return the column that a part senses, and what stands for it in a text. Raises FolderError, OSError.

    `kind` is the type of the model, one of FAMILIES. Of recordings, the fewest and the most samples are told, too.
    """
    name = processor or _PROCESSORS[part]
    shown, place = f"{preset.folder}/{name}", FAMILIES[kind][part]
    try:
        found = files.read_object(name, preset.folder)
        if part == "vision":
            steps = convert(found, _OfPictures).processor.transforms
        else:
            steps = convert(found, _OfSound).feature_extraction.sequence
        for one in steps:
            _check_attributes(one.operation)
    except ValidationError as error:
        raise FolderError(f"{shown} prepares what it takes in a way that ortdeploy does not know: {error}.") from error
    has = "file"
    told: dict[str, Any] = {"tag": place.tag, "begin": place.begin}
    told |= {"between": place.between} if place.between else {}  # which plans of earlier versions do not have
    for one in steps:
        takes, gives, _ = _KINDS[one.operation.type]
        if has != takes:
            raise FolderError(f"{shown}: {one.operation.type} takes {takes}, and there it gets {has}.")
        has = gives
        told |= _lengths(one.operation)
    if has != place.ends:
        raise FolderError(f"{shown} ends with {has}, and a model of type {kind} takes {place.ends}.")
    return _COLUMNS[part], told


def _check_attributes(operator: _Operator) -> None:
    """Raise ValidationError for an operator that is not known, or for a value that an attribute may not have."""
    if operator.type not in _KINDS:
        raise ValidationError(f"there is no operator {operator.type}")
    known = _KINDS[operator.type].attributes
    for key, value in operator.attrs.items():
        if key not in known:
            raise ValidationError(f"{operator.type} has no attribute {key}")
        try:
            convert(value, known[key])
        except ValidationError as error:
            raise ValidationError(f"{error}, of {key} of {operator.type}") from error


def _lengths(operator: _Operator) -> dict[str, int]:
    """Return how long a recording is for an operator: over one of no frame, the library ends the process."""
    match operator.type:
        case "AudioDecoder":
            return {"most": operator.attrs.get("max_samples", 30 * RATE)}
        case "Gemma4LogMel":
            return {"least": round(RATE * operator.attrs.get("frame_length_ms", 20) / 1000) + 1}
    return {}
