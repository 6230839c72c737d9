"""Turns a model's `memory:` into ONNX Runtime's own session options and run options.

The profiles are made of knobs that were measured on onnxruntime 1.31.1: over 2000 varying shapes a transformer's
process grew by 75 MiB with ONNX Runtime's defaults, by 38 without memory pattern, and by 2 without arena and pattern
where the C library is asked to trim. Shrinking an arena after every run made it grow by 1542: heap fragments.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ortdeploy.providers.options import SHRINKAGE
from ortdeploy.units import parse_size

_PROFILES: dict[str, dict[str, Any]] = {
    "lean": {"arena": False, "pattern": False, "trim": True},
    "fast": {},
}
SESSION_OPTIONS = {"arena": "enable_cpu_mem_arena", "pattern": "enable_mem_pattern", "reuse": "enable_mem_reuse"}
CONFIG_ENTRIES = {
    "prepacking": "session.disable_prepacking",
    "device_allocator_for_initializers": "session.use_device_allocator_for_initializers",
}
_ENVIRONMENT_ALLOCATORS = "session.use_env_allocators"
_EXTEND = {"next_power_of_two": 0, "same_as_requested": 1}
_ARENA_KEYS = {
    "max": "max_mem",
    "initial_chunk": "initial_chunk_size_bytes",
    "initial_growth_chunk": "initial_growth_chunk_size_bytes",
    "max_dead_bytes_per_chunk": "max_dead_bytes_per_chunk",
    "max_power_of_two_extend": "max_power_of_two_extend_bytes",
}


class MemorySpec(Struct, frozen=True, kw_only=True):
    """A model's memory settings, those of its profile included; `written` are those of the manifest's own words."""

    profile: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trim(self) -> bool:
        """Whether the C library is asked to give freed memory back."""
        return bool(self.settings.get("trim", False))

    @property
    def shared_arena(self) -> bool:
        """Whether the sessions use the arena of the process."""
        return self.settings.get("arena") == "shared"

    @property
    def pattern_by_shape(self) -> bool:
        """Whether a memory pattern is planned only where shapes are fixed.

        A pattern asks for a block of another size for each shape. Without an arena, or with one that shrinks, these
        fragment the heap.
        """
        gives_back = self.settings.get("arena") is False or self.settings.get("shrink_after_run", False)
        return "pattern" not in self.settings and (self.profile == "fast" or bool(gives_back))

    def session_options(self, session: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return session options with these settings; what `session:` says itself wins."""
        plain = {
            option: self.settings[key] is not False if key == "arena" else self.settings[key]
            for key, option in SESSION_OPTIONS.items()
            if key in self.settings
        }
        config = {
            entry: self.settings[key] is (key != "prepacking")
            for key, entry in CONFIG_ENTRIES.items()
            if key in self.settings
        }
        if self.shared_arena:
            config[_ENVIRONMENT_ALLOCATORS] = True
        if config:
            plain["config"] = {**config, **session.get("config", {})}
        return {**plain, **session, **({"config": plain["config"]} if config else {})}

    def run_options(self, run: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return run options with these settings; what `run:` says itself wins."""
        shrink = self.settings.get("shrink_after_run", False)
        if not shrink:
            return run
        return {**run, "config": {SHRINKAGE: "cpu:0" if shrink is True else shrink, **run.get("config", {})}}


def read_memory(data: Any) -> MemorySpec:
    """Read a profile's name, or settings over those of a profile."""
    written: Mapping[str, Any] = {"profile": data} if isinstance(data, str) else data
    profile = written.get("profile")
    own = {key: value for key, value in written.items() if key != "profile"}
    settings = {**(_PROFILES[profile] if profile else {}), **own}
    return MemorySpec(profile=profile, settings=settings, written=own)


def arena_config(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the shared arena's settings as ONNX Runtime's OrtArenaCfg takes them: whole numbers by its own names."""
    config = {key: parse_size(data[name]) or 0 for name, key in _ARENA_KEYS.items() if name in data}
    if "extend_strategy" in data:
        config["arena_extend_strategy"] = _EXTEND[data["extend_strategy"]]
    return config
