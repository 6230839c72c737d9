"""What is kept of a model: made once, used again where it fits, made anew where it does not; never in the way."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from conftest import REPOSITORY, read_rows, run_process
from msgspec.structs import replace
from onnx import TensorProto, helper
from support.models import save_model
from support.plugins import needs_qnn, report

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.digests import file_digest
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.process.memory import held_memory, private_memory, resident_memory, trim_memory
from ortdeploy.runtime import model_cache, session
from ortdeploy.runtime.model_cache import MADE_BY, MODEL
from ortdeploy.runtime.protocol import Session
from ortdeploy.runtime.session import OrtRuntime

AZURE = "AzureExecutionProvider"

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def small_model(path: Path) -> Path:
    """A model that ONNX Runtime rewrites: MatMul and Add are fused."""
    rng = np.random.default_rng(0)
    return save_model(
        path,
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", 8])},
        {"y": (TensorProto.FLOAT, ["batch", 4])},
        {"w": rng.standard_normal((8, 4)).astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)},
    )


class Opener:
    """Opens one model again and again through a cache in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.candidate = PlannedSession(name="s", providers=(PlannedProvider(name="CPUExecutionProvider", options={}),))
        self.step = OpenSession(
            session="m",
            model="m",
            path=str(small_model(folder / "m.onnx")),
            sha256="a",
            candidates=(self.candidate,),
            use="first",
            on_unavailable="fail",
            cpu_fallback="warn",
            probe=None,
            options={},
            run_options={},
            cache=True,
        )

    def open(self, **changes: Any) -> Session:
        return OrtRuntime(cache=self.cache).open_session(replace(self.step, **changes), self.candidate)

    @property
    def entry(self) -> Path:
        (entry,) = (path for path in self.cache.iterdir() if not path.name.startswith("."))
        return entry


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def test_an_optimized_graph_is_made_once_and_used_again_with_the_same_numbers(opener: Opener) -> None:
    first, second = opener.open(), opener.open()
    assert first.cache == "made"
    assert second.cache is not None
    assert second.cache.startswith("reused, made on ")
    assert first.placement == second.placement
    assert np.array_equal(first.run(["y"], {"x": X}, ())[0], second.run(["y"], {"x": X}, ())[0])
    assert {path.name for path in opener.entry.iterdir()} == {MODEL, MADE_BY}


def measure_sessions(folder: Path) -> None:
    """Print what each of four sessions of one kept model takes of memory that maps no file, and how much they share."""
    wide = np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32)
    path = save_model(
        folder / "wide.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (TensorProto.FLOAT, ["batch", 1024])},
        {"y": (TensorProto.FLOAT, ["batch", 2048])},
        {"w": wide},
    )
    opener = Opener(folder)
    rows = np.ones((2, 1024), np.float32)
    expected = opener.open(path=str(path), cache=False).run(["y"], {"x": rows}, ())[0]
    taken: list[int] = []
    opened = []
    for _ in range(4):
        before = private_memory() or 0
        opened.append(opener.open(path=str(path), sha256="wide"))
        assert np.array_equal(opened[-1].run(["y"], {"x": rows}, ())[0], expected)
        trim_memory()
        taken.append((private_memory() or 0) - before)
    print(json.dumps([*taken, (resident_memory() or 0) - (held_memory() or 0)]))  # noqa: T201  the test reads it


@pytest.mark.skipif(private_memory() is None, reason="this system does not tell private memory")
def test_sessions_and_processes_share_the_weights_of_what_is_kept(tmp_path: Path) -> None:
    size = 8 * 1024 * 1024
    script = "import sys, pathlib, test_model_cache as t; t.measure_sessions(pathlib.Path(sys.argv[1]))"
    places = [REPOSITORY, REPOSITORY / "tests", Path(__file__).parent]
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        stdout=subprocess.PIPE,
        check=True,
    )
    _, *taken, together = json.loads(done.stdout)
    assert max(taken) < size / 2, taken
    assert together > 2 * size


def test_without_the_manifests_word_nothing_is_kept(opener: Opener) -> None:
    assert opener.open(cache=False).cache is None
    assert not opener.cache.exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sha256": "b"}, "another model"),
        ({"options": {"graph_optimization_level": "basic"}}, "another session options"),
    ],
)
def test_what_does_not_fit_any_more_is_made_anew(opener: Opener, changes: dict[str, Any], why: str) -> None:
    opener.open()
    assert opener.open(**changes).cache == f"made anew: {why}"
    assert str(opener.open(**changes).cache).startswith("reused")
    assert len(list(opener.cache.iterdir())) == 1


def test_threads_and_memory_do_not_change_what_is_kept(opener: Opener) -> None:
    opener.open()
    running = {
        "intra_op_num_threads": 1,
        "enable_cpu_mem_arena": False,
        "config": {"session.intra_op.allow_spinning": "0"},
    }
    assert str(opener.open(options=running).cache).startswith("reused")


@pytest.mark.parametrize(
    ("key", "value"), [("ONNX Runtime version", "1.30.0"), ("processor", ["Linux", "aarch64", "sve"])]
)
def test_what_another_machine_made_is_not_used(opener: Opener, key: str, value: Any) -> None:
    opener.open()
    made_by = json.loads((opener.entry / MADE_BY).read_text())
    made_by["depends_on"][key] = value
    (opener.entry / MADE_BY).write_text(json.dumps(made_by))
    assert opener.open().cache == f"made anew: another {key}"


