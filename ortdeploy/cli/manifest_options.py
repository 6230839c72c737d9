"""How manifests and plan files are read, as a command line says."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import UsageError
from ortdeploy.files.names import is_folder

if TYPE_CHECKING:
    from ortdeploy.manifest.loader import LoadOptions


def load_options(arguments: argparse.Namespace, *, digest: bool = True) -> "LoadOptions":
    """Return the options for reading manifests that the command line gives."""
    from ortdeploy.manifest.loader import LoadOptions  # noqa: PLC0415  brings yaml

    sets, roots, overlays = tuple(arguments.sets), tuple(arguments.roots), tuple(arguments.overlays)
    return LoadOptions(digest=digest, profile=arguments.profile, sets=sets, roots=roots, overlays=overlays)


def plan_root(root: str | None, plan: Path) -> Path:
    """Return the folder that the paths of a plan file are relative to: --root, or the file's own."""
    if root is not None and not is_folder(root):
        raise UsageError(f"--root: there is no folder {root}")
    return Path(os.path.abspath(root if root is not None else plan.parent))  # noqa: PTH100  without following links
