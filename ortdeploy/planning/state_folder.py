"""Finds the state folder of a manifest, which must pass the gate for paths."""

import os
from collections.abc import Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.gate import link_out, outside
from ortdeploy.files.names import MIRRORS, STATE_DIR


def state_folder(folder: str, state_dir: str | None, roots: Sequence[str]) -> Path:
    """Return the folder of a manifest's ledger: --state-dir, or .ortdeploy beside the manifest.

    Raises OrtdeployError if it, or a link in it, leads out of the manifest's folder tree and of the roots: a link that
    comes with a checkout must not make ortdeploy write anywhere else.
    """
    path = Path(state_dir).absolute() if state_dir else Path(folder) / STATE_DIR
    if state_dir is None and outside(str(path), (folder, *roots)):
        raise OrtdeployError(
            f"{STATE_DIR} beside the manifest is a link to {os.path.realpath(path)}, out of the manifest's folder "
            "tree. If the ledger is to lie there, name that place with --state-dir, or allow its root with --allow-root"
        )
    link = link_out(path, (folder, *roots), skipped=Path(MIRRORS).name)
    if link is not None:
        raise OrtdeployError(
            f"{link} is a link to {os.path.realpath(link)}, out of the state directory, where nothing may lead "
            "elsewhere. Remove it, or allow its root with --allow-root"
        )
    return path
