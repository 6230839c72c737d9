"""Op steps end to end, on real sessions: in a line, by row, inside of each, in saved plans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.models import Shape, save_model

from ortdeploy.facts.preflight import Opening
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.planning.preflight import op_sessions
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open
from ortdeploy.sessions.generated_models import make_model

FLOAT = TensorProto.FLOAT

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx}
pipelines:
  p:
    steps:
STEPS
    outputs: {OUTPUTS}
jobs:
  run:
    pipeline: p
    input: {path: data.npy, columns: {x: array}, key: [row]}
    batch: {size: 8}
    output: {path: out}
"""

YOLO = """\
      - {op: Split, in: {input: $raw, split: [4, 2]}, attributes: {axis: 1}, out: {outputs: [b, s]}}
      - {op: Transpose, in: {data: $b}, attributes: {perm: [0, 2, 1]}, out: boxes}
      - op: NonMaxSuppression
        by_row: true
        in: {boxes: $boxes, scores: $s, max_output_boxes_per_class: [3], iou_threshold: [0.45], score_threshold: [1.2]}
        attributes: {center_point_box: 1}
        out: kept
      - {op: TopK, in: {X: $s, K: [2]}, attributes: {axis: -1}, out: {Values: best, Indices: which}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """x [rows, 6, 20] -> 1.5 x, over 30 rows."""
    shape: tuple[int, Shape] = (FLOAT, ["batch", 6, 20])
    factor = {"k": np.array(1.5, np.float32)}
    save_model(
        tmp_path / "m.onnx", [helper.make_node("Mul", ["x", "k"], ["raw"])], {"x": shape}, {"raw": shape}, factor
    )
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((30, 6, 20), dtype=np.float32))
    return tmp_path


RUN = "      - {run: m, in: {x: $x}, out: {raw: raw}}\n"


def write(folder: Path, steps: str, outputs: str) -> Path:
    path = folder / "m.yaml"
    steps = steps if "run: m" in steps else RUN + steps
    path.write_text(MANIFEST.replace("STEPS", steps).replace("OUTPUTS", outputs))
    return path


def results(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted((folder / "out").glob("part-*")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def raw(folder: Path) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.load(folder / "data.npy") * np.float32(1.5)
    return values


def reference(node: Any, feeds: dict[str, Any], opset: int = 21) -> Any:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])).run(None, feeds)


def test_a_detector_is_decoded_by_operators(folder: Path, cli: Cli) -> None:
    manifest = write(folder, YOLO, "kept: $kept, best: $best, which: $which")
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    boxes, scores = raw(folder)[:, :4].transpose(0, 2, 1), raw(folder)[:, 4:]
    node = helper.make_node("NonMaxSuppression", ["b", "s", "m", "i", "t"], ["y"], center_point_box=1)
    settings = {"m": np.array([3]), "i": np.array([0.45], np.float32), "t": np.array([1.2], np.float32)}
    rows = results(folder)
    for row, box, score in zip(rows, boxes, scores, strict=True):
        (kept,) = reference(node, {"b": box[None], "s": score[None], **settings})
        assert row["kept"] == kept[:, 1:].tolist()
        order = np.argsort(-score, axis=-1, kind="stable")[:, :2]
        assert row["which"] == order.tolist()
        np.testing.assert_allclose(row["best"], np.take_along_axis(score, order, -1))
    assert len({len(row["kept"]) for row in rows}) > 1  # rows list different numbers


def test_steps_in_a_line_are_one_session_and_a_plan_shows_them(folder: Path, cli: Cli) -> None:
    manifest = write(folder, YOLO, "kept: $kept")
    shown = cli("plan", manifest).out
    assert "session run:steps.1-2: Split, Transpose in one graph on CPUExecutionProvider" in shown
    assert "run:steps.3" in shown
    assert "run:steps.4" not in shown  # nobody reads what it gives


@pytest.mark.slow
def test_a_saved_plan_with_op_steps_runs(folder: Path, cli: Cli) -> None:
    manifest = write(folder, YOLO, "kept: $kept")
    assert cli("plan", manifest, "--out", folder / "plan.json").code == 0
    done = cli("apply", folder / "plan.json")
    assert done.code == 0, done.out + done.err
    assert len(results(folder)) == 30


@pytest.mark.slow
def test_op_steps_run_inside_of_each(folder: Path, cli: Cli) -> None:
    steps = """\
      - each: $raw
        as: line
        batch: 4
        steps:
          - {op: Mul, in: {A: $line, B: 2}, out: twice}
          - {op: ReduceMax, in: {data: $twice, axes: [1]}, attributes: {keepdims: 0}, out: top}
        collect: {top: tops}"""
    done = cli("apply", write(folder, steps, "tops: $tops"))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose([row["tops"] for row in results(folder)], 2 * raw(folder).max(axis=2), rtol=1e-6)


@pytest.mark.slow
def test_threads_are_those_that_the_job_may_use(folder: Path, cli: Cli) -> None:
    manifest = write(folder, YOLO, "kept: $kept")
    manifest.write_text(manifest.read_text() + "    limits: {threads: 1}\n")
    assert "intra_op_num_threads=1" in cli("plan", manifest).out
    assert cli("apply", manifest).code == 0


@pytest.mark.slow
def test_an_operator_of_another_domain_runs(folder: Path, cli: Cli) -> None:
    steps = "      - {op: Gelu, domain: com.microsoft, in: {X: $raw}, out: y}"
    done = cli("apply", write(folder, steps, "y: $y"))
    assert done.code == 0, done.out + done.err
    (expected,) = reference(helper.make_node("Gelu", ["x"], ["y"]), {"x": raw(folder)})
    np.testing.assert_allclose([row["y"] for row in results(folder)], expected, rtol=1e-5)


def test_results_that_depend_on_the_number_of_rows_are_found_when_the_job_begins(folder: Path, cli: Cli) -> None:
    steps = """\
      - {op: Shape, in: {data: $raw}, attributes: {start: 0, end: 1}, out: count}
      - {op: Cast, in: {input: $count}, attributes: {to: float32}, out: divisor}
      - {op: Div, in: {A: $raw, B: $divisor}, out: y}"""
    done = cli("apply", write(folder, steps, "y: $y"))
    assert done.code == 1
    assert "its results depend on the rows beside it" in done.out
    assert "row_independence: {rtol: …}, or false, at the model. An op step that works across rows takes" in done.out
    assert "of model p" not in done.out  # it is a pipeline


OF_A_MODEL = """\
version: 1
models:
  m: {path: m.onnx}
