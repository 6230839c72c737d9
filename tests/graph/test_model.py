"""Model files read without a session."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from support.effort import effort
from support.models import gather_model, lora_model, save_model, scale_model

from ortdeploy.facts.models import ModelFacts
from ortdeploy.files.digests import file_digest
from ortdeploy.graph.model import read_model
from ortdeploy.graph.shapes import infer_shapes
from ortdeploy.tensors.types import TensorType


def kind(facts: ModelFacts) -> str:
    assert facts.problem is not None
    return facts.problem.kind


def test_inputs_outputs_symbols_versions(tmp_path: Path) -> None:
    path = scale_model(tmp_path / "m.onnx")
    facts = read_model(path, "m.onnx")
    assert facts.problem is None
    assert [(value.name, value.tensor) for value in facts.inputs] == [("x", TensorType("float32", ("batch", 4)))]
    assert [(value.name, value.tensor) for value in facts.outputs] == [("y", TensorType("float32", ("batch", 4)))]
    assert (facts.ir_version, dict(facts.opsets), set(facts.symbols)) == (8, {"ai.onnx": 17}, {"batch"})
    assert facts.sha256 == file_digest(path)


def test_inputs_with_a_default_are_optional(tmp_path: Path) -> None:
    facts = read_model(lora_model(tmp_path / "m.onnx"), "m.onnx")
    assert {value.name: value.optional for value in facts.inputs} == {"x": False, "lora_A": True, "lora_B": True}


def test_a_scalar_is_not_an_unknown_rank(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["s"], ["y"]), helper.make_node("Identity", ["u"], ["z"])]
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"s": (TensorProto.FLOAT, []), "u": (TensorProto.FLOAT, None)},  # type: ignore[dict-item]  # no shape at all
        {"y": (TensorProto.FLOAT, []), "z": (TensorProto.FLOAT, None)},  # type: ignore[dict-item]
    )
    facts = read_model(path, "m.onnx")
    assert [value.tensor.shape for value in facts.inputs] == [(), None]


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = scale_model(tmp_path / "good.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    assert kind(read_model(path, "m")) == "missing"
    assert kind(read_model(tmp_path, "m")) == "folder"
    for content, expected in [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3\n", "lfs-pointer"),
        (b"\x20\x00\x00\x00ORTM....", "ort-format"),
        (b"hello, this is text", "not-onnx"),
        (b"\x00" * 100, "not-onnx"),
        (good[: len(good) // 2], "not-onnx"),
        (good[:-4], "not-onnx"),
    ]:
        path.write_bytes(content)
        assert kind(read_model(path, "m")) == expected, content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(30, 60), deadline=None)
@given(cut=st.integers(0, 130), flip=st.integers(0, 130), to=st.integers(0, 255))
def test_any_damage_ends_in_facts_or_in_a_problem(tmp_path: Path, cut: int, flip: int, to: int) -> None:
    raw = bytearray(scale_model(tmp_path / "good.onnx").read_bytes())
    raw[flip % len(raw)] = to
    path = tmp_path / "bad.onnx"
    path.write_bytes(raw[: len(raw) - cut % len(raw)])
    facts = read_model(path, "bad.onnx")
    assert facts.problem is not None or facts.outputs


def external(tmp_path: Path, location: str = "w.bin") -> Path:
    path = scale_model(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(np.float32(2).tobytes())
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    onnx.save(model, str(path))
    return path


def test_the_digest_covers_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read_model(path, "m").sha256
    (tmp_path / "w.bin").write_bytes(np.float32(3).tobytes())
    assert read_model(path, "m").sha256 != before


@pytest.mark.parametrize(
    ("location", "words"), [("gone.bin", "is missing"), ("../w.bin", "outside"), ("/etc/passwd", "outside")]
)
def test_external_data_that_is_not_there_or_elsewhere_is_a_problem(tmp_path: Path, location: str, words: str) -> None:
    facts = read_model(external(tmp_path, location), "m")
    assert kind(facts) == "missing-bytes"
    assert facts.problem is not None
    assert words in facts.problem.detail


def with_entries(path: Path, **entries: str) -> Path:
    model = onnx.load(str(path), load_external_data=False)
    for key, value in entries.items():
        entry = model.graph.initializer[0].external_data.add()
        entry.key, entry.value = key, value
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "1"}, "ends at byte 5 of w.bin, which has 4"),
        ({"offset": "-4"}, "bytes at -4"),
        ({"offset": "x"}, "no number"),
        ({"length": "8"}, "says 8 bytes at 0, and its shape needs 4"),
        ({"offset": "9999999999999"}, "which has 4"),
    ],
)
def test_external_data_that_is_too_short_is_a_problem(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    facts = read_model(with_entries(external(tmp_path), **entries), "m")
    assert kind(facts) == "missing-bytes"
    assert facts.problem is not None
    assert words in facts.problem.detail


@pytest.mark.parametrize(
    ("kind_of_values", "needed"), [(TensorProto.INT4, 8), (TensorProto.UINT4, 8), (TensorProto.FLOAT8E4M3FN, 15)]
)
def test_a_constant_of_few_bits_that_is_cut_is_a_problem(tmp_path: Path, kind_of_values: int, needed: int) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    shapes: dict[str, tuple[int, list[int | str | None]]] = {name: (TensorProto.FLOAT, [3, 5]) for name in "xy"}
    path = save_model(
        tmp_path / "m.onnx", nodes, {"x": shapes["x"]}, {"y": shapes["y"]}, {"scale": np.array(1, np.float32)}, opset=21
    )
    model = onnx.load(str(path))
    model.graph.initializer.add(name="w", data_type=kind_of_values, dims=[3, 5], raw_data=bytes(needed))
    onnx.save(model, str(path))
    assert read_model(path, "m").problem is None
    ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    model.graph.initializer[1].raw_data = bytes(needed - 1)
    onnx.save(model, str(path))
    problem = read_model(path, "m").problem
    assert problem is not None
    assert f"the constant w has {needed - 1} bytes and its shape needs {needed}" in problem.detail
    with pytest.raises(Exception, match="w"):
        ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_external_data_with_offset_and_length_is_none(tmp_path: Path) -> None:
    path = with_entries(external(tmp_path), offset="0", length="4")
    assert read_model(path, "m").problem is None


def test_a_link_beside_the_model_that_leads_out_is_a_problem(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "secret"
    inside.mkdir()
    outside.write_bytes(b"four")
    path = external(inside)
    (inside / "w.bin").unlink()
    (inside / "w.bin").symlink_to(outside)
    assert kind(read_model(path, "m")) == "missing-bytes"


@pytest.mark.parametrize("dims", [[2], [0], [1 << 40, 1 << 40], [-1]])
def test_a_constant_that_claims_another_size_is_a_problem(tmp_path: Path, dims: list[int]) -> None:
    path = scale_model(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    onnx.save(model, str(path))
    assert (read_model(path, "m").problem is not None) == (dims != [-1])


def test_every_truncation_ends_in_a_problem(tmp_path: Path) -> None:
    raw = scale_model(tmp_path / "good.onnx", width=64).read_bytes()
    path = tmp_path / "cut.onnx"
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        facts = read_model(path, "cut.onnx")
        assert facts.problem is not None or facts.outputs, size


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field as protobuf writes it."""
    size, text = len(payload), bytearray([number << 3 | 2])
    while size > 127:
        text.append(size & 127 | 128)
        size >>= 7
    return bytes(text) + bytes([size]) + payload


