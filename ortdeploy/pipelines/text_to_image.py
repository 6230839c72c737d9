"""Makes images from text with the models of a folder shaped like Stable Diffusion 1 or 2: the preset `text-to-image`.

It does what diffusers' ONNX pipeline does. Prompts and negative prompts are encoded. Noise from each row's seed goes
through the scheduler's steps, each of which runs the unet, with guidance on twice as many rows. The latents are decoded
one image at a time. Element types and ranks are the graphs', so both layouts of such folders run: int32 or int64 ids, a
timestep of rank 0 or 1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.opening import regular_path
from ortdeploy.operations.tokenize_clip import ClipTokenizer
from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedPreset
from ortdeploy.presets.component_contracts import ANSWERS, latent_shape
from ortdeploy.presets.schedulers import make_scheduler
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import ContractError
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import TensorType

LATENT_SCALE = 0.18215
"""The factor on Stable Diffusion's latents in training, as in Rombach et al., 2022, and in diffusers' pipelines."""


class TextToImageSession(ComposedSession):
    """Makes one image of each row; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Read the vocabulary and the starting noise. Raises OrtdeployError."""
        super().__init__(components)
        if pipeline.preset is None:
            raise TypeError("the pipeline has no preset")
        self._preset: PlannedPreset = pipeline.preset
        self._ports = pipeline.preset.ports
        image = self._preset.height, self._preset.width
        self._latent_shape = latent_shape(*image)
        sizes = {"latents": list(self._latent_shape[1:]), "image": list(image)}
        self._answers = {
            part: ContractCheck(one, sizes, {parameter.name: TensorType() for parameter in one.inputs})
            for part, one in ANSWERS.items()
        }
        self._parts = {part: components[model] for part, model in pipeline.preset.sessions.items()}
        try:
            self._tokenizer = ClipTokenizer(Path(pipeline.preset.folder) / "tokenizer")
            self._latents = self._read_latents()
        except (OSError, ValueError, KeyError) as error:
            raise OrtdeployError(f"{pipeline.name}: {error}") from error

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:  # noqa: ARG002  a component's adapters are its steps'
        """Return images, uint8 [rows, height, width, 3]. Raises OrtdeployError."""
        prompts = [str(text) for text in feeds["prompt"]]
        negative = [str(text) for text in feeds.get("negative_prompt", [""] * len(prompts))]
        seeds = [int(seed) for seed in feeds.get("seed", [0] * len(prompts))]
        images = self.paint(prompts, negative, seeds)
        if not np.isfinite(images).all():
            raise OrtdeployError("an image holds NaN: half precision has overflowed, most often in vae_decoder")
        return [np.round(images * 255).astype(np.uint8)] * len(outputs)

    def paint(self, prompts: Sequence[str], negative: Sequence[str], seeds: Sequence[int]) -> Array:
        """Return images, float32 [rows, height, width, 3] from 0 to 1."""
        guided = self._preset.guidance_scale > 1
        embeddings = self._encode(prompts)
        if guided:
            embeddings = np.concatenate([self._encode(negative), embeddings])
        scheduler = make_scheduler(self._preset.scheduler, self._preset.steps)
        latents = self._noise(seeds) * scheduler.first_scale
        for index, time in enumerate(scheduler.timesteps):
            scaled = scheduler.scale(latents, index)
            answer = self._ask(np.concatenate([scaled] * 2) if guided else scaled, float(time), embeddings)
            if guided:
                without, with_prompt = np.split(answer, 2)
                answer = without + self._preset.guidance_scale * (with_prompt - without)
            latents = scheduler.step(latents, index, answer)
        return np.concatenate([self._decode(one[np.newaxis]) for one in latents])

    def _encode(self, texts: Sequence[str]) -> Array:
        """Return the text encoder's answer, float32 [rows, tokens, features]. Raises OrtdeployError."""
        port = self._ports["text_encoder"]
        length = port["length"]
        try:
            ids = np.array([self._tokenizer.encode(text, length) for text in texts])
        except ValueError as error:
            raise OrtdeployError(f"tokenizer: {error}") from error
        return self._in_batches("text_encoder", {port["input_ids"]["name"]: ids})

    def _ask(self, latents: Array, time: float, embeddings: Array) -> Array:
        """Return the unet's noise prediction, float64 [rows, 4, height / 8, width / 8], for latents at a timestep."""
        ports = self._ports["unet"]
        feeds = {ports["sample"]["name"]: latents, ports["encoder_hidden_states"]["name"]: embeddings}
        return self._in_batches("unet", feeds, {ports["timestep"]["name"]: time})

    def _decode(self, latents: Array) -> Array:
        """Return images from 0 to 1, float32 [rows, height, width, 3], of latents [rows, 4, height / 8, width / 8]."""
        name = self._ports["vae_decoder"]["latent_sample"]["name"]
        image = self._in_batches("vae_decoder", {name: latents / LATENT_SCALE})
        return np.clip(image / 2 + 0.5, 0, 1).transpose(0, 2, 3, 1)

    def _in_batches(self, part: str, feeds: Mapping[str, Array], single: Mapping[str, float] | None = None) -> Array:
        """Run a component on rows [rows, …] in its own types.

        If its graph fixes the number of rows, they run in batches of that size, the last one filled up. `single` are
        numbers that every run gets.
        """
        ports = self._ports[part]
        dtypes = {port["name"]: numpy_dtype(port["dtype"]) for port in ports.values() if isinstance(port, Mapping)}
        ranks = {port["name"]: port["rank"] for port in ports.values() if isinstance(port, Mapping)}
        rows = len(next(iter(feeds.values())))
        size = ports["rows"] or rows
        alone = {name: np.full((1,) * ranks[name], value, dtype=dtypes[name]) for name, value in (single or {}).items()}
        found = []
        for begin in range(0, rows, size):
            cut = {
                name: _filled(array[begin : begin + size], size).astype(dtypes[name]) for name, array in feeds.items()
            }
            adapters = tuple(self._preset.adapters.get(part, ()))
            (value,) = self._parts[part].run([ports["output"]], {**cut, **alone}, adapters)
            self._check_answer(part, next(iter(cut.values())), np.asarray(value))
            found.append(np.asarray(value)[: rows - begin])
        return np.concatenate(found).astype(np.float64 if part == "unet" else np.float32)

    def _check_answer(self, part: str, given: Array, answer: Array) -> None:
        """Check a component's output [rows, …] against its first input [rows, …]. Raises OrtdeployError."""
        names = [one.name for one in ANSWERS[part].inputs]
        try:
            self._answers[part](dict(zip(names, (given, answer), strict=True)))
        except ContractError as error:
            raise OrtdeployError(f"text-to-image cannot use what {part} gives: {error}") from error

    def _noise(self, seeds: Sequence[int]) -> Array:
        """Return starting noise, [rows, 4, height / 8, width / 8]; a row's noise depends on its seed alone."""
        if self._latents is not None:
            return np.repeat(self._latents, len(seeds), axis=0)
        try:
            return np.concatenate([np.random.RandomState(seed).randn(1, *self._latent_shape) for seed in seeds])
        except ValueError as error:
            raise OrtdeployError(f"seed: {error}") from error

    def _read_latents(self) -> Array | None:
        """Return fixed starting noise, [1, 4, height / 8, width / 8]. Raises ValueError if it has another shape."""
        if self._preset.latents is None:
            return None
        latents = np.load(regular_path(self._preset.latents), allow_pickle=False).astype(np.float64)
        shape = self._latent_shape
        if latents.shape not in {shape, (1, *shape)}:
            raise ValueError(f"{self._preset.latents} is {list(latents.shape)}, and the image needs {list(shape)}")
        return np.asarray(latents.reshape(1, *shape))


def _filled(array: Array, rows: int) -> Array:
    """Return an array [n, …] as [rows, …], filled up with its last row."""
    missing = rows - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else np.ascontiguousarray(array)
