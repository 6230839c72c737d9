"""Makes the text-to-image folder of deployments/painter.yaml: Stable Diffusion's shape with tiny random weights.

It paints noise: what it tests is arithmetic. The layout is that of diffusers' ONNX pipelines; with --layout optimum the
one of optimum-onnx (int64 ids, a timestep of rank 0, an encoder for images, settings of each component). --reference
writes what diffusers' own loop makes of the same weights, prompts and starting noise with every scheduler, as numbers
to compare with.

Needs PyTorch, diffusers 0.39 and transformers 4, which ortdeploy itself does not.

Run: python deployments/make_tiny_painter.py --out deployments/models/painter --reference tests/data/painter.npz
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import diffusers
import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor
from torch.nn import Module
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from transformers.models.clip.tokenization_clip import bytes_to_unicode

Array = npt.NDArray[Any]
Models = tuple[Module, Module, Module]

SIZE, STEPS, GUIDANCE, LENGTH = 32, 6, 5.0, 77
PROMPT, NEGATIVE = "a small red house by the sea, 2 boats", "blurry"
MERGES = ["a </w>", "r e", "re d</w>", "h o", "u s", "e </w>", "t h", "s e", "ho us"]
NOISE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
AWKWARD = [
    "",
    " ",
    "Hello,   World!",
    "it's we'll don't",
    "café naïve",
    "12345 3.14",
    "emoji 😀🎉",
    "a_b-c/d",
    "line\nbreak\ttab",
    "x" * 300,
    "many words " * 60,
    "¿qué? — “quoted”",
    "½ ² Ⅷ",
    "<|endoftext|> inside",
]
SCHEDULERS = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True, "set_alpha_to_one": False, "steps_offset": 1}),
    "euler": ("EulerDiscreteScheduler", {"steps_offset": 1}),
    "lms": ("LMSDiscreteScheduler", {"steps_offset": 1}),
    "heun": ("HeunDiscreteScheduler", {"steps_offset": 1}),
    "dpm": ("DPMSolverMultistepScheduler", {"steps_offset": 1}),
    "dpm_karras": ("DPMSolverMultistepScheduler", {"steps_offset": 1, "use_karras_sigmas": True}),
    "unipc": ("UniPCMultistepScheduler", {"steps_offset": 1}),
}


def byte_letters() -> list[str]:
    """Return the letters that stand for the 256 bytes in CLIP's vocabulary."""
    return list(bytes_to_unicode().values())


def save_tokenizer(folder: Path) -> CLIPTokenizer:
    """Write a vocabulary of all bytes, a few merges and the two marks."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = byte_letters()
    pieces = [*letters, *(letter + "</w>" for letter in letters), *(merge.replace(" ", "") for merge in MERGES)]
    pieces = [*dict.fromkeys(pieces), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=LENGTH)


class Text(Module):  # type: ignore[misc]  # torch is untyped here
    """The text encoder with the names of its inputs on disk."""

    def __init__(self, model: Module) -> None:
        """Take the model."""
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return embeddings."""
        return self.model(input_ids)[0]


class Unet(Module):  # type: ignore[misc]  # torch is untyped here
    """The unet, likewise."""

    def __init__(self, model: Module) -> None:
        """Take the model."""
        super().__init__()
        self.model = model

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Return what the latents hold of noise."""
        return self.model(sample, timestep, encoder_hidden_states, return_dict=False)[0]


class Encoder(Module):  # type: ignore[misc]  # torch is untyped here
    """The encoder, likewise."""

    def __init__(self, vae: Module) -> None:
        """Take the model."""
        super().__init__()
        self.vae = vae

    def forward(self, sample: Tensor) -> Tensor:
        """Return means and logarithms of variances of latents."""
        return self.vae.quant_conv(self.vae.encoder(sample))


class Decoder(Module):  # type: ignore[misc]  # torch is untyped here
    """The decoder, likewise."""

    def __init__(self, vae: Module) -> None:
        """Take the model."""
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Tensor) -> Tensor:
        """Return an image from -1 to 1."""
        return self.vae.decode(latent_sample, return_dict=False)[0]


def make_models(words: int) -> Models:
    """Return the three models, with the same random weights every time."""
    torch.manual_seed(3)
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=words,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            attn_implementation="eager",
        )
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=SIZE // 8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=4,
        layers_per_block=1,
    )
    unet.set_attn_processor(diffusers.models.attention_processor.AttnProcessor())
    vae.set_attn_processor(diffusers.models.attention_processor.AttnProcessor())
    return text.eval(), unet.eval(), vae.eval()


def export(
    module: Module, arguments: tuple[Tensor, ...], path: Path, names: list[str], output: str, axes: dict[str, Any]
) -> None:
    """Write a model as ONNX, without what differs from machine to machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module,
        arguments,
        str(path),
        input_names=names,
        output_names=[output],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(str(path))
    del model.metadata_props[:]
    onnx.save(model, str(path))


