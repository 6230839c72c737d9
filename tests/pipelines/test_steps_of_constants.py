"""Op steps that take constants alone, such as windows and filter banks, and columns of text that op steps read."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.models import Shape, save_model

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)
RATE, FRAME, HOP, BANDS = 16000, 400, 160, 20

MEL = f"""\
      - {{op: Unsqueeze, in: {{data: $wave, axes: [2]}}, out: signal}}
      - {{op: HannWindow, in: {{size: {FRAME}}}, out: window}}
      - {{op: STFT, in: {{signal: $signal, frame_step: {HOP}, window: $window, frame_length: {FRAME}}}, out: spectrum}}
      - {{op: ReduceSumSquare, in: {{data: $spectrum, axes: [3]}}, attributes: {{keepdims: 0}}, out: power}}
      - {{op: MelWeightMatrix, in: {{num_mel_bins: {BANDS}, dft_length: {FRAME}, sample_rate: {RATE}, lower_edge_hertz: 20.0, upper_edge_hertz: 7600.0}}, out: bank}}
      - {{op: MatMul, in: {{A: $power, B: $bank}}, out: bands}}
      - {{run: m, FUSEin: {{x: $bands}}, out: {{y: y}}}}"""

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  p:
    steps:
STEPS
    outputs: {OUTPUTS}
jobs: {run: {pipeline: p, input: {INPUT}, output: {path: out}}}
"""


def write(folder: Path, steps: str, outputs: str, given: str) -> Path:
    text = MANIFEST.replace("STEPS", steps).replace("OUTPUTS", outputs).replace("INPUT", given)
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def results(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "out/part-00000000.jsonl").read_text().splitlines()]


def by_the_reference(wave: np.ndarray) -> np.ndarray:
    """Return the powers in the bands of one recording [frames], by onnx's reference evaluator."""
    nodes = [
        helper.make_node("HannWindow", ["size"], ["window"]),
        helper.make_node("STFT", ["signal", "step", "window", "size"], ["spectrum"]),
        helper.make_node("ReduceSumSquare", ["spectrum", "axes"], ["power"], keepdims=0),
        helper.make_node("MelWeightMatrix", ["bands", "size", "rate", "low", "high"], ["bank"]),
        helper.make_node("MatMul", ["power", "bank"], ["y"]),
    ]
    fed = {
        "signal": wave[None, :, None],
        "size": np.array(FRAME), "step": np.array(HOP), "axes": np.array([3]), "bands": np.array(BANDS),
        "rate": np.array(RATE), "low": np.array(20, np.float32), "high": np.array(7600, np.float32),
    }  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in fed.items()
    ]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (found,) = ReferenceEvaluator(model).run(None, fed)
    return np.asarray(found[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("fuse", ["", "fuse: true, "])
def test_a_mel_spectrogram_is_made_of_operators(tmp_path: Path, cli: Cli, fuse: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    bands: tuple[int, Shape] = (FLOAT, ["batch", "frames", BANDS])
    save_model(tmp_path / "m.onnx", [node], {"x": bands}, {"y": bands}, opset=21, ir_version=10)
    waves = np.random.default_rng(0).standard_normal((3, 1200)).astype(np.float32)
    np.save(tmp_path / "wave.npy", waves)
    done = cli("apply", write(tmp_path, MEL.replace("FUSE", fuse), "y: $y", "path: wave.npy, columns: {wave: array}"))
    assert done.code == 0, done.out + done.err
    for row, wave in zip(results(tmp_path), waves, strict=True):
        expected = by_the_reference(wave)
        np.testing.assert_allclose(np.array(row["y"]), expected, rtol=1e-3, atol=1e-4 * expected.max())


@pytest.mark.parametrize("last", ["- {do: softmax, in: {x: $w}, out: z}", "- {run: m, in: {x: $w}, out: {y: z}}"])
def test_what_is_made_of_constants_is_not_one_of_each_row(tmp_path: Path, cli: Cli, last: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["batch", 8])}, {"y": (FLOAT, ["batch", 8])})
    np.save(tmp_path / "x.npy", np.zeros((4, 8), np.float32))
    steps = f"      - {{run: m, in: {{x: $x}}, out: {{y: y}}}}\n      - {{op: HannWindow, in: {{size: 8}}, out: w}}\n      {last}"
    refused = cli("plan", write(tmp_path, steps, "y: $y", "path: x.npy, columns: {x: array}"))
    assert refused.code == 1
    assert "$w is not one of each row: it follows from sizes or constants." in " ".join(refused.out.split())


@pytest.mark.parametrize("step", ["{op: HannWindow, in: {size: 8}, out: w}", "{op: Shape, in: {data: $y}, out: w}"])
def test_what_is_not_one_of_each_row_is_no_column(tmp_path: Path, cli: Cli, step: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["batch", 8])}, {"y": (FLOAT, ["batch", 8])})
    np.save(tmp_path / "x.npy", np.zeros((4, 8), np.float32))
    job = (
        "version: 1\nmodels: {m: {path: m.onnx}}\n"
        f"jobs: {{run: {{model: m, input: {{path: x.npy}}, postprocess: [{step}], output: {{path: out, columns: [y, w]}}}}}}\n"
    )
    (tmp_path / "m.yaml").write_text(job)
    refused = cli("plan", tmp_path / "m.yaml")
    assert refused.code == 1
    assert "w follows from sizes or constants and is not one of each row" in " ".join(refused.out.split())
    (tmp_path / "m.yaml").write_text(job.replace(", columns: [y, w]", ""))
    assert cli("apply", tmp_path / "m.yaml").code == 0
    assert [list(row) for row in results(tmp_path)] == [["y"]] * 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", ["0.5", "[1, 2, 3, 4]"])
