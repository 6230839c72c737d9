"""Reads adapter matrices from training formats: PEFT folders, safetensors files, .npz archives."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import decoding
from ortdeploy.files.names import is_file, is_folder
from ortdeploy.files.numpy_archives import read_npz
from ortdeploy.files.opening import open_regular, read_text, regular_path
from ortdeploy.shell import pip_install
from ortdeploy.tensors.columns import Array

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_REFUSED = {"use_dora": False, "modules_to_save": None, "bias": "none"}
"""What PEFT can train beside the two matrices, and the value that says that it did not: no adapter file holds it."""


class Scaling(Struct, frozen=True, kw_only=True):
    """What a layer's product A B is multiplied with: alpha / rank, or alpha / sqrt(rank); 1 without an alpha.

    The patterns are PEFT's: layers, by the end of their names, that have a rank or alpha of their own.
    """

    alpha: float | None = None
    rank: int | None = None
    by_root: bool = False
    alphas: Mapping[str, float] | None = None
    ranks: Mapping[str, int] | None = None

    def factor(self, layer: str, rank: int) -> float:
        """Return the factor of one layer. Raises OrtdeployError if its matrices have another rank than is said."""
        alpha = _matching(self.alphas, layer, self.alpha)
        said = _matching(self.ranks, layer, self.rank)
        if said is not None and said != rank:
            raise OrtdeployError(f"{layer} has rank {rank}, and {_CONFIG} says {said:g}")
        return 1.0 if alpha is None else alpha / (rank**0.5 if self.by_root else rank)


class Weights(Struct, frozen=True, kw_only=True):
    """Matrices by name; `transposed`: PyTorch's Linear keeps them as [out, in], a graph multiplies by [in, out]."""

    arrays: Mapping[str, Array]
    transposed: bool
    scaling: Scaling


def read_weights(path: Path, alpha: float | None) -> Weights:
    """Read an adapter in another format. Raises OrtdeployError for what is none, or holds what a file cannot."""
    if is_folder(path):
        return _read_peft(path, path / _WEIGHTS, alpha)
    try:
        with open_regular(path) as file:
            head = file.read(9)
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be read: {error.strerror}") from error
    if head.startswith(b"PK"):
        return Weights(arrays=read_npz(path), transposed=False, scaling=Scaling(alpha=alpha))
    if head[8:] != b"{":
        raise OrtdeployError(f"{path} is neither a safetensors file, nor a .npz archive, nor a PEFT folder")
    if is_file(path.parent / _CONFIG):
        return _read_peft(path.parent, path, alpha)
    if alpha is None:
        raise OrtdeployError(f"{path} does not say its alpha, and no {_CONFIG} lies beside it; give it with --alpha")
    return Weights(arrays=_read_safetensors(path), transposed=True, scaling=Scaling(alpha=alpha))


def _matching(patterns: Mapping[str, Any] | None, layer: str, otherwise: Any) -> Any:
    """Return the value of the pattern that a layer's name ends with, as PEFT chooses it."""
    return next((value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})\Z", layer)), otherwise)


def _read_peft(folder: Path, weights: Path, alpha: float | None) -> Weights:
    try:
        config = json.loads(read_text(folder / _CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        raise OrtdeployError(f"{folder / _CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("r"), int):
        raise OrtdeployError(f"{folder / _CONFIG} is not that of a LoRA adapter: it has no r")
    for key, fine in _REFUSED.items():
        if config.get(key) and config[key] != fine:
            raise OrtdeployError(f"{folder / _CONFIG} says {key}: {config[key]}, which an adapter file cannot hold")
    scaling = Scaling(
        alpha=alpha if alpha is not None else config.get("lora_alpha", config["r"]),
        rank=config["r"],
        by_root=bool(config.get("use_rslora")),
        alphas=config.get("alpha_pattern") or {},
        ranks=config.get("rank_pattern") or {},
    )
    return Weights(arrays=_read_safetensors(weights), transposed=True, scaling=scaling)


def _read_safetensors(path: Path) -> dict[str, Array]:
    try:
        from safetensors import safe_open  # noqa: PLC0415  an extra, to convert only
    except ImportError:
        raise OrtdeployError(
            f"safetensors files need the package safetensors: {pip_install('ortdeploy[adapters]')}"
        ) from None
    with decoding(str(path), "safetensors"):
        try:
            with safe_open(regular_path(path), "numpy") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        except AttributeError as error:  # an element type that NumPy does not have
            raise ValueError(str(error)) from error