def save_models(folder: Path, models: Models, layout: str) -> None:
    """Export the models in a layout's element types and ranks."""
    text, unet, vae = models
    ids = torch.zeros((1, LENGTH), dtype=torch.int32 if layout == "classic" else torch.int64)
    time = torch.tensor([1.0]) if layout == "classic" else torch.tensor(1.0)
    latents, hidden = torch.zeros((2, 4, SIZE // 8, SIZE // 8)), torch.zeros((2, LENGTH, 16))
    rows = {0: "batch"}
    image = {0: "batch", 2: "height", 3: "width"}
    axes: dict[str, Any] = {"input_ids": rows}
    export(Text(text), (ids,), folder / "text_encoder/model.onnx", ["input_ids"], "last_hidden_state", axes)
    names = ["sample", "timestep", "encoder_hidden_states"]
    axes = {"sample": image, "encoder_hidden_states": rows}
    export(Unet(unet), (latents, time, hidden), folder / "unet/model.onnx", names, "out_sample", axes)
    axes = {"latent_sample": image}
    export(Decoder(vae), (latents[:1],), folder / "vae_decoder/model.onnx", ["latent_sample"], "sample", axes)
    if layout == "optimum":
        picture = torch.zeros((1, 3, SIZE, SIZE))
        names = ["sample"]
        export(
            Encoder(vae), (picture,), folder / "vae_encoder/model.onnx", names, "latent_parameters", {"sample": image}
        )


def save_settings(folder: Path, models: Models, tokenizer: CLIPTokenizer) -> None:
    """Write what optimum-onnx reads beside the graphs."""
    text, unet, vae = models
    text.config.to_json_file(folder / "text_encoder/config.json")
    for part, model in (("unet", unet), ("vae_encoder", vae), ("vae_decoder", vae)):
        model.save_config(folder / part)
    tokenizer.save_pretrained(folder / "tokenizer")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2))


def ids_of(tokenizer: CLIPTokenizer, text: str) -> list[int]:
    """Return the ids of a text, cut and filled up."""
    found: list[int] = tokenizer(text, padding="max_length", max_length=LENGTH, truncation=True).input_ids
    return found


def paint(models: Models, tokenizer: CLIPTokenizer, scheduler: Any, latents: Array) -> tuple[Array, Array]:
    """Return the image that diffusers' loop makes: guidance, scheduler, decoder."""
    text, unet, vae = models
    with torch.no_grad():
        ids = torch.tensor([ids_of(tokenizer, one) for one in (NEGATIVE, PROMPT)])
        hidden = text(ids)[0]
        scheduler.set_timesteps(STEPS)
        x = torch.tensor(latents, dtype=torch.float32) * scheduler.init_noise_sigma
        for time in scheduler.timesteps:
            given = scheduler.scale_model_input(torch.cat([x] * 2), time)
            without, guided = unet(given, time, hidden, return_dict=False)[0].chunk(2)
            x = scheduler.step(without + GUIDANCE * (guided - without), time, x).prev_sample
        image = vae.decode(x / 0.18215, return_dict=False)[0]
        return np.clip(image.numpy() / 2 + 0.5, 0, 1).transpose(0, 2, 3, 1), ids.numpy()


def main() -> None:
    """Write the folder, and the reference if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layout", choices=["classic", "optimum"], default="classic")
    parser.add_argument("--reference", type=Path)
    arguments = parser.parse_args()
    tokenizer = save_tokenizer(arguments.out / "tokenizer")
    models = make_models(len(tokenizer))
    save_models(arguments.out, models, arguments.layout)
    schedulers = {name: getattr(diffusers, cls)(**NOISE, **more) for name, (cls, more) in SCHEDULERS.items()}
    (arguments.out / "scheduler").mkdir(exist_ok=True)
    config = json.dumps(config_of(schedulers["ddim"]), indent=2)
    (arguments.out / "scheduler/scheduler_config.json").write_text(f"{config}\n")
    if arguments.layout == "optimum":
        save_settings(arguments.out, models, tokenizer)
    if arguments.reference:
        latents = np.random.RandomState(5).randn(1, 4, SIZE // 8, SIZE // 8)
        found: dict[str, Any] = {"latents": latents.astype(np.float32)}
        for name, scheduler in schedulers.items():
            found[f"{name}_image"], found["ids"] = paint(models, tokenizer, scheduler, latents)
            found[f"{name}_config"] = np.array(json.dumps(config_of(scheduler)))
        arguments.reference.parent.mkdir(parents=True, exist_ok=True)
        words: dict[str, Any] = {
            "awkward": np.array(AWKWARD),
            "awkward_ids": np.array([ids_of(tokenizer, text) for text in AWKWARD]),
        }
        settings: dict[str, Any] = {"prompt": PROMPT, "negative": NEGATIVE, "steps": STEPS, "guidance": GUIDANCE}
        np.savez_compressed(arguments.reference, **settings, **words, **found)


def config_of(scheduler: Any) -> dict[str, Any]:
    """Return the settings of a scheduler as its file has them."""
    kept = {key: value for key, value in scheduler.config.items() if not key.startswith("_")}
    return {"_class_name": type(scheduler).__name__, **kept}


if __name__ == "__main__":
    main()
