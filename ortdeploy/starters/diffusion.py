"""Folders of Stable Diffusion, as diffusers' ONNX pipelines or optimum-onnx write them."""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
from ortdeploy.starters import writing
from ortdeploy.starters.subject import Starter, Subject, json_mapping

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
    side, told = _side(subject)
    sample = f"{subject.stem}-prompts.csv"
    text = (
        writing.head(
            f"A folder of Stable Diffusion, by its components; {told}.",
            "ortdeploy lock pins the folder by its digest.",
        )
        + "pipelines:\n  paint:\n    preset: text-to-image\n"
        + f"    from: {scalar(subject.path)}\n    providers: [CPU]\n    steps: 20\n    guidance_scale: 7.5\n"
        + f"    height: {side}\n    width: {side}\n\n"
        + "jobs:\n  run:\n    pipeline: paint\n"
        + writing.input_section(subject, sample, "made by init", "key: [prompt]")
        + "    batch: {size: 1}\n"
        + writing.output(subject, "images: [image]")
    )
    files = {} if subject.data else {sample: _PROMPT.encode()}
    return Starter(family=FAMILY, text=text, files=files, takes_long=True)


def _side(subject: Subject) -> tuple[int, str]:
    """Return the side of images in pixels, and where it is from."""
    size = json_mapping(subject.model / "unet" / "config.json").get("sample_size")
    if isinstance(size, int):
        return size * _FACTOR, "height and width are those of sample_size in unet/config.json"
    return _USUAL, "height and width are assumed, because nothing says which its UNet was trained for"
