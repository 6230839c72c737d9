"""Cache of optimized graphs and compiled models, which ONNX Runtime makes when it opens a session.

An entry is a folder with `model.onnx`, its other files, and `made_by.json`: everything that the entry depends on, the
digests of its files, and the placement that ONNX Runtime recorded when it was made. Each session of a model has one
entry; if it does not fit any more, it is replaced.

The weights of an optimized graph are beside it, packed for the kernels. ONNX Runtime maps them: measured on 1.31.1,
four sessions of a perceptron of 20 MiB take 33 MiB instead of 94, and open in half the time.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from ortdeploy.files.atomic import open_whole, sync_folder
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.digests import file_digest
from ortdeploy.files.disk import make_folders, remove_folder
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text, read_whole
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.process.memory import WEIGHTS
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.secrets import masked_options, masked_settings
from ortdeploy.runtime.library import ort
from ortdeploy.runtime.machine import probe_machine

_ABANDONED_SECONDS = 24 * 3600
"""Seconds after which a folder that nobody has touched was left by a killed run; younger ones may be in the making."""

MODEL, MADE_BY = "model.onnx", "made_by.json"
_NAME = r"[0-9a-f]{16}|\.[0-9a-f]{16}\.[0-9]+\.making"

_RUNNING = {
    "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "enable_cpu_mem_arena", "enable_mem_pattern",
    "enable_mem_reuse", "log_severity_level", "log_verbosity_level", "logid", "config",
}  # fmt: skip
_RUNNING_ENTRIES = ("session.intra_", "session.inter_", "session.use_env_allocators")
"""Session options that say how a session runs, and nothing of the graph."""

_SMALL = 1024
"""Initializers of fewer bytes stay in the model file."""


class CachedModel(Struct, frozen=True, kw_only=True):
    """A model file to open in place of the original, with the placement and machine recorded when it was made."""

    path: Path
    placement: Mapping[str, int]
    machine: str


class CacheEntry:
    """The cache entry of one session's model."""

    def __init__(self, folder: Path, step: OpenSession, candidate: PlannedSession) -> None:
        """Work out what the entry depends on, without touching it."""
        name = hashlib.sha256(f"{step.model}\0{candidate.name}".encode()).hexdigest()[:16]  # a name may hold anything
        self._folder, self._building = folder / name, folder / f".{name}.{os.getpid()}.making"
        self._depends_on = _dependencies(step, candidate)
        self._digests = DigestCache(folder.parent)

    @property
    def path(self) -> Path:
        """Where the model lies."""
        return self._folder / MODEL

    def find(self) -> tuple[CachedModel | None, str]:
        """Return the model if it is whole and still fits, else why not."""
        try:
            made_by = read_json(read_text(self._folder / MADE_BY))
            changed = [key for key, value in self._depends_on.items() if made_by["depends_on"].get(key) != value]
            if changed:
                return None, f"another {', '.join(changed)}"
            other = self._first_other(made_by["files"])
            if other is not None:
                return None, f"{other} in it is not what was kept"
            placement = {str(name): int(nodes) for name, nodes in made_by["placement"].items()}
            return CachedModel(path=self.path, placement=placement, machine=str(made_by["machine"])), ""
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None, "it cannot be read"

    def _first_other(self, kept: Mapping[str, str]) -> str | None:
        """Return the first file that is missing, added or changed; None if exactly the entry's are there.

        Raises OSError.
        """
        there = {path.name for path in self._folder.iterdir() if path.is_file() and not path.is_symlink()}
        if odd := there ^ {*kept, MODEL, MADE_BY} or {MODEL} - set(kept):  # a name that leads elsewhere is odd
            return min(odd)
        return next((name for name, one in kept.items() if self._digests.digest(self._folder / name) != one), None)

    def begin(self) -> Path:
        """Make an empty folder to make the model in, and return the model's path. Raises OSError."""
        for left in self._building.parent.glob(f".{self._folder.name}.*.making"):
            if left == self._building or left.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                remove_folder(left)
        make_folders(self._building.parent)
        self._building.mkdir()
        return self._building / MODEL

    def keep(self, placement: Mapping[str, int]) -> None:
        """Replace the entry with the new model. Raises OSError."""
        files = {path.name: file_digest(path) for path in sorted(self._building.iterdir())}
        made_by = {
            "depends_on": self._depends_on,
            "files": files,
            "placement": dict(placement),
            "machine": platform.node(),
        }
        with open_whole(self._building / MADE_BY) as file:
            file.write((json.dumps(made_by, indent=2) + "\n").encode())
        self.forget()
        self._building.rename(self._folder)
        sync_folder(self._folder.parent)

    def abandon(self) -> None:
        """Remove the unfinished entry."""
        remove_folder(self._building)

    def forget(self) -> None:
        """Remove the entry."""
        with suppress(FileNotFoundError):
            import shutil  # noqa: PLC0415  only where an entry is no good

            shutil.rmtree(self._folder)


