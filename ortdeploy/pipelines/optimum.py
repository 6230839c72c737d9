"""Makes images with a pipeline of optimum-onnx, over sessions that ortdeploy has opened: the preset `diffusion`.

optimum-onnx 0.1.0 takes a session for each component and calls its `run`. So every component has the provider chain,
options and adapters of the manifest, which optimum-onnx's own `from_pretrained` could not set for each. Schedulers and
loops are those of diffusers.
"""

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, did_you_mean
from ortdeploy.files.opening import regular_path
from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedPreset
from ortdeploy.tensors.columns import Array

_CLASSES = {
    "text-to-image": "ORTPipelineForText2Image",
    "image-to-image": "ORTPipelineForImage2Image",
    "inpainting": "ORTPipelineForInpainting",
}


class BorrowedSession:
    """A component as optimum-onnx takes one: an InferenceSession whose runs go through ortdeploy's."""

    def __init__(self, component: Component, adapters: tuple[str, ...], path: Path) -> None:
        """Take the component; `path` is its model file, beside which optimum-onnx reads config.json."""
        self._component = component
        self._adapters = adapters
        self._native = cast("Any", component.opened.session).native
        self._names = [one.name for one in self._native.get_outputs()]
        self._model_path = str(path)

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Array], _options: Any = None) -> list[Any]:
        """Run once, with the axes of the component's graph, [rows, …]. Raises OrtdeployError."""
        return list(self._component.run(outputs or self._names, feeds, self._adapters))

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the InferenceSession: names, types and shapes."""
        return getattr(self._native, name)


class OptimumSession(ComposedSession):
    """Makes one image of each row; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Open the pipeline over the components. Raises OrtdeployError."""
        super().__init__(components)
        if pipeline.preset is None:
            raise TypeError("the pipeline has no preset")
        self._preset: PlannedPreset = pipeline.preset
        try:
            self._pipeline = _open(pipeline.preset, components)
            self._latents = _read_latents(pipeline.preset)
        except OrtdeployError:
            raise
        except Exception as error:  # optimum-onnx, diffusers and transformers raise exceptions of any type
            raise OrtdeployError(
                f"{pipeline.name}: optimum-onnx cannot open {pipeline.preset.folder}: {error}"
            ) from error

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:  # noqa: ARG002  a component's adapters are its own
        """Return images, uint8 [rows, height, width, 3]. Raises OrtdeployError."""
        try:
            with _quiet():
                images = np.asarray(self._pipeline(**self._arguments(feeds)).images)
        except OrtdeployError:
            raise
        except Exception as error:  # as above
            raise OrtdeployError(f"optimum-onnx: {type(error).__name__}: {error}") from error
        if not np.isfinite(images).all():
            raise OrtdeployError("an image holds NaN: half precision has overflowed, most often in vae_decoder")
        return [np.round(images * 255).astype(np.uint8)] * len(outputs)

    def _arguments(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return the arguments of the pipeline's call for feeds [rows], or [rows, height, width, channels]."""
        import torch  # noqa: PLC0415  an extra, for this preset only

        preset, rows = self._preset, len(feeds["prompt"])
        seeds = [int(seed) for seed in feeds.get("seed", [0] * rows)]
        arguments: dict[str, Any] = {
            "prompt": [str(text) for text in feeds["prompt"]],
            "num_inference_steps": preset.steps,
            "guidance_scale": preset.guidance_scale,
            "generator": [torch.Generator().manual_seed(seed) for seed in seeds],
            "output_type": "np",
            **preset.arguments,
        }
        if "negative_prompt" in feeds:
            arguments["negative_prompt"] = [str(text) for text in feeds["negative_prompt"]]
        if preset.task == "text-to-image":
            arguments |= {"height": preset.height, "width": preset.width}
        if self._latents is not None:
            arguments["latents"] = torch.from_numpy(np.repeat(self._latents, rows, axis=0))
        for name in ("image", "mask_image"):
            if name in feeds:
                picture = feeds[name].astype(np.float32) / 255
                arguments[name] = picture[..., 0] if name == "mask_image" else picture
        return arguments


def _read_latents(preset: PlannedPreset) -> Array | None:
    """Return fixed starting noise, float32 [1, channels, height / 8, width / 8]. Raises OSError, ValueError."""
    if preset.latents is None:
        return None
    latents = np.load(regular_path(preset.latents), allow_pickle=False).astype(np.float32)
    return np.asarray(latents.reshape(1, *latents.shape[-3:]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the packages' warnings about themselves; whatever goes wrong, they raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_arguments(pipeline: Any, preset: PlannedPreset) -> None:
    """Raise OrtdeployError for an argument that the pipeline's call does not have, and would ignore silently."""
    known = [name for name in inspect.signature(type(pipeline).__call__).parameters if name not in {"self", "kwargs"}]
    for name in preset.arguments:
        if name not in known:
            raise OrtdeployError(f'{type(pipeline).__name__} takes no argument "{name}". {did_you_mean(name, known)}')


def _open(preset: PlannedPreset, components: Mapping[str, Component]) -> Any:
    """Return the pipeline over the components; nothing is downloaded."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the packages are imported
    with _quiet():
        pipeline = _open_quietly(preset, components)
    _check_arguments(pipeline, preset)
    return pipeline


def _open_quietly(preset: PlannedPreset, components: Mapping[str, Component]) -> Any:
    from diffusers.utils import logging  # noqa: PLC0415  an extra, for this preset only

    logging.set_verbosity_error()
    from optimum import onnxruntime as optimum  # noqa: PLC0415  as above

    sessions = {
        f"{part}_session": BorrowedSession(
            components[model], tuple(preset.adapters.get(part, ())), Path(preset.folder) / part / "model.onnx"
        )
        for part, model in preset.sessions.items()
    }
    pipeline = getattr(optimum, _CLASSES[preset.task]).from_pretrained(
        preset.folder, export=False, local_files_only=True, use_io_binding=False, **sessions
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
