"""What graphs tell is the same from memory, and read again where anything of it may be another."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.memo_files import memo_files, memo_value, rewrite
from support.models import gather_model, lora_model, save_model, scale_model

from ortdeploy.deployment.placement_prediction import Prediction
from ortdeploy.facts.host import HostFacts, MachineFacts, RuntimeFacts
from ortdeploy.facts.models import ModelFacts
from ortdeploy.files.digests import file_digest
from ortdeploy.graph import model, shapes, values
from ortdeploy.planning.remembered import graph_cache
from ortdeploy.providers.catalogue import CPU
from ortdeploy.state import memo

pytestmark = pytest.mark.reads_graphs

EXAMPLES = Path(__file__).parents[3] / "deployments/models"

CUDA = "CUDAExecutionProvider"


class Readings:
    """Counts how often a graph is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        for room, name in ((model, "read_model"), (shapes, "infer_shapes"), (values, "live_bytes")):
            monkeypatch.setattr(room, name, self._counted(getattr(room, name)))

    def _counted(self, read: object) -> object:
        def counted(*arguments: object, **settings: object) -> object:
            self.made += 1
            return read(*arguments, **settings)  # type: ignore[operator]  # as it was called

        return counted


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    return Readings(monkeypatch)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    state = tmp_path / "state"
    state.mkdir()
    with graph_cache.remembered_in(state):
        yield state


def read(path: Path) -> ModelFacts:
    return graph_cache.read_model(path, path.name, file_digest)


def everything(facts: ModelFacts) -> object:
    """All fields, also those that do not take part in comparisons."""
    return [facts, facts.skeleton, facts.outline]


MODELS: dict[str, Callable[[Path], Path]] = {"scale": scale_model, "lora": lora_model, "gather": gather_model}


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("make", MODELS)
def test_facts_from_memory_are_those_of_the_file(tmp_path: Path, readings: Readings, make: str) -> None:
    path = MODELS[make](tmp_path / "m.onnx")
    first, again = read(path), read(path)
    assert readings.made == 1
    assert everything(again) == everything(first)
    assert first.problem is None


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.onnx")), ids=lambda path: path.relative_to(EXAMPLES).as_posix()
)
def test_the_examples_models_are_remembered_field_by_field(path: Path, readings: Readings) -> None:
    first, again = read(path), read(path)
    assert everything(again) == everything(first)
    assert readings.made == (1 if len(first.files) == 1 else 2)


@pytest.mark.usefixtures("state")
def test_the_same_bytes_elsewhere_are_known(tmp_path: Path, readings: Readings) -> None:
    first = read(scale_model(tmp_path / "a/m.onnx"))
    other = read(scale_model(tmp_path / "b/n.onnx"))
    assert readings.made == 1
    assert (other.path, other.files[0].name, other.sha256) == (str(tmp_path / "b/n.onnx"), "n.onnx", first.sha256)


@pytest.mark.usefixtures("state")
def test_other_bytes_of_the_same_size_and_time_are_read(tmp_path: Path, readings: Readings) -> None:
    path = scale_model(tmp_path / "m.onnx", factor=2.0)
    first, stat = read(path), path.stat()
    scale_model(path, factor=3.0)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert read(path).sha256 != first.sha256
    assert readings.made == 2


@pytest.mark.usefixtures("state")
def test_another_suffix_or_format_is_read(tmp_path: Path, readings: Readings) -> None:
    path = scale_model(tmp_path / "m.onnx")
    read(path)
    assert graph_cache.read_model(path, "m", file_digest, "ORT").problem is not None
    assert read(path.rename(tmp_path / "m.ort")).problem is not None
    assert readings.made == 3


@pytest.mark.usefixtures("state")
def test_a_problem_is_not_remembered(tmp_path: Path, readings: Readings) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08no model")
    assert [read(path).problem is None for _ in range(2)] == [False, False]
    assert readings.made == 2


@pytest.mark.usefixtures("state")
def test_what_is_not_there_is_told_by_the_reader(tmp_path: Path) -> None:
    assert (problem := read(tmp_path / "m.onnx").problem) is not None
    assert problem.kind == "missing"
    assert (problem := read(tmp_path).problem) is not None
    assert problem.kind == "folder"


@pytest.mark.usefixtures("state")
def test_shapes_and_values_from_memory_are_those_of_the_graph(tmp_path: Path, readings: Readings) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (TensorProto.FLOAT, ["batch", 4])},
        {"y": (TensorProto.FLOAT, ["batch", 8])},
        {"w": np.ones((4, 8), np.float32)},
    )
    skeleton = model.read_model(path, "m").skeleton
    before = readings.made
    for rows in (1, 3):
        for _ in range(2):
            assert graph_cache.infer_shapes(skeleton, {"x": (rows, 4)}).outputs == {"y": (rows, 8)}
    assert graph_cache.infer_shapes(skeleton, {"x": (3, 5)}) == graph_cache.infer_shapes(skeleton, {"x": (3, 5)})
    assert graph_cache.infer_shapes(skeleton, {"x": (3, 5)}).problem is not None
    assert readings.made - before == 3
    for _ in range(2):
        graph_cache.live_bytes.cache_clear()
        assert graph_cache.live_bytes(skeleton, (("x", (512, 4)),)) == 2 * 512 * 8 * 4
    assert readings.made - before == 4