def entries(folder: Path) -> dict[Path, str | None]:
    """Return the entries of a cache, each with the digest of its model; None: it is unfinished, or cannot be read."""
    own = sorted(
        one for one in folder.glob("*") if re.fullmatch(_NAME, one.name) and one.is_dir() and not one.is_symlink()
    )
    return {one: _model_of(one) for one in own}


def _model_of(entry: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return (
            None if entry.name.startswith(".") else str(read_json(read_whole(entry / MADE_BY))["depends_on"]["model"])
        )
    return None


def cache_options(candidate: PlannedSession, target: Path) -> dict[str, Any] | None:
    """Return the session options that make a chain write its model; None if it cannot."""
    providers = [find_provider(provider.name) for provider in candidate.providers]
    if any(provider is not None and provider.writes_context for provider in providers):
        config = {"ep.context_enable": "1", "ep.context_file_path": str(target), "ep.context_embed_mode": "0"}
        return {"config": config}
    if maps_weights(candidate):
        packed = {
            "session.optimized_model_external_initializers_file_name": WEIGHTS,
            "session.optimized_model_external_initializers_min_size_in_bytes": str(_SMALL),
            "session.save_external_prepacked_constant_initializers": "1",
        }
        return {"optimized_model_filepath": str(target), "config": packed}
    return None


def maps_weights(candidate: PlannedSession) -> bool:
    """Return whether the cached weights are mapped, so that sessions and processes share them."""
    return {provider.name for provider in candidate.providers} == {CPU}


def took_nodes(candidate: PlannedSession, placement: Mapping[str, int]) -> bool:
    """Return whether every provider of a chain has nodes: caching another session would hide why one has none."""
    return all(placement.get(provider.name) for provider in candidate.providers if provider.name != CPU)


def reuse_options(candidate: PlannedSession) -> dict[str, Any]:
    """Return the session options for opening a cached model: an optimized graph is not optimized again."""
    return {"graph_optimization_level": "disable"} if maps_weights(candidate) else {}


def _dependencies(step: OpenSession, candidate: PlannedSession) -> dict[str, Any]:
    """Return everything that a cached model depends on, by its name in messages."""
    machine = probe_machine()
    return {
        "model": step.sha256,
        "session options": json.dumps(masked_settings("session", _shaping(step.options)), sort_keys=True),
        "provider options": [
            [provider.name, masked_options(provider.name, provider.options)] for provider in candidate.providers
        ],
        "device": [to_builtins(provider.device) if provider.device else None for provider in candidate.providers],
        "files of options": [file.sha256 for file in step.option_files],
        "provider library": [_library(provider) for provider in candidate.providers],
        "ONNX Runtime version": ort.__version__,
        "processor": [machine.system, machine.architecture, *machine.cpu_flags],
    }


def _shaping(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session options that may change a cached model: not those of threads, memory and logs."""
    config = {key: value for key, value in options.get("config", {}).items() if not key.startswith(_RUNNING_ENTRIES)}
    return {**{key: value for key, value in options.items() if key not in _RUNNING}, "config": config}


def _library(provider: PlannedProvider) -> list[int] | None:
    """Return what distinguishes versions of a plugin's library."""
    if provider.device is None:
        return None
    with suppress(OSError):
        status = Path(provider.device.library).stat()
        return [status.st_size, status.st_mtime_ns]
    return None