jobs:
  run:
    model: m
    input: {path: data.npy, columns: {x: array}, key: [row]}
    prepare: {x: [PREPARE]}
    batch: {size: 8}
    postprocess:
POSTPROCESS
    output: {path: out, columns: [COLUMNS]}
"""

TURN = "{op: Transpose, in: {data: $x}, attributes: {perm: [0, 2, 1]}}"
AND_BACK = f"{{scale: 2.0}}, {TURN}, {TURN}, {{op: Mul, in: {{A: $x, B: 0.5}}}}"
BEST = """\
      - {op: Slice, in: {data: $raw, starts: [4], ends: [6], axes: [1]}, out: s}
      - {op: TopK, in: {X: $s, K: [2]}, attributes: {axis: -1}, out: {Values: best, Indices: which}}
      - {argmax: s, as: top}
      - {op: NonZero, by_row: true, in: {X: $which}, out: places}"""


def write_job(folder: Path, prepare: str, postprocess: str, columns: str) -> Path:
    path = folder / "m.yaml"
    text = OF_A_MODEL.replace("PREPARE", prepare).replace("POSTPROCESS", postprocess).replace("COLUMNS", columns)
    path.write_text(text)
    return path


@pytest.mark.slow
def test_prepare_and_postprocess_take_operators(folder: Path, cli: Cli) -> None:
    manifest = write_job(folder, AND_BACK, BEST, "best, which, top, places")
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    assert "session run:prepare.x.1-3: Transpose, Transpose, Mul in one graph" in done.out
    scores = raw(folder)[:, 4:]
    for row, score in zip(results(folder), scores, strict=True):
        order = np.argsort(-score, axis=-1, kind="stable")[:, :2]
        assert row["which"] == order.tolist()
        assert row["top"] == order[:, 0].tolist()
        assert row["places"] == [axis.tolist() for axis in np.nonzero(order)]
        np.testing.assert_allclose(row["best"], np.take_along_axis(score, order, -1), rtol=1e-6)


def test_rows_in_which_an_operator_makes_nan_are_not_finite_either(folder: Path, cli: Cli) -> None:
    below = """\
      - {op: Sub, in: {A: $raw, B: 0.01}, out: less}
      - {op: Log, in: {input: $less}, out: y}"""
    manifest = write_job(folder, "", below, "y")
    manifest.write_text(manifest.read_text() + "    errors: {on_nan: skip}\n")
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    fine = np.flatnonzero((raw(folder) > np.float32(0.01)).all(axis=(1, 2)))
    assert [row["row"] for row in results(folder)] == fine.tolist()
    assert 0 < len(fine) < 30


@pytest.mark.slow
def test_a_saved_plan_of_a_job_with_operators_runs(folder: Path, cli: Cli) -> None:
    manifest = write_job(folder, AND_BACK, BEST, "best, which")
    assert cli("plan", manifest, "--out", folder / "plan.json").code == 0
    done = cli("apply", folder / "plan.json")
    assert done.code == 0, done.out + done.err
    assert len(results(folder)) == 30


@pytest.mark.slow
def test_a_batch_size_and_threads_are_found_with_operators_before_the_model(folder: Path, cli: Cli) -> None:
    manifest = write_job(folder, AND_BACK, BEST, "best")
    text = manifest.read_text().replace("size: 8", "size: auto").replace("m.onnx}", "m.onnx, threads: auto}")
    manifest.write_text(text)
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err


def test_a_postprocess_step_that_counts_rows_fails_the_job(folder: Path, cli: Cli) -> None:
    counting = """\
      - {op: Shape, in: {data: $raw}, attributes: {start: 0, end: 1}, out: count}
      - {op: Cast, in: {input: $count}, attributes: {to: float32}, out: divisor}
      - {op: Div, in: {A: $raw, B: $divisor}, out: y}"""
    done = cli("apply", write_job(folder, "", counting, "y"))
    assert done.code == 1
    assert "the results of a row are others alone" in done.out


def test_a_prepare_step_that_counts_rows_is_refused_before_the_run(folder: Path, cli: Cli) -> None:
    counting = "{op: Softmax, in: {input: $x}, attributes: {axis: 0}}"
    refused = cli("plan", write_job(folder, counting, BEST, "best"))
    assert refused.code == 1
    assert "Softmax works along axis 0, which counts the rows" in refused.out.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("{op: Relu, in: {X: $y}}", "$y is not known here: a prepare step takes the value so far, $x."),
        ("{op: Relu, in: {X: $x}, out: y}", "What a prepare step gives is $x of the next one."),
        ("{op: Relo, in: {X: $x}}", 'Did you mean "Relu"?'),
        (
            "{op: Cast, in: {input: $x}, attributes: {to: uint8}}, {op: Mul, in: {A: $x, B: 0.5}}",
            "Add a step before: {op: Cast, in: {input: $x}, attributes: {to: float32}}.",
        ),
        ("{op: Mul, in: {A: $x, B: [1, 2]}}", "It gets $x float32 [rows, 6, 20], B float32 [2]."),
        (
            "{op: LabelEncoder, domain: ai.onnx.ml, in: {X: $x}, attributes: {keys_floats: [1.0]}}",
            "LabelEncoder (operator set 1 of ai.onnx.ml) has no attribute",
        ),
        (
            "{op: Normalizer, domain: ai.onnx.ml, in: {X: $x}}, {op: Scaler, domain: ai.onnx.ml, opset: 2, in: {X: $x}}",
            "Write opset: 1, or the same other one in all of them.",
        ),
        ("{op: Shape, in: {data: $x}}", "follows from sizes or constants and is not one of each row"),
    ],
)
def test_what_is_wrong_with_an_operator_of_prepare_is_said_at_its_place(
    folder: Path, cli: Cli, prepare: str, said: str
) -> None:
    refused = cli("plan", write_job(folder, prepare, BEST, "best"))
    assert refused.code == 1
    assert "m.yaml:8:" in refused.out
    assert "-operator]" in refused.out
    assert said in " ".join(refused.out.split())


def test_what_onnx_runtime_has_no_kernel_for_is_refused_before_the_run(folder: Path, cli: Cli) -> None:
    steps = """\
      - {op: Cast, in: {input: $raw}, attributes: {to: float64}, out: wide}
      - {op: Elu, in: {X: $wide}, out: y}"""
    refused = cli("plan", write(folder, steps, "y: $y"))
    assert refused.code == 1
    assert "m.yaml:9:" in refused.out
    assert "[refused-operator]" in refused.out


AROUND = """\
      - {op: Mul, in: {A: $x, B: 2}, out: twice}
      - {run: m, fuse: FUSE, in: {x: $twice}, out: {raw: raw}}
      - {op: Sub, in: {A: $raw, B: $x}, out: less}
      - {op: Add, in: {A: $less, B: $twice}, out: more}
      - {op: TopK, by_row: true, in: {X: $more, K: [2]}, out: {Values: best}}"""


def of_set_21(folder: Path, *, batch: int | str = "batch", external: bool = False) -> None:
    """The same model in the operator set of op steps, with weights of 20 numbers."""
    shape: tuple[int, Shape] = (FLOAT, [batch, 6, 20])
    factor = {"k": np.full(20, 1.5, np.float32)}
    node = helper.make_node("Mul", ["x", "k"], ["raw"])
    save_model(folder / "m.onnx", [node], {"x": shape}, {"raw": shape}, factor, opset=21, ir_version=10)
    if external:
        model = onnx.load(folder / "m.onnx")
        onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)


@pytest.mark.quick("False-3", "True-batch")
@pytest.mark.parametrize("batch", ["batch", 8, 3])
@pytest.mark.parametrize("external", [False, True])
def test_a_fused_model_gives_what_its_steps_give_side_by_side(
    folder: Path, cli: Cli, batch: int | str, *, external: bool
) -> None:
    of_set_21(folder, batch=batch, external=external)
    found = []
    for fuse in ("false", "true"):
        manifest = write(folder, AROUND.replace("FUSE", fuse), "raw: $raw, more: $more, best: $best")
        manifest.write_text(manifest.read_text().replace("path: out", f"path: out-{fuse}"))
        done = cli("apply", manifest)
        assert done.code == 0, done.out + done.err
        found.append("".join(path.read_text() for path in sorted((folder / f"out-{fuse}").glob("part-*"))))
    assert found[0] == found[1]
    assert "Mul before and Sub, Add behind it in its own graph" in done.out


@pytest.mark.parametrize("fuse", ["false", "true"])
def test_what_a_provider_may_change_is_told_of_a_model_and_of_a_fused_one(folder: Path, cli: Cli, fuse: str) -> None:
    of_set_21(folder)
    rows = np.load(folder / "data.npy")
    rows[2, 0, 0] = 1e-40
    np.save(folder / "data.npy", rows)
    manifest = write(folder, AROUND.replace("FUSE", fuse), "more: $more")
    flushed = "path: m.onnx, session: {config: {session.set_denormal_as_zero: true}}"
    manifest.write_text(manifest.read_text().replace("path: m.onnx", flushed))
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    assert "rows.narrowed" in done.out + done.err


@pytest.mark.parametrize("external", [False, True])
def test_a_plan_opens_fused_models_without_their_weights(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, *, external: bool
) -> None:
    """What ONNX Runtime does not open is refused at the step, before the run."""
    of_set_21(folder, external=external)
    opened: list[list[str]] = []

    def judged(requests: Sequence[TrialRequest]) -> list[Opening | None]:
        graphs = [onnx.load(request.file, load_external_data=False).graph for request in requests]
        opened.extend([node.op_type for node in graph.node] for graph in graphs)
        return try_to_open(requests)

    monkeypatch.setattr(op_sessions, "try_to_open", judged)
    manifest = write(folder, AROUND.replace("FUSE", "true"), "more: $more")
    assert cli("plan", manifest).code == 0
    assert ["Mul", "Identity", "Mul", "Sub", "Add"] in opened
    monkeypatch.setattr(op_sessions, "make_model", _broken)
    refused = cli("plan", manifest)
    assert refused.code == 1
    assert "m.yaml:8:24: error[refused-operator]" in refused.out
    assert 'ONNX Runtime does not open model "m" with Mul and Sub, Add in its graph: ' in " ".join(refused.out.split())


def _broken(step: OpenSession) -> bytes:
    """Return a model whose last node takes a value that nothing makes, if it is a fused one."""
    model = onnx.load_from_string(make_model(step))
    if step.fusion is not None:
        model.graph.node[-1].input[0] = "nothing"
    return model.SerializeToString()


def test_a_model_with_names_of_values_of_steps_is_refused_before_the_run(folder: Path, cli: Cli) -> None:
    of_set_21(folder)
    model = onnx.load(folder / "m.onnx")
    node = helper.make_node("Identity", ["raw"], ["$raw"])
    model.graph.node.append(node)
    onnx.save(model, folder / "m.onnx")
    refused = cli("plan", write(folder, AROUND.replace("FUSE", "true"), "more: $more"))
    assert refused.code == 1
    assert "op steps cannot be fused into a model with a value called $raw" in " ".join(refused.out.split())


@pytest.mark.slow
def test_a_saved_plan_of_a_fused_model_runs(folder: Path, cli: Cli) -> None:
    of_set_21(folder)
    manifest = write(folder, AROUND.replace("FUSE", "true"), "more: $more")
    assert cli("plan", manifest, "--out", folder / "plan.json").code == 0
    done = cli("apply", folder / "plan.json")
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose([row["more"] for row in results(folder)], 4 * np.load(folder / "data.npy"), rtol=1e-6)


@pytest.mark.slow
def test_two_models_fuse_with_the_steps_between_them_in_the_first(folder: Path, cli: Cli) -> None:
    of_set_21(folder)
    steps = """\
      - {run: m, fuse: true, in: {x: $x}, out: {raw: one}}
      - {op: Neg, in: {X: $one}, out: minus}
      - {run: m, fuse: true, in: {x: $minus}, out: {raw: two}}
      - {op: Abs, in: {X: $two}, out: y}"""
    done = cli("apply", write(folder, steps, "y: $y"))
    assert done.code == 0, done.out + done.err
    assert "nothing before and Neg behind" in done.out
    assert "nothing before and Abs behind" in done.out
    np.testing.assert_allclose([row["y"] for row in results(folder)], 2.25 * np.load(folder / "data.npy"), rtol=1e-6)


def test_an_operator_that_means_something_else_in_the_models_set_is_not_fused(folder: Path, cli: Cli) -> None:
    steps = "      - {run: m, fuse: true, in: {x: $x}, out: {raw: one}}\n      - {op: Split, in: {input: $one, split: [3, 3]}, attributes: {axis: 1}, out: {outputs: [y, z]}}"
    refused = cli("plan", write(folder, steps, "y: $y"))
    assert refused.code == 1
    assert "m.yaml:7:" in refused.out
    said = " ".join(refused.out.split())
    assert "Its model has operator set 17 of ai.onnx, in which Split is not that of set 21." in said


def activations(manifest: Path) -> int:
    (plan,) = plan_manifests([str(manifest)], LoadOptions(), state_dir=None).plans
    (job,) = (step for step in plan.steps if isinstance(step, RunJob))
    assert job.limits.forecast is not None
    return next(part.size for part in job.limits.forecast.parts if part.what == "activations")


def test_the_memory_of_op_steps_is_forecast(folder: Path) -> None:
    steps = "      - {op: Tile, in: {input: $raw, repeats: [1, 100, 1]}, out: tiled}\n"
    least = "      - {op: ReduceMax, in: {data: $tiled, axes: [1, 2]}, attributes: {keepdims: 0}, out: y}"
    few = activations(write(folder, least.replace("$tiled", "$raw"), "y: $y"))
    assert activations(write(folder, steps + least, "y: $y")) - few >= 8 * 6 * 20 * 100 * 4


def test_the_example_of_the_manual_runs(folder: Path, cli: Cli) -> None:
    text = (REPOSITORY / "docs/reference/operators.md").read_text(encoding="utf-8")
    steps = text.split("```yaml\n")[1].split("```")[0].rstrip()
    shape: tuple[int, Shape] = (FLOAT, ["batch", 84, 50])
    save_model(folder / "m.onnx", [helper.make_node("Relu", ["x"], ["raw"])], {"x": shape}, {"raw": shape})
    data = np.random.default_rng(0).random((5, 84, 50), dtype=np.float32)
    data[:, 4:] *= data[:, 4:] > 0.97
    np.save(folder / "data.npy", data)
    done = cli("apply", write(folder, steps, "kept: $kept"))
    assert done.code == 0, done.out + done.err
    node = helper.make_node("NonMaxSuppression", ["b", "s", "m", "i", "t"], ["y"], center_point_box=1)
    given = {"m": np.array([300]), "i": np.array([0.45], np.float32), "t": np.array([0.25], np.float32)}
    for row, values in zip(results(folder), data, strict=True):
        (kept,) = reference(node, {"b": values[:4].T[None], "s": values[None, 4:], **given})
        assert sorted(row["kept"]) == sorted(kept[:, 1:].tolist())
