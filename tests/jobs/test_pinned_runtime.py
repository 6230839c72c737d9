"""Which file a model is opened from."""

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fakes import FakeRuntime, double
from support.jobs import plan_for

from ortdeploy.facts.data import HashedFile
from ortdeploy.files.content_store import ContentStore
from ortdeploy.jobs.pinned_files import held_in
from ortdeploy.jobs.pinned_runtime import PinnedRuntime
from ortdeploy.plan.steps import OpenSession, PlannedSession
from ortdeploy.runtime.protocol import Session


class Opened(FakeRuntime):
    """A runtime that notes which file it is asked to open."""

    path = ""

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        self.path = step.path
        return super().open_session(step, candidate)


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({}, False),
        ({"ep.context_enable": "0"}, False),
        ({"ep.context_enable": "1"}, True),
        ({"ep.context_enable": "1", "ep.context_file_path": "/srv/made.onnx"}, False),
    ],
)
def test_a_model_beside_which_another_is_written_is_opened_where_it_lies(
    tmp_path: Path, config: dict[str, str], *, beside: bool
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model")
    file = HashedFile(name="m.onnx", path=str(path), sha256=hashlib.sha256(b"model").hexdigest(), size=5)
    step = plan_for(tmp_path, 4).steps[0]
    assert isinstance(step, OpenSession)
    step = replace(step, path=str(path), files=(file,), options={"config": config})
    runtime = Opened(double)
    with held_in(ContentStore(tmp_path / "state"), tmp_path / "state", tmp_path) as held:
        PinnedRuntime(runtime, held).open_session(step, step.candidates[0])
    assert (runtime.path == str(path)) is beside
