"""How manifests and plan files are read, as a command line says."""

import argparse
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortdeploy.diagnostics import UsageError
from ortdeploy.files.names import is_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortdeploy.manifest.loader import LoadOptions
    from ortdeploy.planning.versions.installed import Installed

_LABEL = "[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
"""The key of a label, as the schemas have it."""


def load_options(arguments: argparse.Namespace, *, digest: bool = True) -> "LoadOptions":
    """Return the options for reading manifests that the command line gives, or those of what it has taken."""
    options = own_options(arguments, digest=digest)
    taken: Taken | None = getattr(arguments, "taken", None)
    if taken is None and arguments.command in _ROOT_OF_INSTALLED and arguments.root is not None:
        raise UsageError("--root says where an installed deployment lies: name it as @NAME")
    return options if taken is None else taken.options(options)


def own_options(arguments: argparse.Namespace, *, digest: bool = True) -> "LoadOptions":
    """Return the options for reading manifests that the command line gives itself."""
    from ortdeploy.manifest.loader import LoadOptions  # noqa: PLC0415  brings yaml

    return LoadOptions(
        digest=digest,
        profile=arguments.profile,
        from_environment=getattr(arguments, "environment_profile", False),
        device_name=device_name(),
        labels=labels_of(arguments.labels),
        choose_anew=getattr(arguments, "choose", False),
        sets=tuple(arguments.sets),
        roots=tuple(arguments.roots),
        overlays=tuple(arguments.overlays),
    )


_ROOT_OF_INSTALLED = frozenset({"cache", "check", "compact", "retry", "service", "status", "verify", "watch"})


class Taken(Struct, frozen=True, kw_only=True):
    """An installed version, or a bundle, that a command line names: how it is named again, how it is loaded, its id.

    `passed`: its golden checks have passed with the facts of now. `arrivals` is for `watch`, and `kept` for `service`:
    the manifests of all versions that are here, and how they are loaded.
    """

    path: str
    flags: tuple[str, ...]
    options: "Callable[[LoadOptions], LoadOptions]"
    bundle: str | None = None
    passed: bool = False
    arrivals: Any = None
    kept: "Sequence[tuple[str, Callable[[LoadOptions], LoadOptions]]]" = ()
    installed: "Installed | None" = None


def device_name() -> str | None:
    """Return what the environment calls this machine, or its host's name; None if it has none."""
    return os.environ.get("ORTDEPLOY_DEVICE") or platform.node() or None


def labels_of(flags: Sequence[str]) -> dict[str, str]:
    """Return the labels of --label, or of ORTDEPLOY_LABELS if none is given. Raises UsageError."""
    variable = "ORTDEPLOY_LABELS"
    said = flags or list(filter(None, map(str.strip, os.environ.get(variable, "").split(","))))
    found: dict[str, str] = {}
    for text in said:
        key, equals, value = text.partition("=")
        source = "--label" if flags else variable
        if not equals or re.fullmatch(_LABEL, key) is None:
            raise UsageError(f'{source}: "{text}" is not KEY=VALUE, with a key of letters, digits and . _ - /')
        if key in found:
            raise UsageError(f'{source} gives the label "{key}" twice')
        found[key] = value
    return found


def plan_root(root: str | None, plan: Path) -> Path:
    """Return the folder that the paths of a plan file are relative to: --root, or the file's own."""
    if root is not None and not is_folder(root):
        raise UsageError(f"--root: there is no folder {root}")
    return Path(os.path.abspath(root if root is not None else plan.parent))  # noqa: PTH100  without following links