def cut(entry: Path) -> None:
    os.truncate(entry / MODEL, 10)


def empty_note(entry: Path) -> None:
    (entry / MADE_BY).write_text("")


def other_note(entry: Path) -> None:
    (entry / MADE_BY).write_text("[1]")


def remove_model(entry: Path) -> None:
    (entry / MODEL).unlink()


@pytest.mark.parametrize("damage", [cut, empty_note, other_note, remove_model])
def test_a_damaged_entry_is_made_anew(opener: Opener, damage: Callable[[Path], None]) -> None:
    opener.open()
    damage(opener.entry)
    assert str(opener.open().cache).startswith("made")
    assert str(opener.open().cache).startswith("reused")


@pytest.mark.parametrize(
    "change",
    [
        lambda made_by, entry: made_by["files"].update({"../../m.onnx": file_digest(entry.parent.parent / "m.onnx")}),
        lambda made_by, entry: made_by["files"].update({str(entry / MODEL): made_by["files"][MODEL]}),
        lambda made_by, _entry: made_by["files"].clear(),
        lambda _made_by, entry: (entry / "weights.bin").write_bytes(b"nobody knows these"),
        lambda made_by, _entry: made_by["placement"].update({"CPUExecutionProvider": "many"}),
        lambda made_by, _entry: made_by.update(files=[MODEL]),
    ],
)
def test_an_entry_that_names_other_files_than_its_own_is_made_anew(
    opener: Opener, change: Callable[[dict[str, Any], Path], object]
) -> None:
    assert opener.open().cache == "made"
    made_by = json.loads((opener.entry / MADE_BY).read_text())
    change(made_by, opener.entry)
    (opener.entry / MADE_BY).write_text(json.dumps(made_by))
    again = opener.open()
    assert again.cache is not None
    assert again.cache.startswith("made anew: "), again.cache
    assert {path.name for path in opener.entry.iterdir()} == {MODEL, MADE_BY}


def test_an_entry_that_cannot_be_opened_is_made_anew(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opener.open()
    opened = session._open  # noqa: SLF001  what opens a session, to make it fail once

    refused: list[Path] = []

    def refuse_once(step: Any, candidate: Any, path: Path | None = None, more: Any = None) -> Any:
        if path is not None and not refused:
            refused.append(path)
            raise OrtdeployError("EPContext node is not compatible")
        return opened(step, candidate, path, more)

    monkeypatch.setattr(session, "_open", refuse_once)
    assert opener.open().cache == "made anew: EPContext node is not compatible"


def test_a_session_opens_also_where_nothing_can_be_kept(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_cache.CacheEntry, "keep", no_space)
    opened = opener.open()
    assert opened.cache == "not kept: [Errno 28] No space left on device"
    assert opened.run(["y"], {"x": X}, ())[0].shape == (2, 4)
    assert list(opener.cache.iterdir()) == []


def test_a_making_that_was_killed_is_not_in_the_way(opener: Opener) -> None:
    opener.open()
    left = opener.entry.with_name(f".{opener.entry.name}.1.making")
    left.mkdir()
    (left / MODEL).write_bytes(b"half")
    os.utime(left, (0, 0))
    assert opener.open(sha256="b").cache == "made anew: another model"
    assert not left.exists()


@pytest.mark.skipif(AZURE not in ort.get_available_providers(), reason="this onnxruntime is built without Azure")
def test_a_provider_that_took_no_node_is_not_remembered_so(opener: Opener) -> None:
    providers = (
        PlannedProvider(name=AZURE, options={}),
        PlannedProvider(name="CPUExecutionProvider", options={}),
    )
    opener.candidate = PlannedSession(name="s", providers=providers)
    assert opener.open().cache is None
    assert list(opener.cache.iterdir()) == []


MANIFEST = """\
version: 1
models:
  m:
    path: m.onnx
    providers: [{{provider: QNN, options: {{backend_type: htp{more}}}}}, CPU]
    session: {{free_dimension_overrides: {{batch: 4}}}}
    cache: true
jobs:
  run: {{model: m, input: {{path: data.npy}}, output: {{path: out}}}}
"""


@needs_qnn
def test_a_compiled_model_is_made_at_apply_and_used_by_the_next(tmp_path: Path) -> None:
    small_model(tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    seen: list[tuple[str, Any, list[Any]]] = []
    for more in ("", "", ", htp_performance_mode: burst"):
        (tmp_path / "m.yaml").write_text(MANIFEST.format(more=more))
        applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
        assert applied.code == 0, applied.out
        seen.append(
            (report(tmp_path)["sessions"][0]["cache"], report(tmp_path)["placement"], read_rows(tmp_path / "out"))
        )
        for path in (tmp_path / "out").iterdir():
            path.unlink()
        (tmp_path / "out").rmdir()
    (first, placed, rows), (second, placed_again, rows_again), (third, *_) = seen
    assert first == "made"
    assert second.startswith("reused, made on ")
    assert third == "made anew: another provider options"
    assert placed == placed_again == {"QNNExecutionProvider": 2}
    assert rows == rows_again
    (binary,) = (tmp_path / ".ortdeploy/cache").rglob("*.bin")
    assert binary.stat().st_size > 1000
