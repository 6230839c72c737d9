"""Folders of Stable Diffusion, as diffusers' ONNX pipelines or optimum-onnx write them."""

from collections.abc import Iterator

from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject, json_mapping
from ortdeploy.starters.provenance import Given, Page

FAMILY = "a Stable Diffusion folder"
_COMPONENTS = ("text_encoder", "unet", "vae_decoder")
_PROMPT = "prompt,seed\na photograph of an astronaut riding a horse,0\n"
_USUAL = 512
_FACTOR = 8
"""How much larger an image is than its latents."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that paints from prompts."""
    if subject.is_folder and all((subject.model / name / "model.onnx").is_file() for name in _COMPONENTS):
        yield _starter(subject)


def _starter(subject: Subject) -> Starter:
    side = _side(subject)
    told = "nothing says for which height and width" if side.is_assumed else "sample_size in unet/config.json says"
    sample = f"{subject.stem}-prompts.csv"
    text = (
        yaml_text.head(
            f"A folder of Stable Diffusion, by its components; {told} its UNet was trained.",
            "ortdeploy lock pins the folder by its digest.",
        )
        + yaml_text.preset(
            subject,
            "paint",
            "text-to-image",
            f"steps: {provenance.convention('steps 20', 20)}",
            f"guidance_scale: {provenance.convention('guidance_scale 7.5', 7.5)}",
            f"height: {side}",
            f"width: {side}",
        )
        + yaml_text.input_section(subject, sample, "key: [prompt]")
        + yaml_text.batch(None, 1)
        + yaml_text.output(subject, "images: [image]")
    )
    files = {} if subject.data else {sample: _PROMPT.encode()}
    return Starter(family=FAMILY, page=Page(marked=text), files=files, takes_long=True)


def _side(subject: Subject) -> Given:
    """Return the side of images in pixels."""
    size = json_mapping(subject.model / "unet" / "config.json").get("sample_size")
    if isinstance(size, int):
        return provenance.beside("size", size * _FACTOR)
    return provenance.convention("size", _USUAL, "nothing says which its UNet was trained for")