def test_a_value_of_the_job_is_a_constant_of_an_op_step(tmp_path: Path, cli: Cli, value: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])})
    np.save(tmp_path / "x.npy", np.array([[0.5, 1, 1.5, 2]] * 3, np.float32))
    steps = "      - {run: m, in: {x: $x}, out: {y: raw}}\n      - {op: Sub, in: {A: $raw, B: $least}, out: y}"
    given = f"path: x.npy, columns: {{x: array}}, values: {{least: {value}}}"
    path = write(tmp_path, steps, "y: $y", given)
    done = cli("apply", path)
    assert done.code == 0, done.out + done.err
    found = np.array([row["y"] for row in results(tmp_path)])
    np.testing.assert_allclose(found, np.load(tmp_path / "x.npy") - json.loads(value))
    path.write_text(path.read_text().replace(value, "[0, 0, 0, 1]"))
    refused = cli("apply", path)
    assert refused.code == 1
    assert "columns" in refused.out + refused.err  # another value is another result


def test_a_value_of_the_job_that_an_op_step_cannot_take_is_refused(tmp_path: Path, cli: Cli) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])})
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    steps = "      - {run: m, in: {x: $x}, out: {y: raw}}\n      - {op: Sub, in: {A: $raw, B: $least}, out: y}"
    refused = cli("plan", write(tmp_path, steps, "y: $y", "path: x.npy, columns: {x: array}, values: {least: low}"))
    assert refused.code == 1
    assert 'Input "B" of Sub: low is no float32' in " ".join(refused.out.split())


def words(folder: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(folder / "m.onnx", [node], {"x": (INT64, ["batch"])}, {"y": (INT64, ["batch"])})
    rows = [{"text": text, "n": n, "list": list(range(n))} for n, text in enumerate(["One", "two", "3"])]
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


STEPS_OF_TEXT = [
    '{op: RegexFullMatch, in: {X: $text}, attributes: {pattern: "[a-z]+"}, out: hit}',
    '{op: StringConcat, in: {X: $text, Y: "!"}, out: loud}',
    "{op: Identity, in: {input: $n}, out: same}",
    "{run: m, in: {x: $n}, out: {y: y}}",
]


@pytest.mark.quick(0)
@pytest.mark.parametrize("order", [1, -1])
def test_text_is_read_in_the_type_that_some_step_wants(tmp_path: Path, cli: Cli, order: int) -> None:
    """Whatever the order of the steps: Identity takes any type, and the model whole numbers."""
    words(tmp_path)
    steps = STEPS_OF_TEXT[::order]
    lines = "\n".join(f"      - {step}" for step in steps)
    done = cli("apply", write(tmp_path, lines, "hit: $hit, loud: $loud, y: $y, same: $same", "path: x.jsonl"))
    assert done.code == 0, done.out + done.err
    assert results(tmp_path) == [
        {"hit": False, "loud": "One!", "y": 0, "same": 0},
        {"hit": True, "loud": "two!", "y": 1, "same": 1},
        {"hit": False, "loud": "3!", "y": 2, "same": 2},
    ]


def test_items_are_read_in_the_type_that_steps_inside_of_each_want(tmp_path: Path, cli: Cli) -> None:
    words(tmp_path)
    steps = "{each: $list, as: one, steps: [{run: m, in: {x: $one}, out: {y: z}}], collect: {z: zs}}"
    done = cli("apply", write(tmp_path, f"      - {steps}", "zs: $zs", "path: x.jsonl"))
    assert done.code == 0, done.out + done.err
    assert [row["zs"] for row in results(tmp_path)] == [[], [0], [0, 1]]


def test_the_reason_of_a_refusal_is_whole(tmp_path: Path, cli: Cli) -> None:
    """A reason may have brackets of its own, as in [C]."""
    words(tmp_path)
    step = "      - {op: StringNormalizer, by_row: true, in: {X: $text}, attributes: {case_change_action: LOWER}, out: low}"
    run = "      - {run: m, in: {x: $n}, out: {y: y}}"
    refused = cli("plan", write(tmp_path, f"{step}\n{run}", "y: $y, low: $low", "path: x.jsonl"))
    assert refused.code == 1
    assert "StringNormalizer: Input shape must have either [C] or [1,C] dimensions" in " ".join(refused.out.split())