@pytest.mark.parametrize("depth", [5, 20, 200, 5000])
def test_a_deeply_nested_graph_ends_in_facts_or_a_problem(tmp_path: Path, depth: int) -> None:
    """An If in an If in an If: graph (field 6 of an attribute), attribute (5 of a node), node (1 of a graph)."""
    node = field(1, b"x") + field(2, b"y") + field(4, b"Identity")
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, field(1, node))
        node = field(1, b"x") + field(2, b"y") + field(4, b"If") + field(5, attribute)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]).SerializeToString() for name in "xy"]
    graph = field(1, node) + field(11, values[0]) + field(12, values[1])
    path = tmp_path / "deep.onnx"
    path.write_bytes(bytes([8, 8]) + field(7, graph) + field(8, bytes([16, 17])))
    assert (read_model(path, "deep.onnx").problem is not None) == (depth > 100)


def test_a_compiled_model_says_by_whom_and_misses_its_binary(tmp_path: Path) -> None:
    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        domain="com.microsoft",
        source="QNNExecutionProvider",
        embed_mode=0,
        ep_cache_context="m.bin",
    )
    tensor = (TensorProto.FLOAT, [1])
    path = save_model(tmp_path / "m.onnx", [node], {"x": tensor}, {"y": tensor})
    facts = read_model(path, "m.onnx")
    assert facts.problem is not None
    assert "m.bin is missing" in facts.problem.detail
    (tmp_path / "m.bin").write_bytes(b"compiled")
    assert read_model(path, "m.onnx").compiled_by == ("QNNExecutionProvider",)


def limits_of(path: Path) -> dict[str, tuple[int, int] | None]:
    return {value.name: value.limits for value in read_model(path, "m").inputs}


def test_an_index_into_a_constant_table_has_the_tables_limits(tmp_path: Path) -> None:
    assert limits_of(gather_model(tmp_path / "m.onnx")) == {"index": (-10, 9)}
    assert limits_of(scale_model(tmp_path / "s.onnx")) == {"x": None}


