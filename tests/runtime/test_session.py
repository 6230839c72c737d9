"""Real sessions of the installed onnxruntime."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.models import gather_model, lora_model, make_adapter, scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.steps import LoadAdapter, OpenSession, PlannedProvider, PlannedSession
from ortdeploy.providers.options import serialise
from ortdeploy.runtime.protocol import Session
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.schemas import schema_text
from ortdeploy.sessions.run_limit import Shareable, end_runs

CPU = (PlannedProvider(name="CPUExecutionProvider", options={}),)


def open_session(
    path: Path,
    providers: tuple[PlannedProvider, ...] = CPU,
    run_options: dict[str, Any] | None = None,
    **options: Any,
) -> Session:
    candidate = PlannedSession(name="s", providers=providers)
    step = OpenSession(
        session="s",
        model="m",
        path=str(path),
        sha256="",
        candidates=(candidate,),
        use="first",
        on_unavailable="fail",
        cache=False,
        cpu_fallback="warn",
        probe=None,
        options=options,
        run_options=run_options or {},
    )
    return OrtRuntime().open_session(step, candidate)


def test_a_session_runs_and_its_placement_is_what_was_recorded(tmp_path: Path) -> None:
    session = open_session(scale_model(tmp_path / "m.onnx"))
    assert session.placement == {"CPUExecutionProvider": 1}
    (result,) = session.run(["y"], {"x": np.ones((2, 4), np.float32)}, ())
    assert result.tolist() == [[2.0] * 4] * 2


def test_runs_of_one_caller_are_ended_and_those_of_others_are_not(tmp_path: Path) -> None:
    session, feeds = open_session(scale_model(tmp_path / "m.onnx")), {"x": np.ones((2, 4), np.float32)}
    assert isinstance(session, Shareable)
    one, other = session.for_caller(), session.for_caller()
    end_runs(one, early=True)
    with pytest.raises(OrtdeployError, match="terminate"):
        one.run(["y"], feeds, ())
    assert other.run(["y"], feeds, ())[0].tolist() == session.run(["y"], feeds, ())[0].tolist()
    end_runs(one, early=False)
    assert one.run(["y"], feeds, ())[0].tolist() == [[2.0] * 4] * 2


def test_every_session_option_is_taken(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "graph_optimization_level": "basic", "execution_mode": "parallel", "intra_op_num_threads": 1, "inter_op_num_threads": 1,
        "enable_cpu_mem_arena": False, "enable_mem_pattern": False, "enable_mem_reuse": True, "use_deterministic_compute": True,
        "log_verbosity_level": 1, "logid": "m", "execution_order": "priority_based", "use_per_session_threads": True,
        "optimized_model_filepath": str(tmp_path / "o.onnx"), "enable_profiling": True, "profile_file_prefix": str(tmp_path / "p"),
        "log_severity_level": 4, "free_dimension_overrides": {"batch": 2}, "config": {"session.intra_op.allow_spinning": "0"},
    }  # fmt: skip
    session = open_session(scale_model(tmp_path / "m.onnx"), **options)
    with pytest.raises(OrtdeployError, match="Got invalid dimensions"):
        session.run(["y"], {"x": np.ones((3, 4), np.float32)}, ())


def test_the_session_options_of_the_test_are_all_that_there_are() -> None:
    """Those that a manifest has no key for are methods, or are set by other keys of the manifest."""
    known = set(json.loads(schema_text("deployment"))["$defs"]["session"]["properties"]) - {
        "config",
        "free_dimension_overrides",
    }
    options = onnxruntime.SessionOptions()
    assert known == {name for name in dir(options) if not name.startswith("_") and not callable(getattr(options, name))}


def test_every_run_option_is_taken(tmp_path: Path) -> None:
    options = {
        "log_severity_level": 4, "log_verbosity_level": 1, "logid": "m", "only_execute_path_to_fetches": True,
        "config": {"memory.enable_memory_arena_shrinkage": "cpu:0", "disable_synchronize_execution_providers": "0"},
    }  # fmt: skip
    session = open_session(scale_model(tmp_path / "m.onnx"), run_options=options)
    assert session.run(["y"], {"x": np.ones((1, 4), np.float32)}, ())[0].tolist() == [[2.0] * 4]
    known = set(json.loads(schema_text("deployment"))["$defs"]["run"]["properties"])
    runs = onnxruntime.RunOptions()
    names = {name for name in dir(runs) if not name.startswith("_") and not callable(getattr(runs, name))}
    assert known - {"config"} == names - {"terminate"} == set(options) - {"config"}


def test_a_run_option_that_onnxruntime_refuses_is_said(tmp_path: Path) -> None:
    session = open_session(
        scale_model(tmp_path / "m.onnx"), run_options={"config": {"memory.enable_memory_arena_shrinkage": "gpu:0"}}
    )
    with pytest.raises(OrtdeployError, match="memory arena shrink list"):
        session.run(["y"], {"x": np.ones((1, 4), np.float32)}, ())


def test_booleans_reach_onnxruntime_as_it_compares_them(tmp_path: Path) -> None:
    path = scale_model(tmp_path / "m.onnx")
    with pytest.raises(OrtdeployError, match="explicitly added the CPU EP"):
        open_session(path, config=serialise(None, {"session.disable_cpu_ep_fallback": True}))


def test_no_session_is_opened_on_the_cpu_instead_of_what_was_asked(tmp_path: Path) -> None:
    path = scale_model(tmp_path / "m.onnx")
    with pytest.raises(OrtdeployError, match="cannot be opened"):
        open_session(path, (PlannedProvider(name="NopeExecutionProvider", options={}),))


def test_a_file_that_is_no_model_is_an_error_with_the_models_name(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(OrtdeployError, match='Model "m"'):
        open_session(path)


def test_a_refused_batch_is_an_error_with_onnxruntimes_words(tmp_path: Path) -> None:
    session = open_session(gather_model(tmp_path / "m.onnx"))
    with pytest.raises(OrtdeployError, match="indices element out of data bounds"):
        session.run(["y"], {"index": np.array([99])}, ())


def test_an_adapter_is_applied_and_lives_as_long_as_its_session(tmp_path: Path) -> None:
    session = open_session(lora_model(tmp_path / "m.onnx"))
    a, b = np.ones((4, 2), np.float32), np.full((2, 4), 0.5, np.float32)
    path = make_adapter(tmp_path / "a.onnx_adapter", lora_A=a, lora_B=b)
    OrtRuntime().load_adapter(LoadAdapter(adapter="a", session="s", path=str(path), sha256=""), session)
    x = np.ones((1, 4), np.float32)
    assert session.run(["y"], {"x": x}, ())[0].tolist() == x.tolist()
    assert session.run(["y"], {"x": x}, ("a",))[0].tolist() == (x + x @ a @ b).tolist()


def test_a_file_that_is_no_adapter_is_an_error_with_its_name(tmp_path: Path) -> None:
    session = open_session(lora_model(tmp_path / "m.onnx"))
    path = tmp_path / "a.onnx_adapter"
    path.write_bytes(b"nothing at all")
    with pytest.raises(OrtdeployError, match=r"a\.onnx_adapter"):
        OrtRuntime().load_adapter(LoadAdapter(adapter="a", session="s", path=str(path), sha256=""), session)
