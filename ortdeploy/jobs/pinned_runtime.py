"""A runtime that opens exactly the files that were hashed when the plan was made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.jobs.pinned_files import PinnedFiles, adapter_file
from ortdeploy.plan.steps import LoadAdapter, OpenSession, PlannedSession
from ortdeploy.providers.options import EXTERNAL_DATA_FOLDER
from ortdeploy.runtime.protocol import Runtime, Session

_CONTEXT_ENABLE, _CONTEXT_PATH = "ep.context_enable", "ep.context_file_path"


class PinnedRuntime:
    """A runtime over held files."""

    def __init__(self, runtime: Runtime, files: PinnedFiles) -> None:
        self._runtime = runtime
        self._files = files

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        """Open a session of the model that the plan rests on. Raises OrtdeployError.

        Files that options name are opened where they are: libraries find others beside them, and documents name others.
        """
        if not step.files:  # as of op steps, which are made of the plan
            return self._runtime.open_session(step, candidate)
        with (
            self._files.opening(step.option_files, in_place=True),
            self._files.opening(
                step.files, in_place=_writes_beside(step.options), single=_needs_one_name(step)
            ) as held,
        ):
            return self._runtime.open_session(step if held.folder is None else _moved(step, held.folder), candidate)

    def load_adapter(self, step: LoadAdapter, session: Session) -> None:
        """Load the adapter that the plan rests on. Raises OrtdeployError."""
        file = adapter_file(step)
        with self._files.opening((file,)) as held:
            path = step.path if held.folder is None else str(held.folder / file.name)
            self._runtime.load_adapter(replace(step, path=path), session)


def _moved(step: OpenSession, folder: Path) -> OpenSession:
    """Return a step that opens the model of a folder, in which its external data lies too."""
    options = step.options
    if EXTERNAL_DATA_FOLDER in options.get("config", {}):
        options = {**options, "config": {**options["config"], EXTERNAL_DATA_FOLDER: str(folder)}}
    return replace(step, path=str(folder / step.files[0].name), options=options)


def _needs_one_name(step: OpenSession) -> bool:
    """Return whether ONNX Runtime refuses external data that has two names, as a file of the store has."""
    if not step.files[1:]:
        return False
    from ortdeploy.graph.external_data import has_inner_data  # noqa: PLC0415  brings onnx, for such models only

    return has_inner_data(Path(step.path))


def _writes_beside(options: Mapping[str, Any]) -> bool:
    """Return whether ONNX Runtime writes a compiled model beside the model: the options name no other place."""
    config = options.get("config", {})
    return config.get(_CONTEXT_ENABLE) == "1" and not config.get(_CONTEXT_PATH)