@pytest.mark.parametrize("mar", [[], 3, {}, {"ir_version": 8}, None])
def test_an_entry_of_another_form_is_none(state: Path, tmp_path: Path, readings: Readings, mar: object) -> None:
    path = scale_model(tmp_path / "m.onnx")
    first = read(path)
    (entry,) = memo_files(state, "graph")
    rewrite(entry, {**memo_value(entry), "ir_version": "8"} if mar is None else mar)
    assert everything(read(path)) == everything(first)
    assert readings.made == 2


def test_without_a_state_folder_entries_wait_for_it(tmp_path: Path, readings: Readings) -> None:
    path, state = scale_model(tmp_path / "m.onnx"), tmp_path / "state"
    with graph_cache.remembered_in(state):
        read(path)
        assert not state.exists()
        state.mkdir()
        memo.put_waiting(state)
        read(path)
    assert readings.made == 1


def test_outside_of_a_plan_nothing_is_remembered(tmp_path: Path, readings: Readings) -> None:
    path = scale_model(tmp_path / "m.onnx")
    assert everything(read(path)) == everything(read(path))
    assert readings.made == 2


class Predictions:
    """Counts how often kernels are asked."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *of: object) -> Prediction:
        self.made += 1
        return Prediction(nodes={CPU: self.made}, cpu_operators=("Mul",))


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> Predictions:
    predictions = Predictions()
    monkeypatch.setattr(graph_cache, "predict_placement", predictions)
    return predictions


def host(
    library: str | None = "one", flags: tuple[str, ...] = ("avx2",), providers: tuple[str, ...] = (CPU,)
) -> HostFacts:
    runtime = RuntimeFacts(
        version="1.32.0", available_providers=providers, max_ir_version=None, max_opsets={}, library=library
    )
    machine = MachineFacts(
        system="Linux",
        architecture="x86_64",
        python="3.11",
        cores=2,
        cpu_quota=None,
        memory_bytes=None,
        cpu_flags=flags,
    )
    return HostFacts(runtime=runtime, machine=machine)


def predict(facts: ModelFacts, of: HostFacts, chain: tuple[str, ...] = (CPU,)) -> object:
    return graph_cache.remembering_placement(of)(facts, chain, {}, None)


@pytest.mark.usefixtures("state")
def test_placement_is_remembered_of_a_graph(tmp_path: Path, predictions: Predictions) -> None:
    facts = read(scale_model(tmp_path / "m.onnx"))
    assert predict(facts, host()) == predict(read(scale_model(tmp_path / "n.onnx")), host())
    assert predictions.made == 1


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("other", [host(library="two"), host(flags=("avx512f",)), host(library=None)])
def test_placement_on_another_machine_is_predicted(tmp_path: Path, predictions: Predictions, other: HostFacts) -> None:
    facts = read(scale_model(tmp_path / "m.onnx"))
    assert predict(facts, host()) != predict(facts, other)
    assert predictions.made == 2


@pytest.mark.usefixtures("state")
def test_placement_of_another_graph_is_predicted(tmp_path: Path, predictions: Predictions) -> None:
    predict(read(scale_model(tmp_path / "m.onnx", factor=2.0)), host())
    predict(read(scale_model(tmp_path / "m.onnx", factor=3.0)), host())
    assert predictions.made == 2


@pytest.mark.usefixtures("state")
def test_placement_on_a_plugin_is_predicted_each_time(tmp_path: Path, predictions: Predictions) -> None:
    facts = read(scale_model(tmp_path / "m.onnx"))
    for _ in range(2):
        predict(facts, host(), (CUDA, CPU))
    assert predictions.made == 2


@pytest.mark.usefixtures("state")
def test_placement_on_a_built_in_provider_is_remembered_by_chain(tmp_path: Path, predictions: Predictions) -> None:
    facts = read(scale_model(tmp_path / "m.onnx"))
    gpu = host(providers=(CUDA, CPU))
    on_both = predict(facts, gpu, (CUDA, CPU))
    assert predict(facts, gpu) != on_both
    assert predict(facts, gpu, (CUDA, CPU)) == on_both
    assert predictions.made == 2


@pytest.mark.usefixtures("state")
def test_what_no_provider_runs_is_remembered_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read(scale_model(tmp_path / "m.onnx"))
    first = graph_cache.remembering_placement(host())(facts, (CPU,), {CPU: {}}, {})
    monkeypatch.delattr(graph_cache, "predict_placement")
    assert graph_cache.remembering_placement(host())(facts, (CPU,), {}, None) == first
    assert isinstance(first, Prediction)
    assert first.impossible