def test_indices_are_followed_through_what_passes_them_on_to_the_smallest_table(tmp_path: Path) -> None:
    big, small = np.zeros((3, 10), np.float32), np.zeros((4, 2), np.float32)
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Identity", ["wide"], ["same"]),
        helper.make_node("Gather", ["big", "same"], ["a"], axis=-1),
        helper.make_node("Gather", ["small", "ids"], ["b"]),
        helper.make_node("Gather", ["free", "ids"], ["c"]),
    ]
    integer = (TensorProto.INT32, ["n"])
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"ids": integer, "free": (TensorProto.FLOAT, ["k", 2])},
        {"a": (TensorProto.FLOAT, [3, "n"]), "b": (TensorProto.FLOAT, ["n", 2]), "c": (TensorProto.FLOAT, ["n", 2])},
        {"big": big, "small": small},
    )
    assert limits_of(path) == {"ids": (-4, 3), "free": None}


@pytest.mark.parametrize("operator", ["DequantizeLinear", "EmbedLayerNormalization", "GatherBlockQuantized"])
def test_limits_of_quantized_and_fused_lookups_are_those_of_onnxruntime(tmp_path: Path, operator: str) -> None:
    """Beyond them, GatherBlockQuantized gives zeros without a message, on the CPU too."""
    contrib = "com.microsoft"
    weights: dict[str, np.ndarray] = {
        "bytes": np.full((10, 16), 129, np.uint8),
        "scale": np.ones(1, np.float32),
        "scales": np.ones((10, 1), np.float32),
    }
    weights |= {name: np.ones((6, 16), np.float32) for name in ("words", "places", "kinds")}
    weights |= {"gamma": np.ones(16, np.float32), "beta": np.ones(16, np.float32)}
    embed = ["ids", "", "words", "places", "", "gamma", "beta"]
    nodes = {
        "DequantizeLinear": [
            helper.make_node("DequantizeLinear", ["bytes", "scale"], ["table"], axis=0),
            helper.make_node("Gather", ["table", "ids"], ["y"]),
        ],
        "EmbedLayerNormalization": [helper.make_node(operator, embed, ["y", "mask"], domain=contrib)],
        "GatherBlockQuantized": [
            helper.make_node(operator, ["bytes", "ids", "scales"], ["y"], domain=contrib, bits=8, block_size=16)
        ],
    }[operator]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["n", "k"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k", 16])
    graph = helper.make_graph(nodes, "g", [ids], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(contrib, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(tmp_path / "m.onnx", options)

    def is_found(index: int) -> bool:
        try:
            return bool(session.run(["y"], {"ids": np.array([[index]], np.int32)})[0].any())
        except InvalidArgument:
            return False

    (limits,) = limits_of(tmp_path / "m.onnx").values()
    assert limits is not None
    assert [index for index in range(-20, 20) if is_found(index)] == list(range(limits[0], limits[1] + 1))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("?", None),
        ("-1", None),
        ("*", None),
        ("None", None),
        ("unk", None),
        ("unk__3", "unk__3"),
        ("N", "N"),
        ("größe", "größe"),
    ],
)
def test_what_exporters_write_for_any_dimension_is_no_symbol(tmp_path: Path, written: str, read: str | None) -> None:
    path = scale_model(tmp_path / "m.onnx", batch=written, width=written)
    assert read_model(path, "m.onnx").inputs[0].tensor.shape == (read, read)


def in_ort_format(path: Path, target: Path) -> Path:
    """The same model as ONNX Runtime writes it for small devices."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(path, options)
    return target


def branching_model(path: Path) -> Path:
    """Attributes of every kind that the format has, a constant of each size, graphs in nodes, text, sequences."""
    inner = [
        helper.make_graph([helper.make_node(operator, ["x"], [f"{operator}_y"])], operator, [], [
            helper.make_tensor_value_info(f"{operator}_y", TensorProto.FLOAT, ["batch", 4])
        ])
        for operator in ("Neg", "Abs")
    ]  # fmt: skip
    nodes = [
        helper.make_node("If", ["which"], ["a"], then_branch=inner[0], else_branch=inner[1]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("LeakyRelu", ["b"], ["c"], alpha=0.25),
        helper.make_node("Reshape", ["c", "size"], ["y"], name="flat"),
        helper.make_node(
            "LabelEncoder", ["text"], ["z"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[1.0, 2.0]
        ),
        helper.make_node("SplitToSequence", ["b"], ["s"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("which", TensorProto.BOOL, []),
            helper.make_tensor_value_info("text", TensorProto.STRING, [None]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [None]),
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        ],
        [
            numpy_helper.from_array(np.ones((4, 512), np.float32), "w"),
            numpy_helper.from_array(np.array([-1, 64]), "size"),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def kernels(facts: ModelFacts) -> list[str]:
    return sorted(str((node.name, node.domain, node.operator, node.since, node.types)) for node in facts.nodes)


@pytest.mark.parametrize("make", [branching_model, scale_model, gather_model])
def test_a_model_in_ort_format_tells_what_the_model_it_was_made_from_tells(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "m.onnx")
    found, wanted = read_model(in_ort_format(path, tmp_path / "m.ort"), "m.ort"), read_model(path, "m.onnx")
    assert found.problem is None
    assert (found.inputs, found.outputs, found.ir_version) == (wanted.inputs, wanted.outputs, wanted.ir_version)
    assert found.opsets.items() >= wanted.opsets.items()
    assert kernels(found) == kernels(wanted)  # ONNX Runtime writes defaults of attributes down
    shapes = {"x": (8, 4)} if make is branching_model else {}
    assert infer_shapes(found.skeleton, shapes) == infer_shapes(wanted.skeleton, shapes)


def test_an_ort_model_runs_and_one_without_its_suffix_is_told_to_take_it(cli: Cli, tmp_path: Path) -> None:
    in_ort_format(scale_model(tmp_path / "m.onnx"), tmp_path / "m.ort")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    text = (
        "version: 1\nmodels: {m: {path: m.ort}}\njobs: {run: {model: m, input: {path: x.npy}, output: {path: out}}}\n"
    )
    (tmp_path / "m.yaml").write_text(text)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (tmp_path / "m.ort").rename(tmp_path / "m.bin")
    (tmp_path / "m.yaml").write_text(text.replace("m.ort", "m.bin"))
    refused = cli("plan", tmp_path / "m.yaml")
    assert refused.code == 1
    assert "Rename it to end in .ort." in " ".join(refused.out.split())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(40, 150), deadline=None)
@given(data=st.data())
def test_a_damaged_ort_model_is_a_problem_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    source = tmp_path / "whole.ort"
    if not source.exists():
        in_ort_format(branching_model(tmp_path / "m.onnx"), source)
    raw = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "cut.ort"
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
    facts = read_model(path, "cut.ort")
    assert facts.problem is None or facts.problem.kind in {"not-ort", "not-onnx"}


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 - 1])
def test_a_model_that_claims_huge_dimensions_is_read_and_told_apart_from_rows(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = scale_model(tmp_path / "m.onnx", width=size)
    assert read_model(path, "m.onnx").inputs[0].tensor.shape == ("batch", size)
    refused = cli("init", "m.onnx")
    assert (refused.code, "too large to make" in refused.err) == (1, True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    np.save("x.npy", np.ones((2, 4), np.float32))
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs: {run: {model: m, input: {path: x.npy}, output: {path: out}}}\n"
    )
    planned = cli("plan", "m.yaml")
    assert (planned.code, "input-shape-mismatch" in planned.out) == (1, True)


def test_a_negative_dimension_is_an_unknown_one(tmp_path: Path) -> None:
    assert read_model(scale_model(tmp_path / "m.onnx", width=-5), "m").inputs[0].tensor.shape == ("batch", None)


NUMBERS = st.sampled_from([-(2**63), -5, -1, 0, 1, 7, 2**31, 2**62])


def mutate(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Make one thing of a model wrong that a file can have wrong and still be read."""
    node = data.draw(st.sampled_from(list(model.graph.node)))
    names = [name for one in model.graph.node for name in (*one.input, *one.output)]
    match data.draw(st.integers(0, 5)):
        case 0:
            del node.input[:1]
        case 1:
            node.input.append(data.draw(st.sampled_from(names)))
        case 2:
            node.op_type = data.draw(st.sampled_from([one.op_type for one in model.graph.node]))
        case 3:
            del node.attribute[:1]
        case 4:
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = data.draw(NUMBERS)
        case _:
            node.attribute.add(name="axis", type=onnx.AttributeProto.INT, i=data.draw(NUMBERS))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(40, 150), deadline=None)
@given(data=st.data())
def test_what_is_wrong_inside_of_a_graph_crashes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Reading, binding kernels and inferring sizes end in facts or a problem, also where onnx's own inference crashes."""
    model = onnx.load(branching_model(tmp_path / "whole.onnx"))
    layer = helper.make_node("LayerNormalization", ["b", "w", "w"], ["l"], axis=-1)
    model.graph.node.append(layer)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(model, data)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    facts = read_model(tmp_path / "m.onnx", "m.onnx")
    assert facts.problem is None or facts.problem.kind == "not-onnx"
    infer_shapes(facts.skeleton, {"x": (3, 4)})
