"""Says where the processes of a plan write the parts of a job together."""

from collections.abc import Sequence
from pathlib import Path

from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace


def place_of(url: str | None, folder: Path, roots: Sequence[str]) -> SharedPlace:
    """Return the store at an output's `url`, if it is on one, else its folder, whose links stay below `roots`.

    Raises OrtdeployError.
    """
    if url is None:
        return SharedFolder(folder, roots)
    from ortdeploy.files.shared_store import SharedStore  # noqa: PLC0415  only for an object store

    return SharedStore(url)
