"""What it catches: a model whose memory: says something else about an option than its session: or run:.

Why: memory: sets ONNX Runtime's own session options and run options under other names. If both are written, one of them
would silently win.

Example:

    memory: {pattern: true}
    session: {enable_mem_pattern: false}

How to fix: keep one of the two.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.memory import CONFIG_ENTRIES, SESSION_OPTIONS
from ortdeploy.providers.options import SHRINKAGE
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import ModelSpec, Spec

RULE = Rule(id="contradictory-memory", summary="Memory settings contradict each other")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for key, at in _contradicted(model):
            detail = (
                f'Model "{model.name}" says memory: {{{key}: {_word(model.memory.written[key])}}}, and '
                f"{'.'.join(map(str, at))} says something else. Keep one of the two."
            )
            yield Finding(at=(*model.at, "memory", key), detail=detail, key=True, model=model.name)


def _contradicted(model: "ModelSpec") -> "Iterator[tuple[str, Path]]":
    """Yield the keys of memory: that something else overrides, and where that stands."""
    plain, config = model.memory.session_options({}), model.session.get("config", {})
    expected = plain.get("config", {})
    for key in model.memory.written:
        option, entry = SESSION_OPTIONS.get(key), CONFIG_ENTRIES.get(key)
        if option and model.session[option] != plain[option]:
            yield key, ("session", option)
        elif entry and _flag(config[entry]) != expected[entry]:
            yield key, ("session", "config", entry)
        elif key == "shrink_after_run":
            wanted = model.memory.run_options({}).get("config", {}).get(SHRINKAGE)
            if model.run.get("config", {}).get(SHRINKAGE) != wanted:
                yield key, ("run", "config", SHRINKAGE)


def _flag(value: object) -> bool:
    """Read a config entry, which may be true, 1 or "1"."""
    return str(value).lower() in {"1", "true"}


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
